#include "attention/validate.h"

#include <algorithm>
#include <array>

#include "attention/overlap.h"
#include "attention/validate_parts.h"
#include "base/math.h"

namespace headrace {
namespace {

using Tensors = headrace_attention_tensors;
using Options = headrace_attention_options;

constexpr const char* kDense = "[batch, seqlen_q or seqlen_k, heads, dim]";
constexpr const char* kRagged = "[total, heads, dim] (cu_seqlens_q and cu_seqlens_k are given)";
constexpr const char* kDenseHint =
    "[batch, seqlen, heads, dim], or pass cu_seqlens_q and cu_seqlens_k for a ragged batch";
constexpr const char* kPages = "[num_pages, page_size, num_kv_heads, dim] (block_table is given)";

constexpr std::int64_t kMaxSequences = INT32_MAX;
constexpr std::int64_t kMaxLength = INT32_MAX;  // of a sequence

// Of q and out, and of k and v.
enum class RowLayout { dense, ragged, pages };

// Checked first: cu_seqlens determine the rank of all other tensors. Keys in pages have none.
Status check_cu_seqlens(const Tensors& t, const Options& options, Problem& p) {
  const bool is_paged = is_given(t.block_table);
  p.is_ragged = is_given(t.cu_seqlens_q) || is_given(t.cu_seqlens_k);
  if (!p.is_ragged) return std::nullopt;
  if (is_paged && is_given(t.cu_seqlens_k))
    return invalid_argument(
        "cu_seqlens_k: given with block_table, but keys in pages are not packed; pass their number "
        "in seqused_k and leave cu_seqlens_k out");
  for (const auto& [name, tensor] : {NamedTensor{"cu_seqlens_q", &t.cu_seqlens_q},
                                     NamedTensor{"cu_seqlens_k", &t.cu_seqlens_k}}) {
    const headrace_tensor& view = *tensor;
    if (is_paged && tensor == &t.cu_seqlens_k) continue;
    if (!is_given(view))
      return invalid_argument(
          "{}: not given, but the other one is; a ragged batch needs cu_seqlens_q and "
          "cu_seqlens_k; pass both or neither",
          name);
    HEADRACE_TRY(check_view(name, view, 1, "i32 [batch + 1]"));
    HEADRACE_TRY(check_dtype(name, view, DType::i32, ""));
    if (view.shape[0] < 1 || view.shape[0] > kMaxSequences + 1)
      return invalid_argument(
          "{}.shape[0]={}: must be batch + 1, at most {}; pass one prefix sum per sequence, or [0] "
          "for an empty batch",
          name, view.shape[0], kMaxSequences + 1);
    HEADRACE_TRY(check_inner_stride(name, view, "it"));
  }
  p.batch = t.cu_seqlens_q.shape[0] - 1;
  const Axis axis{"batch + 1", p.batch + 1, "cu_seqlens_q"};
  if (!is_paged) HEADRACE_TRY(check_shape("cu_seqlens_k", t.cu_seqlens_k, {&axis, 1}));
  p.seqlen_q = options.max_seqlen_q;
  p.seqlen_k = options.max_seqlen_k;
  return std::nullopt;
}

Status check_operand_view(const NamedTensor& x, RowLayout layout, std::int32_t dtype,
                          const char* required) {
  const auto& [name, tensor] = x;
  const bool is_ragged = layout == RowLayout::ragged;
  const char* text = layout == RowLayout::pages ? kPages : is_ragged ? kRagged : kDense;
  if (!is_given(*tensor))
    return invalid_argument("{}: not given; {} are required; pass {} as {}", name, required, name,
                            text);
  HEADRACE_TRY(
      check_view(name, *tensor, is_ragged ? 3 : 4, layout == RowLayout::dense ? kDenseHint : text));
  if (tensor->dtype == dtype) return std::nullopt;
  const bool may_be_code = name[1] == '\0' && (name[0] == 'k' || name[0] == 'v');
  if (may_be_code && is_code(type_of(*tensor))) return std::nullopt;
  return invalid_argument("{}.dtype={}: must equal q.dtype={}{}; convert {}", name,
                          dtype_name(type_of(*tensor)), dtype_name(static_cast<DType>(dtype)),
                          may_be_code ? format_text(", or be {} (codes)", kCodeNames) : "", name);
}

Status check_operand_shape(const NamedTensor& x, const Problem& p, const OperandShape& shape) {
  const char* from = shape.is_of_q ? "q" : "k";
  if (!shape.is_of_q && has_pages(p)) {
    const Axis layout[] = {
        {"num_pages", p.num_pages, "k"}, {"page_size", p.page_size, "k"}, shape.heads, shape.dim};
    return check_shape(x.name, *x.tensor, layout);
  }
  const std::int64_t total = shape.is_of_q ? p.total_q : p.total_k;
  const std::int64_t seqlen = shape.is_of_q ? p.seqlen_q : p.seqlen_k;
  const Axis rows{p.is_ragged ? (shape.is_of_q ? "total_q" : "total_k")
                              : (shape.is_of_q ? "seqlen_q" : "seqlen_k"),
                  p.is_ragged ? total : seqlen, from};
  const Axis layout[] = {{"batch", p.batch, "q"}, rows, shape.heads, shape.dim};
  // Ragged tensors have no batch axis.
  return check_shape(x.name, *x.tensor, std::span(layout).subspan(p.is_ragged ? 1 : 0));
}

// The most keys and pages of a sequence. With page_indptr the size of the table is no part of a
// plan that has max_seqlen_k.
void read_page_bounds(const Tensors& t, const Options& options, Problem& p) {
  const bool has_indptr = is_given(t.page_indptr);
  p.max_pages = t.block_table.shape[has_indptr ? 0 : 1];
  p.seqlen_k = std::min(saturating_product({p.max_pages, p.page_size}), kMaxLength);
  if (options.max_seqlen_k != 0)
    p.seqlen_k = has_indptr ? options.max_seqlen_k : std::min(p.seqlen_k, options.max_seqlen_k);
  if (has_indptr) p.max_pages = ceil_div(p.seqlen_k, p.page_size);
}

void read_sizes(const Tensors& t, const Options& options, Problem& p) {
  if (p.is_ragged) {
    p.total_q = t.q.shape[0];
  } else {
    p.batch = t.q.shape[0];
    p.seqlen_q = t.q.shape[1];
  }
  if (is_given(t.block_table)) {
    p.num_pages = t.k.shape[0];
    p.page_size = t.k.shape[1];
    read_page_bounds(t, options, p);
  } else if (p.is_ragged) {
    p.total_k = t.k.shape[0];
  } else {
    p.seqlen_k = t.k.shape[1];
  }
  p.num_heads = t.q.shape[t.q.rank - 2];
  p.num_kv_heads = t.k.shape[t.k.rank - 2];
  p.head_dim = t.q.shape[t.q.rank - 1];
  p.head_dim_v = elements_of(type_of(t.v), t.v.shape[t.v.rank - 1]);
  p.dtype = t.q.dtype;
  p.k_dtype = t.k.dtype;
  p.v_dtype = t.v.dtype;
}

// q, k, v, out. q, k and v define the sizes; the others must match.
Status check_operands(const Tensors& t, const Options& options, Problem& p) {
  const NamedTensor q{"q", &t.q}, k{"k", &t.k}, v{"v", &t.v}, out{"out", &t.out};
  const RowLayout rows = p.is_ragged ? RowLayout::ragged : RowLayout::dense;
  const RowLayout keys = is_given(t.block_table) ? RowLayout::pages : rows;
  for (const auto& [x, layout] : {std::pair{q, rows}, {k, keys}, {v, keys}, {out, rows}})
    HEADRACE_TRY(check_operand_view(x, layout, t.q.dtype, "q, k, v and out"));
  if (is_given(t.block_table) && t.k.shape[1] < 1)
    return invalid_argument("k.shape[1]={}: the page size must be at least 1; pass k and v as {}",
                            t.k.shape[1], kPages);
  read_sizes(t, options, p);
  const Axis heads{"num_heads", p.num_heads, "q"};
  const Axis kv_heads{"num_kv_heads", p.num_kv_heads, "k"};
  const Axis dim_v{"head_dim_v", p.head_dim_v, "v"};
  const std::int64_t per_byte = codes_per_byte(k_dtype_of(p));
  const Axis k_dim{per_byte == 1   ? "head_dim"
                   : per_byte == 2 ? "head_dim / 2"
                                   : "head_dim / 4",
                   stored_size(k_dtype_of(p), p.head_dim), "q"};
  const Axis v_dim{"head_dim_v", t.v.shape[t.v.rank - 1], "v"};
  HEADRACE_TRY(check_operand_shape(k, p, {false, kv_heads, k_dim}));
  HEADRACE_TRY(check_operand_shape(v, p, {false, kv_heads, v_dim}));
  HEADRACE_TRY(check_operand_shape(out, p, {true, heads, dim_v}));
  HEADRACE_TRY(check_inner_stride("q", t.q, "head_dim"));
  HEADRACE_TRY(check_inner_stride("k", t.k, "head_dim"));
  HEADRACE_TRY(check_inner_stride("v", t.v, "head_dim_v"));
  return check_inner_stride("out", t.out, "head_dim_v");
}

// Their shapes come behind those of q, k and v.
Status check_used_keys(const Tensors& t, Problem& p) {
  const Axis batch{"batch", p.batch, "q"};
  p.has_seqused_k = is_given(t.seqused_k);
  if (p.has_seqused_k) {
    HEADRACE_TRY(check_view("seqused_k", t.seqused_k, 1, "i32 [batch]"));
    HEADRACE_TRY(check_dtype("seqused_k", t.seqused_k, DType::i32, ""));
    HEADRACE_TRY(check_shape("seqused_k", t.seqused_k, {&batch, 1}));
  }
  if (!has_pages(p)) return std::nullopt;
  if (!p.has_seqused_k)
    return invalid_argument(
        "seqused_k: not given, but block_table is; pass i32 [batch], the keys of each sequence");
  if (is_given(t.page_indptr)) {
    const Axis offsets{"batch + 1", p.batch + 1, "q"};
    return check_shape("page_indptr", t.page_indptr, {&offsets, 1});
  }
  const Axis layout[] = {batch, {"max_pages", p.max_pages, "block_table"}};
  return check_shape("block_table", t.block_table, layout);
}

// Before q, k and v, whose layout it determines.
Status check_block_table(const Tensors& t) {
  const bool has_indptr = is_given(t.page_indptr);
  if (!is_given(t.block_table)) {
    if (!has_indptr) return std::nullopt;
    return invalid_argument(
        "page_indptr: given without block_table, whose entries it divides among the sequences; "
        "pass the pages of all sequences in block_table, i32 [num_entries], or leave page_indptr "
        "out");
  }
  HEADRACE_TRY(check_view("block_table", t.block_table, has_indptr ? 1 : 2,
                          has_indptr
                              ? "i32 [num_entries] (page_indptr is given)"
                              : "i32 [batch, max_pages], or [num_entries] with page_indptr"));
  HEADRACE_TRY(check_dtype("block_table", t.block_table, DType::i32, ""));
  HEADRACE_TRY(
      check_inner_stride("block_table", t.block_table, has_indptr ? "num_entries" : "max_pages"));
  if (!has_indptr) return std::nullopt;
  HEADRACE_TRY(check_view("page_indptr", t.page_indptr, 1, "i32 [batch + 1]"));
  HEADRACE_TRY(check_dtype("page_indptr", t.page_indptr, DType::i32, ""));
  return check_inner_stride("page_indptr", t.page_indptr, "batch + 1");
}

// lse and probs: f32; f64 for f64 inputs.
Status check_result_dtype(const char* name, const headrace_tensor& tensor, const Problem& p) {
  const bool is_f64 = dtype_of(p) == DType::f64;
  return check_dtype(name, tensor, is_f64 ? DType::f64 : DType::f32,
                     is_f64 ? " (q is f64)" : " (f64 if q is f64)");
}

Status check_probs(const Tensors& t, Problem& p) {
  p.has_probs = is_given(t.probs);
  if (!p.has_probs || p.is_ragged) return std::nullopt;  // ragged: check_problem() refuses it
  const Axis layout[] = {{"batch", p.batch, "q"},
                         {"num_heads", p.num_heads, "q"},
                         {"seqlen_q", p.seqlen_q, "q"},
                         {"seqlen_k", p.seqlen_k, "k"}};
  HEADRACE_TRY(check_view("probs", t.probs, 4, "[batch, num_heads, seqlen_q, seqlen_k]"));
  HEADRACE_TRY(check_result_dtype("probs", t.probs, p));
  return check_shape("probs", t.probs, layout);
}

Status check_scores_shape(const char* name, const headrace_tensor& view, const Problem& p) {
  const Axis dense[] = {{"batch", p.batch, "q", true},
                        {"num_heads", p.num_heads, "q", true},
                        {"seqlen_q", p.seqlen_q, "q", true},
                        {"seqlen_k", p.seqlen_k, "k", true}};
  const Axis ragged[] = {{"num_heads", p.num_heads, "q", true},
                         {"total_q", p.total_q, "q", true},
                         {"max_seqlen_k", p.seqlen_k, "options", true}};
  HEADRACE_TRY(check_view(name, view, p.is_ragged ? 3 : 4,
                          p.is_ragged
                              ? "[num_heads, total_q, max_seqlen_k]"
                              : "[batch, num_heads, seqlen_q, seqlen_k] (any axis may be 1)"));
  return p.is_ragged ? check_shape(name, view, ragged) : check_shape(name, view, dense);
}

Status check_bias_and_mask(const Tensors& t, Problem& p) {
  if (is_given(t.bias)) {
    p.bias_dtype = t.bias.dtype;  // check_problem() checks it
    HEADRACE_TRY(check_scores_shape("bias", t.bias, p));
  }
  p.has_mask = is_given(t.mask);
  if (!p.has_mask) return std::nullopt;
  HEADRACE_TRY(check_scores_shape("mask", t.mask, p));
  return check_dtype("mask", t.mask, DType::boolean, " (true = keep)");
}

Status check_tree_mask(const Tensors& t, Problem& p) {
  p.has_tree_mask = is_given(t.tree_mask);
  if (!p.has_tree_mask) return std::nullopt;
  HEADRACE_TRY(check_view("tree_mask", t.tree_mask, p.is_ragged ? 2 : 3,
                          p.is_ragged ? "u32 [total_q, words]" : "u32 [batch, seqlen_q, words]"));
  HEADRACE_TRY(check_dtype("tree_mask", t.tree_mask, DType::u32, ""));
  const Axis layout[] = {
      {"batch", p.batch, "q"},
      p.is_ragged ? Axis{"total_q", p.total_q, "q"} : Axis{"seqlen_q", p.seqlen_q, "q"}};
  HEADRACE_TRY(
      check_shape("tree_mask", t.tree_mask, std::span(layout).subspan(p.is_ragged ? 1 : 0)));
  const int last = t.tree_mask.rank - 1;
  const std::int64_t words = t.tree_mask.shape[last];
  const std::int64_t needed = p.seqlen_q / 32 + (p.seqlen_q % 32 > 0);
  if (words < needed)
    return invalid_argument(
        "tree_mask.shape[{}]={}: must be at least ceil({} / 32)={} words for {}={}; pass one bit "
        "per "
        "query",
        last, words, p.is_ragged ? "max_seqlen_q" : "seqlen_q", needed,
        p.is_ragged ? "max_seqlen_q" : "seqlen_q", p.seqlen_q);
  return check_inner_stride("tree_mask", t.tree_mask, "words");
}

Status check_per_head(const Tensors& t, Problem& p) {
  const Axis layout[] = {{"batch", p.batch, "q"}, {"num_heads", p.num_heads, "q"}};
  p.has_alibi = is_given(t.alibi_slopes);
  if (p.has_alibi) {
    const bool per_batch = t.alibi_slopes.rank == 2;
    constexpr const char* kLayout = "f32 [num_heads] or [batch, num_heads]";
    if (!per_batch && t.alibi_slopes.rank != 1)
      return invalid_argument("alibi_slopes.rank={}: must be 1 or 2; pass alibi_slopes as {}",
                              t.alibi_slopes.rank, kLayout);
    HEADRACE_TRY(check_view("alibi_slopes", t.alibi_slopes, per_batch ? 2 : 1, kLayout));
    HEADRACE_TRY(check_dtype("alibi_slopes", t.alibi_slopes, DType::f32, ""));
    HEADRACE_TRY(
        check_shape("alibi_slopes", t.alibi_slopes, std::span(layout).subspan(per_batch ? 0 : 1)));
  }
  p.has_sinks = is_given(t.sinks);
  if (!p.has_sinks) return std::nullopt;
  HEADRACE_TRY(check_view("sinks", t.sinks, 1, "f32 [num_heads]"));
  HEADRACE_TRY(check_dtype("sinks", t.sinks, DType::f32, ""));
  return check_shape("sinks", t.sinks, std::span(layout).subspan(1));
}

Failure overlap_failure(const char* output, const char* other, Overlap overlap) {
  return invalid_argument(
      "{} {} {}: an output must share no memory with {}; write {} to memory of its own", output,
      overlap == Overlap::certain ? "overlaps" : "may overlap", other,
      std::string_view(output) == other ? "itself (two indices map to one element)"
                                        : "an input or another output",
      output);
}

void read_options(const Options& options, Problem& p) {
  p.window_left = options.window_left;
  p.window_right = options.window_right;
  p.softmax_scale = options.softmax_scale;
  p.softcap = options.softcap;
  p.dropout_p = options.dropout_p;
  p.causal = options.causal;
  p.num_splits = options.num_splits;
  p.strict_fallback = options.strict_fallback;
  p.strict_rows = options.strict_rows;
  p.checked = options.checked;
  p.deterministic = options.deterministic;
  p.max_shared_prefix = options.max_shared_prefix;
}

}  // namespace

Status check_dtype(const char* name, const headrace_tensor& tensor, DType expected,
                   const char* why) {
  if (type_of(tensor) == expected) return std::nullopt;
  return invalid_argument("{}.dtype={}: must be {}{}; convert {}", name,
                          dtype_name(type_of(tensor)), dtype_name(expected), why, name);
}

Status check_operand(const NamedTensor& x, const Problem& p, const OperandShape& shape) {
  const RowLayout layout = p.is_ragged ? RowLayout::ragged : RowLayout::dense;
  HEADRACE_TRY(check_operand_view(x, layout, p.dtype, "dout, dq, dk and dv"));
  HEADRACE_TRY(check_operand_shape(x, p, shape));
  return check_inner_stride(x.name, *x.tensor, shape.dim.name);
}

Status check_lse(const NamedTensor& x, const Problem& p) {
  const Axis layout[] = {
      {"batch", p.batch, "q"},
      {"num_heads", p.num_heads, "q"},
      p.is_ragged ? Axis{"total_q", p.total_q, "q"} : Axis{"seqlen_q", p.seqlen_q, "q"}};
  const auto axes = std::span(layout).subspan(p.is_ragged ? 1 : 0);
  HEADRACE_TRY(check_view(x.name, *x.tensor, static_cast<int>(axes.size()),
                          p.is_ragged ? "[num_heads, total_q]" : "[batch, num_heads, seqlen_q]"));
  HEADRACE_TRY(check_result_dtype(x.name, *x.tensor, p));
  return check_shape(x.name, *x.tensor, axes);
}

const headrace_quantised_kv& quantised_of(const Tensors& t) {
  static constexpr headrace_quantised_kv kNone{};
  return t.quantised == nullptr ? kNone : *t.quantised;
}

Status check_devices(const headrace_tensor& q, std::span<const NamedTensor> tensors) {
  const auto name_of = [](std::int32_t type) { return type == HEADRACE_CPU ? "cpu" : "cuda"; };
  for (const auto& [name, tensor] : tensors) {
    if (!is_given(*tensor)) continue;
    if (tensor->device_type == q.device_type && tensor->device_id == q.device_id) continue;
    return invalid_argument(
        "{} is on {}:{}: must be on {}:{} like q; copy it there (the library copies no tensors)",
        name, name_of(tensor->device_type), tensor->device_id, name_of(q.device_type), q.device_id);
  }
  return std::nullopt;
}

Status check_overlaps(std::span<const NamedTensor> inputs, std::span<const NamedTensor> outputs) {
  std::array<AddressRange, 20> ranges;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (is_given(*inputs[i].tensor)) ranges[i] = address_range(*inputs[i].tensor);
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    const auto& [name, output] = outputs[o];
    if (!is_given(*output)) continue;
    if (const Overlap found = overlap_within(*output); found != Overlap::none)
      return overlap_failure(name, name, found);
    const AddressRange range = address_range(*output);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!is_given(*inputs[i].tensor)) continue;
      const Overlap found = overlap_between(*output, range, *inputs[i].tensor, ranges[i]);
      if (found != Overlap::none) return overlap_failure(name, inputs[i].name, found);
    }
    for (const auto& [other_name, other] : outputs.first(o)) {
      const Overlap found = overlap_between(*output, range, *other, address_range(*other));
      if (found != Overlap::none) return overlap_failure(name, other_name, found);
    }
  }
  return std::nullopt;
}

void read_layout(std::span<const NamedTensor> operands, Problem& p) {
  std::uintptr_t bits = kWholeAlignment;
  for (const auto& [name, view] : operands) {
    if (!has_elements(*view)) continue;
    bits |= reinterpret_cast<std::uintptr_t>(view->data);
    for (int i = 0; i + 1 < view->rank; ++i) {
      if (view->shape[i] < 2) continue;
      bits |= static_cast<std::uintptr_t>(view->strides[i]) * dtype_bytes(type_of(*view));
      p.has_negative_strides |= view->strides[i] < 0;
    }
  }
  p.alignment = static_cast<std::int32_t>(bits & (~bits + 1));
}

Status read_problem(const Tensors& t, const Options& options, Problem& p) {
  read_options(options, p);
  HEADRACE_TRY(check_block_table(t));
  HEADRACE_TRY(check_cu_seqlens(t, options, p));
  HEADRACE_TRY(check_operands(t, options, p));
  HEADRACE_TRY(check_used_keys(t, p));
  HEADRACE_TRY(check_quantised(t, p));
  p.has_lse = is_given(t.lse);
  if (p.has_lse) HEADRACE_TRY(check_lse({"lse", &t.lse}, p));
  HEADRACE_TRY(check_bias_and_mask(t, p));
  HEADRACE_TRY(check_tree_mask(t, p));
  HEADRACE_TRY(check_per_head(t, p));
  return check_probs(t, p);
}

Result<Problem> validate(const Tensors& t, const Options& options) {
  Result<Problem> result = default_problem();
  Problem& p = result.value();
  if (auto bad = read_problem(t, options, p)) return std::move(*bad);
  const headrace_quantised_kv& q = quantised_of(t);
  const NamedTensor inputs[] = {{"q", &t.q},
                                {"k", &t.k},
                                {"v", &t.v},
                                {"cu_seqlens_q", &t.cu_seqlens_q},
                                {"cu_seqlens_k", &t.cu_seqlens_k},
                                {"block_table", &t.block_table},
                                {"page_indptr", &t.page_indptr},
                                {"seqused_k", &t.seqused_k},
                                {"alibi_slopes", &t.alibi_slopes},
                                {"bias", &t.bias},
                                {"mask", &t.mask},
                                {"tree_mask", &t.tree_mask},
                                {"sinks", &t.sinks},
                                {"k_scale", &q.k_scale},
                                {"v_scale", &q.v_scale},
                                {"k_recent", &q.k_recent},
                                {"v_recent", &q.v_recent},
                                {"recent_table", &q.recent_table}};
  const NamedTensor outputs[] = {{"out", &t.out}, {"lse", &t.lse}, {"probs", &t.probs}};
  constexpr std::size_t kNumPlain = 13;  // inputs without those of `quantised`
  const std::span given =
      std::span(inputs).first(t.quantised == nullptr ? kNumPlain : std::size(inputs));
  read_layout(std::array{inputs[0], inputs[1], inputs[2], outputs[0]}, p);
  if (t.quantised != nullptr) read_layout(std::span(inputs).subspan(kNumPlain + 2, 2), p);
  if (auto bad = check_devices(t.q, given)) return std::move(*bad);
  if (auto bad = check_devices(t.q, outputs)) return std::move(*bad);
  if (auto bad = complete_problem(p)) return std::move(*bad);
  if (auto bad = check_overlaps(given, outputs)) return std::move(*bad);
  return result;
}

}  // namespace headrace
