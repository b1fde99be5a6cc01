#include "backends/cpu/reference/backward.h"

#include <cmath>
#include <utility>

#include "backends/cpu/reference/row.h"
#include "core/dtype.h"

namespace headrace::cpu::reference {
namespace {

std::size_t product(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  return static_cast<std::size_t>(a * b * c * d);
}

// One call: walks the rows and adds what each contributes.
class Backward {
 public:
  Backward(const Problem& p, const AttentionArgs& args, const double* dout, const double* dlse)
      : p_(p), args_(args), dout_(dout), dlse_(dlse) {
    rows_q_ = p.is_ragged ? p.total_q : p.seqlen_q;
    rows_k_ = p.is_ragged ? p.total_k : p.seqlen_k;
    const std::int64_t batch = p.is_ragged ? 1 : p.batch;
    g_.dq.assign(product(batch, rows_q_, p.num_heads, p.head_dim), 0.0);
    g_.dk.assign(product(batch, rows_k_, p.num_kv_heads, p.head_dim), 0.0);
    g_.dv.assign(product(batch, rows_k_, p.num_kv_heads, p.head_dim_v), 0.0);
    if (p.has_sinks) g_.dsinks.assign(static_cast<std::size_t>(p.num_heads), 0.0);
    if (args.bias.data == nullptr) return;
    const ScoreOperand& bias = args.bias;
    g_.bias_shape = {bias.stride_batch == 0 ? 1 : batch, bias.stride_head == 0 ? 1 : p.num_heads,
                     bias.stride_q == 0 ? 1 : rows_q_, bias.stride_k == 0 ? 1 : p.seqlen_k};
    g_.dbias.assign(product(g_.bias_shape[0], g_.bias_shape[1], g_.bias_shape[2], g_.bias_shape[3]),
                    0.0);
  }

  Gradients run() {
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      const Sequence sequence = sequence_of(p_, args_, b);
      for (std::int64_t head = 0; head < p_.num_heads; ++head) {
        for (std::int64_t i = 0; i < sequence.seqlen_q; ++i) add_row(sequence, b, head, i);
      }
    }
    return std::move(g_);
  }

 private:
  double load(const Operand& x, std::int64_t offset) const {
    return load_as_double(dtype_of(p_), x.data, offset);
  }

  void add_row(const Sequence& sequence, std::int64_t b, std::int64_t head, std::int64_t i) {
    attention_row(p_, args_, sequence, b, head, i, row_);
    if (row_.is_empty) return;  // out and lse are constants there
    const std::int64_t batch_row = (p_.is_ragged ? 0 : b) * rows_q_ + sequence.row_q + i;
    const double* dout = dout_ + (batch_row * p_.num_heads + head) * p_.head_dim_v;
    double d = 0;  // D of this row
    for (std::int64_t c = 0; c < p_.head_dim_v; ++c)
      d += dout[c] * row_.out[static_cast<std::size_t>(c)];
    const double dlse = lse_gradient(sequence, b, head, i);
    if (p_.has_sinks) {
      const double sink = args_.sinks[head * args_.sinks_stride];
      if (std::isfinite(sink))
        g_.dsinks[static_cast<std::size_t>(head)] += std::exp(sink - row_.lse) * (dlse - d);
    }
    for (std::int64_t j = 0; j < sequence.seqlen_k; ++j) {
      if (is_visible(p_, args_, sequence, b, head, i, j))
        add_element(sequence, b, head, i, j, dout, dlse - d);
    }
  }

  double lse_gradient(const Sequence& sequence, std::int64_t b, std::int64_t head,
                      std::int64_t i) const {
    if (dlse_ == nullptr) return 0;
    if (p_.is_ragged) return dlse_[head * p_.total_q + sequence.row_q + i];
    return dlse_[(b * p_.num_heads + head) * p_.seqlen_q + i];
  }

  // `shift` = dlse - D.
  void add_element(const Sequence& sequence, std::int64_t b, std::int64_t head, std::int64_t i,
                   std::int64_t j, const double* dout, double shift) {
    const std::int64_t kv_head = head / group_size(p_);
    const std::int64_t batch = p_.is_ragged ? 0 : b;
    const std::int64_t k_row = (batch * rows_k_ + sequence.row_k + j) * p_.num_kv_heads + kv_head;
    const std::int64_t v = row_offset(args_.v, b, sequence.row_k + j, kv_head);
    const double kept = !has_dropout(p_)                    ? 1.0
                        : is_kept(p_, args_, b, head, i, j) ? keep_factor(p_)
                                                            : 0.0;
    double dp = 0;
    for (std::int64_t c = 0; c < p_.head_dim_v; ++c) {
      dp += dout[c] * load(args_.v, v + c) * kept;
      g_.dv[static_cast<std::size_t>(k_row * p_.head_dim_v + c)] +=
          row_.probs[static_cast<std::size_t>(j)] * dout[c];
    }
    const double ds = row_.softmax[static_cast<std::size_t>(j)] * (dp + shift);
    if (args_.bias.data != nullptr) add_bias_gradient(sequence, batch, head, i, j, ds);
    add_score_gradient(sequence, b, head, i, j, ds);
  }

  void add_bias_gradient(const Sequence& sequence, std::int64_t batch, std::int64_t head,
                         std::int64_t i, std::int64_t j, double ds) {
    const auto& shape = g_.bias_shape;
    const auto along = [](std::int64_t size, std::int64_t idx) { return size == 1 ? 0 : idx; };
    const std::int64_t row =
        (along(shape[0], batch) * shape[1] + along(shape[1], head)) * shape[2] +
        along(shape[2], sequence.row_q + i);
    g_.dbias[static_cast<std::size_t>(row * shape[3] + along(shape[3], j))] += ds;
  }

  // Through softcap and scale to Q and K.
  void add_score_gradient(const Sequence& sequence, std::int64_t b, std::int64_t head,
                          std::int64_t i, std::int64_t j, double ds) {
    const std::int64_t kv_head = head / group_size(p_);
    const std::int64_t batch = p_.is_ragged ? 0 : b;
    const std::int64_t q = row_offset(args_.q, b, sequence.row_q + i, head);
    const std::int64_t k = row_offset(args_.k, b, sequence.row_k + j, kv_head);
    if (has_softcap(p_)) {
      double dot = 0;
      for (std::int64_t c = 0; c < p_.head_dim; ++c)
        dot += load(args_.q, q + c) * load(args_.k, k + c);
      const double t = std::tanh(p_.softmax_scale * dot / p_.softcap);
      ds *= 1 - t * t;
    }
    const double factor = ds * p_.softmax_scale;
    const std::int64_t q_row = (batch * rows_q_ + sequence.row_q + i) * p_.num_heads + head;
    const std::int64_t k_row = (batch * rows_k_ + sequence.row_k + j) * p_.num_kv_heads + kv_head;
    for (std::int64_t c = 0; c < p_.head_dim; ++c) {
      g_.dq[static_cast<std::size_t>(q_row * p_.head_dim + c)] += factor * load(args_.k, k + c);
      g_.dk[static_cast<std::size_t>(k_row * p_.head_dim + c)] += factor * load(args_.q, q + c);
    }
  }

  const Problem& p_;
  const AttentionArgs& args_;
  const double* dout_;
  const double* dlse_;
  std::int64_t rows_q_, rows_k_;
  Gradients g_;
  Row row_;
};

}  // namespace

Gradients attention_backward(const Problem& p, const AttentionArgs& args, const double* dout,
                             const double* dlse) {
  return Backward(p, args, dout, dlse).run();
}

}  // namespace headrace::cpu::reference
