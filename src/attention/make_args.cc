// Pointers and strides of a validated call, and the check of cu_seqlens.
#include "attention/tensor_checks.h"
#include "attention/validate.h"

namespace headrace {
namespace {

// Axes of size 0 and 1 may have arbitrary strides; kernels get 0.
std::int64_t stride_of(const headrace_tensor& tensor, int axis) {
  return tensor.shape[axis] > 1 ? tensor.strides[axis] : 0;
}

Operand make_operand(const Problem& p, const headrace_tensor& tensor) {
  if (!has_elements(tensor)) return {.data = tensor.data};
  const int seq = p.is_ragged ? 0 : 1;
  return {.data = tensor.data,
          .stride_batch = p.is_ragged ? 0 : stride_of(tensor, 0),
          .stride_seq = stride_of(tensor, seq),
          .stride_head = stride_of(tensor, seq + 1)};
}

ScoreOperand make_score_operand(const Problem& p, const headrace_tensor& tensor) {
  if (!is_given(tensor)) return {};
  const int head = p.is_ragged ? 0 : 1;
  return {.data = tensor.data,
          .dtype = static_cast<DType>(tensor.dtype),
          .stride_batch = p.is_ragged ? 0 : stride_of(tensor, 0),
          .stride_head = stride_of(tensor, head),
          .stride_q = stride_of(tensor, head + 1),
          .stride_k = stride_of(tensor, head + 2)};
}

LseOperand make_lse(const Problem& p, const headrace_tensor& tensor) {
  if (!is_given(tensor)) return {};
  const int head = p.is_ragged ? 0 : 1;
  return {.data = tensor.data,
          .stride_batch = p.is_ragged ? 0 : stride_of(tensor, 0),
          .stride_head = stride_of(tensor, head),
          .stride_q = stride_of(tensor, head + 1)};
}

Status check_lengths(const char* side, const std::int32_t* cu_seqlens, std::int64_t batch,
                     std::int64_t total, std::int64_t max_seqlen) {
  if (cu_seqlens[0] != 0)
    return invalid_argument(
        "cu_seqlens_{}[0]={}: must be 0, because sequences start at the first row", side,
        cu_seqlens[0]);
  for (std::int64_t i = 0; i < batch; ++i) {
    const std::int64_t length = std::int64_t{cu_seqlens[i + 1]} - cu_seqlens[i];
    if (length < 0)
      return invalid_argument(
          "cu_seqlens_{}[{}]={} after cu_seqlens_{}[{}]={}: must not decrease; pass prefix sums of "
          "the lengths",
          side, i + 1, cu_seqlens[i + 1], side, i, cu_seqlens[i]);
    // If total is the tighter bound, the last entry's check reports it.
    if (max_seqlen < total && length > max_seqlen)
      return invalid_argument(
          "cu_seqlens_{}[{}]={} after cu_seqlens_{}[{}]={}: length {} must be at most "
          "max_seqlen_{}={}; set that option to the longest sequence",
          side, i + 1, cu_seqlens[i + 1], side, i, cu_seqlens[i], length, side, max_seqlen);
  }
  if (cu_seqlens[batch] != total)
    return invalid_argument(
        "cu_seqlens_{}[{}]={}: the last entry must be the {} rows of {}; pass prefix sums of the "
        "lengths or shorten {}",
        side, batch, cu_seqlens[batch], total, side, side);
  return std::nullopt;
}

}  // namespace

AttentionArgs make_args(const Problem& p, const headrace_attention_tensors& t,
                        const headrace_attention_options& options) {
  AttentionArgs args;
  args.q = make_operand(p, t.q);
  args.k = make_operand(p, t.k);
  args.v = make_operand(p, t.v);
  args.out = make_operand(p, t.out);
  args.lse = make_lse(p, t.lse);
  if (p.is_ragged) {
    args.ragged = {.cu_seqlens_q = static_cast<const std::int32_t*>(t.cu_seqlens_q.data),
                   .cu_seqlens_k = static_cast<const std::int32_t*>(t.cu_seqlens_k.data)};
  }
  args.bias = make_score_operand(p, t.bias);
  args.mask = make_score_operand(p, t.mask);
  args.probs = make_score_operand(p, t.probs);
  if (p.has_alibi) {
    const bool per_batch = t.alibi_slopes.rank == 2;
    args.alibi_slopes = static_cast<const float*>(t.alibi_slopes.data);
    args.alibi_stride_batch = per_batch ? stride_of(t.alibi_slopes, 0) : 0;
    args.alibi_stride_head = stride_of(t.alibi_slopes, per_batch ? 1 : 0);
  }
  if (p.has_tree_mask) {
    args.tree_mask = static_cast<const std::uint32_t*>(t.tree_mask.data);
    args.tree_stride_batch = p.is_ragged ? 0 : stride_of(t.tree_mask, 0);
    args.tree_stride_q = stride_of(t.tree_mask, p.is_ragged ? 0 : 1);
  }
  if (p.has_sinks) {
    args.sinks = static_cast<const float*>(t.sinks.data);
    args.sinks_stride = stride_of(t.sinks, 0);
  }
  args.dropout_seed = options.dropout_seed;
  args.dropout_offset = options.dropout_offset;
  return args;
}

AttentionArgs make_backward_args(const Problem& p, const headrace_attention_tensors& t,
                                 const headrace_attention_gradients& g,
                                 const headrace_attention_options& options) {
  AttentionArgs args = make_args(p, t, options);
  args.gradients = {.dout = make_operand(p, g.dout),
                    .dq = make_operand(p, g.dq),
                    .dk = make_operand(p, g.dk),
                    .dv = make_operand(p, g.dv),
                    .dlse = make_lse(p, g.dlse),
                    .dbias = make_score_operand(p, g.dbias)};
  // Strides of an empty dbias are 0, which would read as reduced axes.
  if (p.has_dbias && !has_elements(g.dbias)) args.gradients.dbias.data = nullptr;
  if (p.has_dsinks) {
    args.gradients.dsinks = static_cast<float*>(g.dsinks.data);
    args.gradients.dsinks_stride = stride_of(g.dsinks, 0);
  }
  return args;
}

Status validate_lengths(const Problem& p, const AttentionArgs& args) {
  if (!p.is_ragged) return std::nullopt;
  const std::int32_t* cu_q = args.ragged.cu_seqlens_q;
  const std::int32_t* cu_k = args.ragged.cu_seqlens_k;
  if (auto bad = check_lengths("q", cu_q, p.batch, p.total_q, p.seqlen_q)) return bad;
  if (auto bad = check_lengths("k", cu_k, p.batch, p.total_k, p.seqlen_k)) return bad;
  if (!p.has_tree_mask) return std::nullopt;
  for (std::int64_t i = 0; i < p.batch; ++i) {
    const Sequence seq = sequence_of(p, args, i);
    if (seq.seqlen_q > seq.seqlen_k)
      return invalid_argument(
          "tree_mask with sequence {} of seqlen_q={} and seqlen_k={}: seqlen_q must be at most "
          "seqlen_k (the draft queries are the last keys); append their keys to k and v first",
          i, seq.seqlen_q, seq.seqlen_k);
  }
  return std::nullopt;
}

}  // namespace headrace
