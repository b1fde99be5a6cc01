// Validates the tensors and options of SparQ attention and turns them into backend arguments.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/tensor_checks.h"
#include "attention/validate.h"
#include "base/math.h"
#include "ops/operand_checks.h"
#include "ops/sparq.h"
#include "ops/sparq_checks.h"

namespace headrace {
namespace {

static_assert(kMaxSparqDim == kMaxHeadDim);
constexpr std::int64_t kMaxLength = INT32_MAX;  // of a sequence

constexpr const char* kQuery = "[batch, num_heads, head_dim]";
constexpr const char* kDenseKeys = "[batch, seqlen_k, num_kv_heads, head_dim]";
constexpr const char* kPages = "[num_pages, page_size, num_kv_heads, head_dim]";
constexpr const char* kDenseComponents = "[batch, num_kv_heads, head_dim, seqlen_k]";
constexpr const char* kPagedComponents = "[num_pages, num_kv_heads, head_dim, page_size]";

using Tensors = headrace_sparq_tensors;

// The axes of a call. Those of keys are pages or sequences.
struct Sizes {
  Axis batch, heads, kv_heads, dim, dim_v, pages, slots;
};

Status check_given(const Tensors& t) {
  const bool is_paged = is_given(t.block_table);
  const struct {
    NamedTensor x;
    int rank;
    const char* layout;
  } required[] = {
      {{"q", &t.q}, 3, kQuery},
      {{"k", &t.k}, 4, is_paged ? kPages : kDenseKeys},
      {{"k_components", &t.k_components}, 4, is_paged ? kPagedComponents : kDenseComponents},
      {{"v", &t.v}, 4, is_paged ? kPages : kDenseKeys},
      {{"out", &t.out}, 3, kQuery}};
  for (const auto& [x, rank, layout] : required) {
    if (!is_given(*x.view))
      return invalid_argument(
          "{}: not given; q, k, k_components, v and out are required; pass {} as {}", x.name,
          x.name, layout);
    HEADRACE_TRY(check_view(x.name, *x.view, rank, layout));
    HEADRACE_TRY(check_same_device(x, {"q", &t.q}));
    const bool may_be_codes = x.view == &t.k || x.view == &t.v;
    if (may_be_codes && is_code(static_cast<DType>(x.view->dtype))) continue;
    HEADRACE_TRY(check_activation_dtype(x));
    HEADRACE_TRY(
        check_sparq_dtype(x, static_cast<DType>(t.q.dtype),
                          may_be_codes ? ", as q, or one of a quantised KV cache" : ", as q"));
  }
  return std::nullopt;
}

Sizes sizes_of(const Tensors& t) {
  const bool is_paged = is_given(t.block_table);
  const Axis batch{"batch", t.q.shape[0], "q"};
  return {.batch = batch,
          .heads = {"num_heads", t.q.shape[1], "q"},
          .kv_heads = {"num_kv_heads", t.k.shape[2], "k"},
          .dim = {"head_dim", t.q.shape[2], "q"},
          .dim_v = {"head_dim_v", elements_of(static_cast<DType>(t.v.dtype), t.v.shape[3]), "v"},
          .pages = is_paged ? Axis{"num_pages", t.k.shape[0], "k"} : batch,
          .slots = {is_paged ? "page_size" : "seqlen_k", t.k.shape[1], "k"}};
}

Status check_operands(const Tensors& t, const Sizes& s) {
  const auto stored = [](Axis dim, const headrace_tensor& x) {
    const auto dtype = static_cast<DType>(x.dtype);
    if (codes_per_byte(dtype) > 1) dim.name = "bytes of head_dim";
    dim.size = stored_size(dtype, dim.size);
    return dim;
  };
  if (const auto dtype = static_cast<DType>(t.k.dtype); s.dim.size % codes_per_byte(dtype) != 0)
    return invalid_argument(
        "q.shape[2]={}: head_dim must be a multiple of {}, the codes of k in a byte; pass such a "
        "q, or a k of another dtype",
        s.dim.size, codes_per_byte(dtype));
  const Axis of_k[] = {s.pages, s.slots, s.kv_heads, stored(s.dim, t.k)};
  const Axis of_v[] = {s.pages, s.slots, s.kv_heads, stored(s.dim_v, t.v)};
  const Axis of_components[] = {s.pages, s.kv_heads, s.dim, s.slots};
  const Axis of_out[] = {s.batch, s.heads, s.dim_v};
  HEADRACE_TRY(check_shape("k", t.k, of_k));
  HEADRACE_TRY(check_shape("v", t.v, of_v));
  HEADRACE_TRY(check_shape("k_components", t.k_components, of_components));
  HEADRACE_TRY(check_shape("out", t.out, of_out));
  HEADRACE_TRY(check_inner_stride("q", t.q, "head_dim"));
  HEADRACE_TRY(check_inner_stride("k", t.k, "head_dim"));
  HEADRACE_TRY(check_inner_stride("k_components", t.k_components, s.slots.name));
  HEADRACE_TRY(check_inner_stride("v", t.v, "head_dim_v"));
  return check_inner_stride("out", t.out, "head_dim_v");
}

Status check_sizes(const Sizes& s) {
  for (const Axis& dim : {s.dim, s.dim_v})
    if (dim.size < 1 || dim.size > kMaxHeadDim)
      return invalid_argument(
          "{}={}: must be 1 to {}, the head dims supported; pass {} with such a head", dim.name,
          dim.size, kMaxHeadDim, dim.from);
  if (s.slots.size < 1 && std::string_view(s.slots.name) == "page_size")
    return invalid_argument("k.shape[1]={}: the page size must be at least 1; pass k and v as {}",
                            s.slots.size, kPages);
  if (s.slots.size > kMaxLength)
    return invalid_argument("k.shape[1]={}: must be at most {}; split the keys", s.slots.size,
                            kMaxLength);
  if (s.heads.size < 1 || s.kv_heads.size < 1 || s.heads.size % s.kv_heads.size != 0)
    return invalid_argument(
        "q.shape[1]={}: num_heads must be a multiple of num_kv_heads={}, and both at least 1; pass "
        "a k whose heads divide those of q",
        s.heads.size, s.kv_heads.size);
  return std::nullopt;
}

Status check_lengths_given(const Tensors& t, const Sizes& s) {
  const bool is_paged = is_given(t.block_table);
  if (is_given(t.seqused_k)) {
    const Axis layout[] = {s.batch};
    HEADRACE_TRY(check_sparq_list({"seqused_k", &t.seqused_k}, DType::i32, layout, {"q", &t.q}));
  } else if (is_paged) {
    return invalid_argument(
        "seqused_k: not given, but block_table is; pass i32 [batch], the keys of each sequence");
  }
  if (!is_paged) return std::nullopt;
  HEADRACE_TRY(check_view("block_table", t.block_table, 2, "i32 [batch, max_pages]"));
  const Axis layout[] = {s.batch, {"max_pages", t.block_table.shape[1], "block_table"}};
  HEADRACE_TRY(check_sparq_list({"block_table", &t.block_table}, DType::i32, layout, {"q", &t.q}));
  return check_inner_stride("block_table", t.block_table, "max_pages");
}

Status check_options(const Tensors& t, const headrace_sparq_options& o, const Sizes& s) {
  if (o.num_components < 1 || o.num_components > s.dim.size)
    return invalid_argument(
        "num_components={}: must be 1 to head_dim={}; pass head_dim / 4 or so, the paper's r",
        o.num_components, s.dim.size);
  if (o.num_keys < 1)
    return invalid_argument("num_keys={}: must be at least 1; pass 128 or so, the paper's k",
                            o.num_keys);
  if (o.local_window < 0)
    return invalid_argument(
        "local_window={}: must not be negative; pass num_keys / 4 or so, the paper's l",
        o.local_window);
  if (!std::isnan(o.softmax_scale) && !std::isfinite(static_cast<float>(o.softmax_scale)))
    return invalid_argument(
        "softmax_scale={}: must be finite as f32, or NaN for head_dim^-0.5; pass NaN",
        o.softmax_scale);
  if (o.max_seqlen_k < 0 || (o.max_seqlen_k > 0 && !is_given(t.block_table)))
    return invalid_argument(
        "max_seqlen_k={}: must be 0, or with block_table the most keys of a sequence; pass 0",
        o.max_seqlen_k);
  return std::nullopt;
}

Status check_optional(const Tensors& t, const headrace_sparq_options& o, const Sizes& s) {
  const NamedTensor q{"q", &t.q};
  if (is_given(t.v_sum)) {
    const Axis layout[] = {s.batch, s.kv_heads, s.dim_v};
    HEADRACE_TRY(check_sparq_list({"v_sum", &t.v_sum}, DType::f32, layout, q));
    HEADRACE_TRY(check_inner_stride("v_sum", t.v_sum, "head_dim_v"));
  }
  if (is_given(t.indices)) {
    const Axis layout[] = {s.batch, s.kv_heads, {"num_keys", o.num_keys, "options"}};
    HEADRACE_TRY(check_sparq_list({"indices", &t.indices}, DType::i32, layout, q));
  }
  if (!is_given(t.alpha)) return std::nullopt;
  const Axis layout[] = {s.batch, s.heads};
  return check_sparq_list({"alpha", &t.alpha}, DType::f32, layout, q);
}

// ---- codes ----

bool has_codes(const Tensors& t) {
  return t.quantised != nullptr || is_code(static_cast<DType>(t.k.dtype)) ||
         is_code(static_cast<DType>(t.v.dtype));
}

// [batch, num_heads, dim] as [batch, 1, num_heads, dim]
headrace_tensor with_seqlen_q(const headrace_tensor& x) {
  headrace_tensor y = x;
  y.rank = 4;
  for (int i = 3; i > 1; --i) y.shape[i] = x.shape[i - 1], y.strides[i] = x.strides[i - 1];
  y.shape[1] = 1;
  y.strides[1] = 0;
  return y;
}

// The rules of quantised keys are those of dense attention, which would read the same ones.
Status read_codes(const Tensors& t, const headrace_sparq_options& o, SparqArgs& args) {
  headrace_attention_tensors dense{};
  dense.struct_size = sizeof dense;
  dense.q = with_seqlen_q(t.q);
  dense.k = t.k;
  dense.v = t.v;
  dense.out = with_seqlen_q(t.out);
  dense.block_table = t.block_table;
  dense.seqused_k = t.seqused_k;
  dense.quantised = t.quantised;
  headrace_attention_options options = default_options();
  options.softmax_scale = o.softmax_scale;
  options.max_seqlen_k = o.max_seqlen_k;
  Result<Problem> problem = validate(dense, options);
  if (!problem.ok()) return std::move(problem.failure());
  args.has_codes = true;
  args.problem = problem.value();
  args.dense = make_args(args.problem, dense, options);
  return std::nullopt;
}

// An output overlaps neither itself nor another tensor.
Status check_overlaps(const Tensors& t) {
  const headrace_quantised_kv none{};
  const headrace_quantised_kv& x = t.quantised == nullptr ? none : *t.quantised;
  const NamedTensor all[] = {{"out", &t.out},
                             {"indices", &t.indices},
                             {"alpha", &t.alpha},
                             {"q", &t.q},
                             {"k", &t.k},
                             {"k_components", &t.k_components},
                             {"v", &t.v},
                             {"v_sum", &t.v_sum},
                             {"block_table", &t.block_table},
                             {"seqused_k", &t.seqused_k},
                             {"k_scale", &x.k_scale},
                             {"v_scale", &x.v_scale},
                             {"k_recent", &x.k_recent},
                             {"v_recent", &x.v_recent},
                             {"recent_table", &x.recent_table}};
  for (std::size_t i = 0; i < 3; ++i) {
    if (!is_given(*all[i].view)) continue;
    HEADRACE_TRY(check_within(all[i]));
    for (std::size_t j = i + 1; j < std::size(all); ++j)
      HEADRACE_TRY(check_overlap(all[i], all[j], false));
  }
  return std::nullopt;
}

// ---- arguments ----

std::int64_t bound_of_lengths(const Tensors& t, const headrace_sparq_options& o) {
  if (!is_given(t.block_table)) return t.k.shape[1];
  const std::int64_t slots =
      std::min(saturating_product({t.block_table.shape[1], t.k.shape[1]}), kMaxLength);
  return o.max_seqlen_k == 0 ? slots : std::min(slots, o.max_seqlen_k);
}

void add_optional(const Tensors& t, SparqArgs& args) {
  args.v_sum = sparq_rows(t.v_sum);
  if (is_given(t.indices)) {
    args.indices = static_cast<std::int32_t*>(t.indices.data);
    args.num_indices = t.indices.shape[2];
    args.indices_stride_batch = sparq_stride(t.indices, 0);
    args.indices_stride_head = sparq_stride(t.indices, 1);
    args.indices_stride_key = sparq_stride(t.indices, 2);
  }
  if (is_given(t.alpha)) {
    args.alpha = static_cast<float*>(t.alpha.data);
    args.alpha_stride_batch = sparq_stride(t.alpha, 0);
    args.alpha_stride_head = sparq_stride(t.alpha, 1);
  }
  if (is_given(t.seqused_k)) {
    args.paged.seqused_k = static_cast<const std::int32_t*>(t.seqused_k.data);
    args.paged.seqused_stride = sparq_stride(t.seqused_k, 0);
  }
  if (is_given(t.block_table)) {
    args.paged.block_table = static_cast<const std::int32_t*>(t.block_table.data);
    args.paged.stride_batch = sparq_stride(t.block_table, 0);
  }
}

SparqArgs make_sparq_args(const Tensors& t, const headrace_sparq_options& o, const Sizes& s) {
  SparqArgs args;
  args.batch = s.batch.size;
  args.num_heads = s.heads.size;
  args.num_kv_heads = s.kv_heads.size;
  args.head_dim = s.dim.size;
  args.head_dim_v = s.dim_v.size;
  args.seqlen_k = bound_of_lengths(t, o);
  args.page_size = std::max<std::int64_t>(s.slots.size, 1);
  args.num_pages = s.pages.size;
  args.num_components = o.num_components;
  args.num_keys = std::clamp<std::int64_t>(o.num_keys, 1, std::max<std::int64_t>(args.seqlen_k, 1));
  args.local_window = std::min(o.local_window, args.num_keys);
  args.softmax_scale = std::isnan(o.softmax_scale)
                           ? static_cast<float>(1 / std::sqrt(static_cast<double>(args.head_dim)))
                           : static_cast<float>(o.softmax_scale);
  args.dtype = static_cast<DType>(t.q.dtype);
  args.q = sparq_rows(t.q);
  args.out = sparq_rows(t.out);
  args.k = sparq_pages(t.k);
  args.v = sparq_pages(t.v);
  args.components = sparq_components(t.k_components);
  add_optional(t, args);
  return args;
}

}  // namespace

headrace_sparq_options default_sparq_options() {
  return {.struct_size = sizeof(headrace_sparq_options),
          .softmax_scale = std::numeric_limits<double>::quiet_NaN(),
          .num_components = 0,
          .num_keys = 0,
          .local_window = 0,
          .max_seqlen_k = 0};
}

Result<SparqArgs> validate_sparq(const headrace_sparq_tensors& t,
                                 const headrace_sparq_options& options) {
  if (auto bad = check_given(t)) return std::move(*bad);
  const Sizes sizes = sizes_of(t);
  if (auto bad = check_operands(t, sizes)) return std::move(*bad);
  if (auto bad = check_sizes(sizes)) return std::move(*bad);
  if (auto bad = check_lengths_given(t, sizes)) return std::move(*bad);
  if (auto bad = check_options(t, options, sizes)) return std::move(*bad);
  if (auto bad = check_optional(t, options, sizes)) return std::move(*bad);
  if (auto bad = check_overlaps(t)) return std::move(*bad);
  SparqArgs args = make_sparq_args(t, options, sizes);
  if (!has_codes(t)) return args;
  if (auto bad = read_codes(t, options, args)) return std::move(*bad);
  return args;
}

Status check_sparq_lengths(const SparqArgs& args) {
  if (args.has_codes) return validate_lengths(args.problem, args.dense);
  if (args.paged.seqused_k == nullptr) return std::nullopt;
  Problem p = default_problem();
  p.batch = args.batch;
  p.seqlen_k = args.seqlen_k;
  p.has_seqused_k = 1;
  if (args.paged.block_table != nullptr) {
    p.page_size = args.page_size;
    p.num_pages = args.num_pages;
  }
  AttentionArgs lengths;
  lengths.paged = args.paged;
  return validate_lengths(p, lengths);
}

}  // namespace headrace
