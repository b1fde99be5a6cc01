// Pointers and strides of a validated call, and the check of cu_seqlens.
#include <algorithm>

#include "attention/tensor_checks.h"
#include "attention/validate.h"
#include "base/math.h"

namespace headrace {
namespace {

// Axes of size 0 and 1 may have arbitrary strides; kernels get 0.
std::int64_t stride_of(const headrace_tensor& tensor, int axis) {
  return tensor.shape[axis] > 1 ? tensor.strides[axis] : 0;
}

// Of [batch, seqlen, heads, dim] or of [total, heads, dim].
Operand make_operand(const headrace_tensor& tensor) {
  if (!has_elements(tensor)) return {.data = tensor.data};
  const int seq = tensor.rank == 4 ? 1 : 0;
  return {.data = tensor.data,
          .stride_batch = seq == 0 ? 0 : stride_of(tensor, 0),
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

ScaleOperand make_scale(const headrace_tensor& tensor, std::int32_t scaling) {
  if (scaling == HEADRACE_SCALING_NONE) return {};
  const void* data = tensor.data;
  if (!has_elements(tensor)) return {.data = data};
  // Of the heads; with zero points an axis of words follows.
  const int last = tensor.rank - (scaling == HEADRACE_SCALING_ZERO_POINTS ? 2 : 1);
  if (scaling == HEADRACE_SCALING_PER_SEQUENCE)
    return {
        .data = data, .stride_sequence = stride_of(tensor, 0), .stride_head = stride_of(tensor, 1)};
  return {.data = data,
          .stride_batch = last == 2 ? stride_of(tensor, 0) : 0,
          .stride_seq = stride_of(tensor, last - 1),
          .stride_head = stride_of(tensor, last)};
}

void add_page_indptr(const headrace_attention_tensors& t, PagedKeys& paged) {
  paged.page_indptr = static_cast<const std::int32_t*>(t.page_indptr.data);
  // No offset reaches what lies behind.
  paged.num_entries =
      static_cast<std::int32_t>(std::min<std::int64_t>(t.block_table.shape[0], INT32_MAX));
  // A table without entries may be null, which kernels take for keys that are not in pages.
  if (paged.block_table == nullptr) paged.block_table = paged.page_indptr;
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

// The sequences' entries of block_table follow each other in it.
Status check_page_indptr(const Problem& p, const PagedKeys& paged) {
  const std::int32_t* offsets = paged.page_indptr;
  if (offsets[0] < 0)
    return invalid_argument(
        "page_indptr[0]={}: must not be negative, because the first sequence begins at that entry "
        "of block_table; pass prefix sums of the numbers of pages",
        offsets[0]);
  for (std::int64_t i = 0; i < p.batch; ++i)
    if (offsets[i + 1] < offsets[i])
      return invalid_argument(
          "page_indptr[{}]={} after page_indptr[{}]={}: must not decrease; pass prefix sums of the "
          "numbers of pages",
          i + 1, offsets[i + 1], i, offsets[i]);
  if (offsets[p.batch] > paged.num_entries)
    return invalid_argument(
        "page_indptr[{}]={}: must be at most {}, the entries of block_table; pass prefix sums of "
        "the numbers of pages and a block_table of all pages",
        p.batch, offsets[p.batch], paged.num_entries);
  return std::nullopt;
}

// The entries of block_table that `used` keys of a sequence make used.
Status check_used_pages(const Problem& p, const AttentionArgs& args, std::int64_t batch_idx,
                        std::int64_t used) {
  const std::int32_t* offsets = args.paged.page_indptr;
  const std::int64_t needed = ceil_div(used, p.page_size), i = batch_idx;
  if (offsets != nullptr && needed > std::int64_t{offsets[i + 1]} - offsets[i])
    return invalid_argument(
        "page_indptr[{}]={} after page_indptr[{}]={}: must be at least {} more, the pages (of {} "
        "keys) that seqused_k[{}]={} makes used; pass the pages of all keys of the sequence",
        i + 1, offsets[i + 1], i, offsets[i], needed, p.page_size, i, used);
  const std::int32_t* pages = pages_of(args.paged, sequence_of(p, args, i), i);
  for (std::int64_t j = 0; j < needed; ++j) {
    if (pages[j] >= 0 && pages[j] < p.num_pages) continue;
    const std::string entry =
        offsets == nullptr ? format_text("{}, {}", i, j) : format_text("{}", offsets[i] + j);
    return invalid_argument(
        "block_table[{}]={}: must be 0 to {}, a page of k and v, because seqused_k[{}]={} uses it; "
        "pass the page that holds keys {} and the next",
        entry, pages[j], p.num_pages - 1, i, used, j * p.page_size);
  }
  return std::nullopt;
}

// seqused_k and the pages of those keys.
Status check_used_keys(const Problem& p, const AttentionArgs& args) {
  if (args.paged.page_indptr != nullptr) HEADRACE_TRY(check_page_indptr(p, args.paged));
  for (std::int64_t i = 0; i < p.batch; ++i) {
    const std::int64_t used = args.paged.seqused_k[i * args.paged.seqused_stride];
    const std::int64_t rows = has_ragged_keys(p) ? args.ragged.cu_seqlens_k[i + 1] -
                                                       std::int64_t{args.ragged.cu_seqlens_k[i]}
                                                 : p.seqlen_k;
    if (used < 0 || used > rows)
      return invalid_argument(
          "seqused_k[{}]={}: must be 0 to {}, the most keys that the sequence can have; pass the "
          "number of its keys",
          i, used, rows);
    if (has_pages(p)) HEADRACE_TRY(check_used_pages(p, args, i, used));
  }
  return std::nullopt;
}

// The entries of recent_table that queries use.
Status check_recent_pages(const Problem& p, const AttentionArgs& args) {
  for (std::int64_t i = 0; i < p.batch; ++i) {
    const Sequence sequence = sequence_of(p, args, i);
    if (sequence.seqlen_q == 0 || sequence.seqlen_k == 0) continue;
    const std::int64_t first = first_recent_group(p, sequence);
    const std::int64_t count = (sequence.seqlen_k - 1) / p.recent_group - first + 1;
    if (count > p.max_recent)
      return invalid_argument(
          "recent_table.shape[1]={}: must be at least {}, the groups of the queries of sequence "
          "{}; "
          "pass a wider table",
          p.max_recent, count, i);
    const std::int32_t* pages = args.recent.table + i * args.recent.stride_table;
    for (std::int64_t j = 0; j < count; ++j)
      if (pages[j] < 0 || pages[j] >= p.num_recent_pages)
        return invalid_argument(
            "recent_table[{}, {}]={}: must be 0 to {}, a page of k_recent; pass the page of group "
            "{}",
            i, j, pages[j], p.num_recent_pages - 1, first + j);
  }
  return std::nullopt;
}

}  // namespace

AttentionArgs make_args(const Problem& p, const headrace_attention_tensors& t,
                        const headrace_attention_options& options) {
  AttentionArgs args;
  args.q = make_operand(t.q);
  args.k = make_operand(t.k);
  args.v = make_operand(t.v);
  args.out = make_operand(t.out);
  args.lse = make_lse(p, t.lse);
  if (p.is_ragged) {
    args.ragged = {.cu_seqlens_q = static_cast<const std::int32_t*>(t.cu_seqlens_q.data),
                   .cu_seqlens_k = static_cast<const std::int32_t*>(t.cu_seqlens_k.data)};
  }
  if (has_pages(p)) {
    args.paged.block_table = static_cast<const std::int32_t*>(t.block_table.data);
    if (is_given(t.page_indptr))
      add_page_indptr(t, args.paged);
    else
      args.paged.stride_batch = stride_of(t.block_table, 0);
  }
  if (p.has_seqused_k) {
    args.paged.seqused_k = static_cast<const std::int32_t*>(t.seqused_k.data);
    args.paged.seqused_stride = stride_of(t.seqused_k, 0);
  }
  if (t.quantised != nullptr) {
    const headrace_quantised_kv& x = *t.quantised;
    args.k_scale = make_scale(x.k_scale, p.k_scaling);
    args.v_scale = make_scale(x.v_scale, p.v_scaling);
    if (has_recent(p))
      args.recent = {.k = make_operand(x.k_recent),
                     .v = make_operand(x.v_recent),
                     .table = static_cast<const std::int32_t*>(x.recent_table.data),
                     .stride_table = stride_of(x.recent_table, 0)};
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
  args.gradients = {.dout = make_operand(g.dout),
                    .dq = make_operand(g.dq),
                    .dk = make_operand(g.dk),
                    .dv = make_operand(g.dv),
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
  if (!has_device_lengths(p)) return std::nullopt;
  if (p.is_ragged)
    HEADRACE_TRY(check_lengths("q", args.ragged.cu_seqlens_q, p.batch, p.total_q, p.seqlen_q));
  if (has_ragged_keys(p))
    HEADRACE_TRY(check_lengths("k", args.ragged.cu_seqlens_k, p.batch, p.total_k, p.seqlen_k));
  if (p.has_seqused_k) HEADRACE_TRY(check_used_keys(p, args));
  if (has_recent(p)) HEADRACE_TRY(check_recent_pages(p, args));
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
