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

// One call: iterates over the rows and adds their contributions.
class Backward {
 public:
  Backward(const Problem& p, const AttentionArgs& args)
      : p_(p), args_(args), dout_(static_cast<std::size_t>(p.head_dim_v)) {
    rows_q_ = p.is_ragged ? p.total_q : p.seqlen_q;
    rows_k_ = p.is_ragged ? p.total_k : p.seqlen_k;
    const std::int64_t batch = p.is_ragged ? 1 : p.batch;
    g_.dq.assign(product(batch, rows_q_, p.num_heads, p.head_dim), 0.0);
    g_.dk.assign(product(batch, rows_k_, p.num_kv_heads, p.head_dim), 0.0);
    g_.dv.assign(product(batch, rows_k_, p.num_kv_heads, p.head_dim_v), 0.0);
    if (p.has_sinks) g_.dsinks.assign(static_cast<std::size_t>(p.num_heads), 0.0);
    if (!p.has_dbias) return;
    const ScoreOperand& dbias = args.gradients.dbias;
    g_.dbias_shape = {dbias.stride_batch == 0 ? 1 : batch, dbias.stride_head == 0 ? 1 : p.num_heads,
                      dbias.stride_q == 0 ? 1 : rows_q_, dbias.stride_k == 0 ? 1 : p.seqlen_k};
    g_.dbias.assign(
        product(g_.dbias_shape[0], g_.dbias_shape[1], g_.dbias_shape[2], g_.dbias_shape[3]), 0.0);
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
    if (row_.is_empty) return;  // out and lse are constant for empty rows
    const std::int64_t dout = row_offset(args_.gradients.dout, b, sequence.row_q + i, head);
    double d = 0;  // D of this row
    for (std::size_t c = 0; c < dout_.size(); ++c) {
      dout_[c] = load(args_.gradients.dout, dout + static_cast<std::int64_t>(c));
      d += dout_[c] * row_.out[c];
    }
    const double dlse = lse_gradient(sequence, b, head, i);
    if (p_.has_sinks) {
      const double sink = args_.sinks[head * args_.sinks_stride];
      if (std::isfinite(sink))
        g_.dsinks[static_cast<std::size_t>(head)] += std::exp(sink - row_.lse) * (dlse - d);
    }
    for (std::int64_t j = 0; j < sequence.seqlen_k; ++j) {
      if (is_visible(p_, args_, sequence, b, head, i, j))
        add_element(sequence, b, head, i, j, dlse - d);
    }
  }

  double lse_gradient(const Sequence& sequence, std::int64_t b, std::int64_t head,
                      std::int64_t i) const {
    if (!p_.has_dlse) return 0;
    const LseOperand& dlse = args_.gradients.dlse;
    return load_as_double(
        dtype_of(p_) == DType::f64 ? DType::f64 : DType::f32, dlse.data,
        b * dlse.stride_batch + head * dlse.stride_head + (sequence.row_q + i) * dlse.stride_q);
  }

  // `shift` = dlse - D.
  void add_element(const Sequence& sequence, std::int64_t b, std::int64_t head, std::int64_t i,
                   std::int64_t j, double shift) {
    const std::int64_t kv_head = head / group_size(p_);
    const std::int64_t batch = p_.is_ragged ? 0 : b;
    const std::int64_t k_row = (batch * rows_k_ + sequence.row_k + j) * p_.num_kv_heads + kv_head;
    const std::int64_t v = row_offset(args_.v, b, sequence.row_k + j, kv_head);
    const double kept = !has_dropout(p_)                    ? 1.0
                        : is_kept(p_, args_, b, head, i, j) ? keep_factor(p_)
                                                            : 0.0;
    double dp = 0;
    for (std::int64_t c = 0; c < p_.head_dim_v; ++c) {
      const double dout = dout_[static_cast<std::size_t>(c)];
      dp += dout * load(args_.v, v + c) * kept;
      g_.dv[static_cast<std::size_t>(k_row * p_.head_dim_v + c)] +=
          row_.probs[static_cast<std::size_t>(j)] * dout;
    }
    const double ds = row_.softmax[static_cast<std::size_t>(j)] * (dp + shift);
    if (p_.has_dbias) add_bias_gradient(sequence, batch, head, i, j, ds);
    add_score_gradient(sequence, b, head, i, j, ds);
  }

  void add_bias_gradient(const Sequence& sequence, std::int64_t batch, std::int64_t head,
                         std::int64_t i, std::int64_t j, double ds) {
    const auto& shape = g_.dbias_shape;
    const auto along = [](std::int64_t size, std::int64_t idx) { return size == 1 ? 0 : idx; };
    const std::int64_t row =
        (along(shape[0], batch) * shape[1] + along(shape[1], head)) * shape[2] +
        along(shape[2], sequence.row_q + i);
    g_.dbias[static_cast<std::size_t>(row * shape[3] + along(shape[3], j))] += ds;
  }

  // Propagates dS through softcap and scale to Q and K.
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
      ds *= softcap_slope(p_.softmax_scale * dot / p_.softcap);
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
  std::vector<double> dout_;  // [head_dim_v] of the row
  std::int64_t rows_q_, rows_k_;
  Gradients g_;
  Row row_;
};

void store_operand(const Problem& p, const Operand& to, std::int64_t rows, std::int64_t heads,
                   std::int64_t dim, const std::vector<double>& from) {
  std::size_t n = 0;
  for (std::int64_t b = 0; b < (p.is_ragged ? 1 : p.batch); ++b) {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t offset = row_offset(to, b, row, head);
        for (std::int64_t c = 0; c < dim; ++c)
          store_from_double(dtype_of(p), to.data, offset + c, from[n++]);
      }
    }
  }
}

void store_dbias(const ScoreOperand& to, const Gradients& g) {
  std::size_t n = 0;
  for (std::int64_t b = 0; b < g.dbias_shape[0]; ++b) {
    for (std::int64_t head = 0; head < g.dbias_shape[1]; ++head) {
      for (std::int64_t i = 0; i < g.dbias_shape[2]; ++i) {
        for (std::int64_t j = 0; j < g.dbias_shape[3]; ++j)
          store_from_double(
              to.dtype, const_cast<void*>(to.data),
              b * to.stride_batch + head * to.stride_head + i * to.stride_q + j * to.stride_k,
              g.dbias[n++]);
      }
    }
  }
}

Status launch(const Plan& plan, const AttentionArgs& args, Workspace, Stream) {
  const Problem& p = plan.problem;
  const Gradients g = attention_backward(p, args);
  const GradientArgs& to = args.gradients;
  const std::int64_t rows_q = p.is_ragged ? p.total_q : p.seqlen_q;
  const std::int64_t rows_k = p.is_ragged ? p.total_k : p.seqlen_k;
  store_operand(p, to.dq, rows_q, p.num_heads, p.head_dim, g.dq);
  store_operand(p, to.dk, rows_k, p.num_kv_heads, p.head_dim, g.dk);
  store_operand(p, to.dv, rows_k, p.num_kv_heads, p.head_dim_v, g.dv);
  if (to.dbias.data != nullptr) store_dbias(to.dbias, g);
  if (p.has_dsinks) {
    for (std::int64_t head = 0; head < p.num_heads; ++head)
      to.dsinks[head * to.dsinks_stride] =
          static_cast<float>(g.dsinks[static_cast<std::size_t>(head)]);
  }
  return std::nullopt;
}

}  // namespace

Gradients attention_backward(const Problem& p, const AttentionArgs& args) {
  return Backward(p, args).run();
}

const Kernel kBackwardKernel = {
    .name = "cpu_reference",
    .summary =
        "row by row in double, every feature and dtype, exact NaN propagation; reference, slow",
    .refuses = [](const Problem&, const DeviceInfo&) { return std::string(); },
    .plan =
        [](const Problem&, const DeviceInfo&, const TuningConfig&) {
          Schedule schedule;
          schedule.note =
              "one thread, double, recomputes out and lse and allocates all gradients: for "
              "checking, not for speed";
          return schedule;
        },
    .launch = launch,
};

}  // namespace headrace::cpu::reference
