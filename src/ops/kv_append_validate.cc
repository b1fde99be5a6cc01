// Validates the tensors and options of an append and turns them into backend arguments.
#include <array>
#include <cmath>
#include <span>

#include "attention/tensor_checks.h"
#include "attention/validate.h"
#include "core/hadamard.h"
#include "ops/kv_append.h"
#include "ops/operand_checks.h"
#include "ops/rope_options.h"

namespace headrace {
namespace {

static_assert(kMaxAppendDim == kMaxHeadDim);

// What the first tensor, q or else k, says of all others.
struct Call {
  const headrace_kv_append_tensors& t;
  NamedTensor first;
  std::int64_t num_tokens, head_dim;
};

Status missing(const char* name, const char* given, const char* remedy) {
  return invalid_argument("{}: not given, but {} is; pass {}", name, given, remedy);
}

Status stray(const char* name, const char* absent) {
  return invalid_argument("{}: given without {}; must come with it; pass {} or leave out {}", name,
                          absent, absent, name);
}

// Which tensors are given: q with q_out, k with v, pages and slots, norms with their operand.
Status check_given(const headrace_kv_append_tensors& t) {
  const bool has_q = is_given(t.q), has_k = is_given(t.k);
  const struct {
    const char* name;
    const headrace_tensor& tensor;
    bool is_of_q, is_required;
    const char* shape;
  } parts[] = {
      {"q_out", t.q_out, true, true, "a tensor of the shape of q, or q itself"},
      {"q_norm_weight", t.q_norm_weight, true, false, "[head_dim]"},
      {"v", t.v, false, true, "[num_tokens, num_kv_heads, head_dim_v]"},
      {"k_pages", t.k_pages, false, true, "[num_pages, page_size, num_kv_heads, head_dim]"},
      {"v_pages", t.v_pages, false, true, "[num_pages, page_size, num_kv_heads, head_dim_v]"},
      {"slot_mapping", t.slot_mapping, false, true, "i64 [num_tokens]"},
      {"k_norm_weight", t.k_norm_weight, false, false, "[head_dim]"},
  };
  for (const auto& part : parts) {
    const bool has_owner = part.is_of_q ? has_q : has_k;
    const char* owner = part.is_of_q ? "q" : "k";
    if (is_given(part.tensor) && !has_owner) return stray(part.name, owner);
    if (!is_given(part.tensor) && has_owner && part.is_required)
      return missing(part.name, owner, part.shape);
  }
  if (is_given(t.cos) && !is_given(t.sin)) return missing("sin", "cos", "a tensor like cos");
  if (is_given(t.sin) && !is_given(t.cos)) return missing("cos", "sin", "a tensor like sin");
  if (has_q || has_k) return std::nullopt;
  return invalid_argument(
      "q and k: not given; one of them is required; pass q with q_out, or k and v with their pages "
      "and slot_mapping");
}

constexpr const char* kHeads = "[num_tokens, heads, head_dim]";
constexpr const char* kPages = "[num_pages, page_size, num_kv_heads, head_dim]";
constexpr const char* kWeight = "[head_dim]";
constexpr const char* kScales = "f32 [num_pages, page_size, num_kv_heads] in quantised";
constexpr const char* kFactors = "[num_kv_heads, head_dim]";
constexpr const char* kTable = "[max_positions, rot_dim / 2]";

// `shape`: the layout as text.
Status check_operand(const Call& call, const NamedTensor& tensor, std::span<const Axis> layout,
                     const char* shape) {
  const auto& [name, view] = tensor;
  HEADRACE_TRY(check_view(name, *view, static_cast<int>(layout.size()), shape));
  HEADRACE_TRY(check_activation_dtype(tensor));
  HEADRACE_TRY(check_shape(name, *view, layout));
  HEADRACE_TRY(check_inner_stride(name, *view, layout.back().name));
  return check_same_device(tensor, call.first);
}

Status check_dtype_of(const NamedTensor& tensor, const NamedTensor& like) {
  if (tensor.view->dtype == like.view->dtype) return std::nullopt;
  return invalid_argument("{}.dtype={}: must equal {}.dtype={}; convert {}", tensor.name,
                          dtype_name(static_cast<DType>(tensor.view->dtype)), like.name,
                          dtype_name(static_cast<DType>(like.view->dtype)), tensor.name);
}

// A list of [num_tokens] integers.
Status check_list(const Call& call, const NamedTensor& tensor, DType dtype) {
  const auto& [name, view] = tensor;
  const Axis layout[] = {{"num_tokens", call.num_tokens, call.first.name}};
  HEADRACE_TRY(check_view(name, *view, 1, "[num_tokens]"));
  if (static_cast<DType>(view->dtype) != dtype)
    return invalid_argument("{}.dtype={}: must be {}; convert {}", name,
                            dtype_name(static_cast<DType>(view->dtype)), dtype_name(dtype), name);
  HEADRACE_TRY(check_shape(name, *view, layout));
  return check_same_device(tensor, call.first);
}

Status check_head_dim(const char* name, const headrace_tensor& x) {
  if (x.shape[2] >= 1 && x.shape[2] <= kMaxHeadDim) return std::nullopt;
  return invalid_argument(
      "{}.shape[2]={}: must be 1 to {}, the head dims supported; pass {} as "
      "[num_tokens, heads, head_dim]",
      name, x.shape[2], kMaxHeadDim, name);
}

Status check_q(const Call& call) {
  const headrace_kv_append_tensors& t = call.t;
  if (!is_given(t.q)) return std::nullopt;
  const Axis layout[] = {{"num_tokens", call.num_tokens, "q"},
                         {"num_heads", t.q.shape[1], "q"},
                         {"head_dim", call.head_dim, "q"}};
  return check_operand(call, {"q_out", &t.q_out}, layout, kHeads);
}

// Pages of k or v, of codes or not. An axis of packed codes counts bytes.
Status check_pages(const Call& call, const NamedTensor& pages, std::span<const Axis, 4> layout) {
  const auto dtype = static_cast<DType>(pages.view->dtype);
  if (!is_code(dtype)) return check_operand(call, pages, layout, kPages);
  HEADRACE_TRY(check_view(pages.name, *pages.view, 4, kPages));
  std::array<Axis, 4> of_codes{layout[0], layout[1], layout[2], layout[3]};
  HEADRACE_TRY(check_whole_bytes(pages.name[0] == 'k' ? "k_pages.dtype" : "v_pages.dtype", dtype,
                                 of_codes[3].size));
  of_codes[3].size = stored_size(dtype, of_codes[3].size);
  HEADRACE_TRY(check_shape(pages.name, *pages.view, of_codes));
  HEADRACE_TRY(check_inner_stride(pages.name, *pages.view, of_codes[3].name));
  return check_same_device(pages, call.first);
}

// Scales of pages of codes: f32, or words with zero points. `rows`: of a page; `words`: of a row
// and head.
struct ScaleShape {
  Axis rows, words;
  const char* text;
};
Status check_scales(const Call& call, const NamedTensor& scale, const NamedTensor& pages,
                    const ScaleShape& shape) {
  const auto dtype = static_cast<DType>(pages.view->dtype);
  if (!is_code(dtype) && is_given(*scale.view))
    return invalid_argument("{}: given, but {}.dtype={} has no codes; leave {} out", scale.name,
                            pages.name, dtype_name(dtype), scale.name);
  if (!is_code(dtype)) return std::nullopt;
  const DType wanted = has_zero_points(dtype) ? DType::u32 : DType::f32;
  const Axis layout[] = {{"num_pages", pages.view->shape[0], pages.name},
                         shape.rows,
                         {"num_kv_heads", pages.view->shape[2], pages.name},
                         shape.words};
  const int rank = has_zero_points(dtype) ? 4 : 3;
  if (!is_given(*scale.view)) return missing(scale.name, pages.name, shape.text);
  HEADRACE_TRY(check_view(scale.name, *scale.view, rank, shape.text));
  if (static_cast<DType>(scale.view->dtype) != wanted)
    return invalid_argument("{}.dtype={}: must be {}; pass {} scales", scale.name,
                            dtype_name(static_cast<DType>(scale.view->dtype)), dtype_name(wanted),
                            dtype_name(wanted));
  HEADRACE_TRY(check_shape(scale.name, *scale.view,
                           std::span(layout).first(static_cast<std::size_t>(rank))));
  if (rank == 4) HEADRACE_TRY(check_inner_stride(scale.name, *scale.view, shape.words.name));
  return check_same_device(scale, call.first);
}
ScaleShape scales_of_k(DType dtype, const headrace_tensor& pages, std::int64_t head_dim) {
  if (!has_zero_points(dtype)) return {{"page_size", pages.shape[1], "k_pages"}, {}, kScales};
  return {{"page_size / 32", pages.shape[1] / kZeroPointGroup, "k_pages"},
          {"head_dim", scales_of_key(dtype, head_dim), "k"},
          "u32 [num_pages, page_size / 32, num_kv_heads, head_dim] in quantised"};
}
ScaleShape scales_of_v(DType dtype, const headrace_tensor& pages, std::int64_t head_dim_v) {
  const Axis rows{"page_size", pages.shape[1], "v_pages"};
  if (!has_zero_points(dtype)) return {rows, {}, kScales};
  return {rows,
          {"ceil(head_dim_v / 32)", scales_of_value(dtype, head_dim_v), "v"},
          "u32 [num_pages, page_size, num_kv_heads, ceil(head_dim_v / 32)] in quantised"};
}

// Keys with zero points are quantised in groups, from the recent pages.
Status check_key_groups(const headrace_kv_append_tensors& t, const headrace_quantised_kv& x) {
  const auto dtype = static_cast<DType>(t.k_pages.dtype);
  if (!has_zero_points(dtype)) return std::nullopt;
  if (!is_given(x.k_recent))
    return missing("k_recent", "k_pages of codes with zero points",
                   "k_recent, v_recent and recent_slots: the append that completes 32 keys "
                   "quantises them from there");
  HEADRACE_TRY(check_view("k_recent", x.k_recent, 4, kPages));
  if (t.k_pages.shape[1] % kZeroPointGroup == 0 && x.k_recent.shape[1] % kZeroPointGroup == 0)
    return std::nullopt;
  return invalid_argument(
      "k_pages.dtype={} with pages of {} and groups of {} recent keys: both must be multiples of "
      "{}, the keys of a scale; use pages of 32 or 64 and groups of 32",
      dtype_name(dtype), t.k_pages.shape[1], x.k_recent.shape[1], kZeroPointGroup);
}

constexpr headrace_quantised_kv kNoQuantised{};

const headrace_quantised_kv& quantised_of(const headrace_kv_append_tensors& t) {
  return t.quantised == nullptr ? kNoQuantised : *t.quantised;
}

// Scales and recent pages; of_k and of_v are the layouts of k and v.
Status check_quantised_pages(const Call& call, std::span<const Axis, 3> of_k,
                             std::span<const Axis, 3> of_v) {
  const headrace_kv_append_tensors& t = call.t;
  const headrace_quantised_kv& x = quantised_of(t);
  HEADRACE_TRY(check_key_groups(t, x));
  const auto k_dtype = static_cast<DType>(t.k_pages.dtype);
  const auto v_dtype = static_cast<DType>(t.v_pages.dtype);
  HEADRACE_TRY(check_scales(call, {"k_scale", &x.k_scale}, {"k_pages", &t.k_pages},
                            scales_of_k(k_dtype, t.k_pages, of_k[2].size)));
  HEADRACE_TRY(check_scales(call, {"v_scale", &x.v_scale}, {"v_pages", &t.v_pages},
                            scales_of_v(v_dtype, t.v_pages, of_v[2].size)));
  const NamedTensor recent[] = {
      {"k_recent", &x.k_recent}, {"v_recent", &x.v_recent}, {"recent_slots", &t.recent_slots}};
  const int num_given = is_given(x.k_recent) + is_given(x.v_recent) + is_given(t.recent_slots);
  if (num_given == 0) return std::nullopt;
  for (const auto& [name, view] : recent)
    if (!is_given(*view))
      return invalid_argument(
          "{}: not given; k_recent, v_recent and recent_slots belong together; pass {} or leave "
          "all "
          "three out",
          name, name);
  HEADRACE_TRY(check_view("k_recent", x.k_recent, 4, kPages));
  HEADRACE_TRY(check_view("v_recent", x.v_recent, 4, kPages));
  const Axis pages[] = {{"num_recent_pages", x.k_recent.shape[0], "k_recent"},
                        {"group", x.k_recent.shape[1], "k_recent"}};
  const Axis of_k_recent[] = {pages[0], pages[1], of_k[1], of_k[2]};
  const Axis of_v_recent[] = {pages[0], pages[1], of_v[1], of_v[2]};
  HEADRACE_TRY(check_operand(call, recent[0], of_k_recent, kPages));
  HEADRACE_TRY(check_operand(call, recent[1], of_v_recent, kPages));
  return check_list(call, recent[2], DType::i64);
}

Status check_kv(const Call& call) {
  const headrace_kv_append_tensors& t = call.t;
  if (!is_given(t.k)) return std::nullopt;
  const char* first = call.first.name;
  HEADRACE_TRY(check_view("k", t.k, 3, kHeads));
  HEADRACE_TRY(check_view("v", t.v, 3, kHeads));
  HEADRACE_TRY(check_view("k_pages", t.k_pages, 4, kPages));
  const std::int64_t num_kv_heads = t.k.shape[1], head_dim_v = t.v.shape[2];
  const Axis of_k[] = {{"num_tokens", call.num_tokens, first},
                       {"num_kv_heads", num_kv_heads, "k"},
                       {"head_dim", call.head_dim, first}};
  const Axis of_v[] = {of_k[0], of_k[1], {"head_dim_v", head_dim_v, "v"}};
  const Axis pages[] = {{"num_pages", t.k_pages.shape[0], "k_pages"},
                        {"page_size", t.k_pages.shape[1], "k_pages"}};
  const Axis of_k_pages[] = {pages[0], pages[1], of_k[1], of_k[2]};
  const Axis of_v_pages[] = {pages[0], pages[1], of_v[1], of_v[2]};
  HEADRACE_TRY(check_operand(call, {"k", &t.k}, of_k, kHeads));
  HEADRACE_TRY(check_dtype_of({"k", &t.k}, call.first));
  HEADRACE_TRY(check_head_dim("v", t.v));
  HEADRACE_TRY(check_operand(call, {"v", &t.v}, of_v, kHeads));
  HEADRACE_TRY(check_dtype_of({"v", &t.v}, call.first));
  HEADRACE_TRY(check_pages(call, {"k_pages", &t.k_pages}, of_k_pages));
  HEADRACE_TRY(check_pages(call, {"v_pages", &t.v_pages}, of_v_pages));
  HEADRACE_TRY(check_quantised_pages(call, of_k, of_v));
  return check_list(call, {"slot_mapping", &t.slot_mapping}, DType::i64);
}

Status check_norms(const Call& call, double eps) {
  const Axis layout[] = {{"head_dim", call.head_dim, call.first.name}};
  for (const NamedTensor& weight : {NamedTensor{"q_norm_weight", &call.t.q_norm_weight},
                                    NamedTensor{"k_norm_weight", &call.t.k_norm_weight}})
    if (is_given(*weight.view)) HEADRACE_TRY(check_operand(call, weight, layout, kWeight));
  if (eps >= 0 && std::isfinite(static_cast<float>(eps))) return std::nullopt;
  return invalid_argument(
      "norm_eps={}: must be finite as f32 and not negative; pass 1e-6, Qwen3's value", eps);
}

// Of the heads of k, and of the query heads that share them.
Status check_channel_factors(const Call& call) {
  const headrace_tensor& x = call.t.channel_factors;
  if (!is_given(x)) return std::nullopt;
  const bool has_k = is_given(call.t.k);
  HEADRACE_TRY(check_view("channel_factors", x, 2, kFactors));
  const Axis layout[] = {{"num_kv_heads", has_k ? call.t.k.shape[1] : x.shape[0], "k"},
                         {"head_dim", call.head_dim, call.first.name}};
  if (static_cast<DType>(x.dtype) != DType::f32)
    return invalid_argument("channel_factors.dtype={}: must be f32; convert channel_factors",
                            dtype_name(static_cast<DType>(x.dtype)));
  HEADRACE_TRY(check_operand(call, {"channel_factors", &x}, layout, kFactors));
  if (!is_given(call.t.q) || (x.shape[0] > 0 && call.t.q.shape[1] % x.shape[0] == 0))
    return std::nullopt;
  return invalid_argument(
      "channel_factors.shape[0]={}: must divide num_heads={} of q; pass {} of the heads of k",
      x.shape[0], call.t.q.shape[1], kFactors);
}

// No output may overlap itself or another tensor; q_out may be q.
Status check_overlaps(const headrace_kv_append_tensors& t) {
  const NamedTensor all[] = {{"q_out", &t.q_out},
                             {"k_pages", &t.k_pages},
                             {"v_pages", &t.v_pages},
                             {"k_scale", &quantised_of(t).k_scale},
                             {"v_scale", &quantised_of(t).v_scale},
                             {"k_recent", &quantised_of(t).k_recent},
                             {"v_recent", &quantised_of(t).v_recent},
                             {"q", &t.q},
                             {"k", &t.k},
                             {"v", &t.v},
                             {"slot_mapping", &t.slot_mapping},
                             {"recent_slots", &t.recent_slots},
                             {"positions", &t.positions},
                             {"cos", &t.cos},
                             {"sin", &t.sin},
                             {"q_norm_weight", &t.q_norm_weight},
                             {"k_norm_weight", &t.k_norm_weight},
                             {"channel_factors", &t.channel_factors}};
  for (int i = 0; i < 7; ++i) {  // the outputs
    if (!is_given(*all[i].view)) continue;
    HEADRACE_TRY(check_within(all[i]));
    for (std::size_t j = static_cast<std::size_t>(i) + 1; j < std::size(all); ++j)
      HEADRACE_TRY(check_overlap(
          all[i], all[j],
          all[i].view == &t.q_out && all[j].view == &t.q && t.q_out.dtype == t.q.dtype));
  }
  return std::nullopt;
}

// ---- arguments ----

// Axes of size 0 and 1 may have arbitrary strides; kernels get 0.
std::int64_t stride_of(const headrace_tensor& tensor, int axis) {
  return tensor.shape[axis] > 1 ? tensor.strides[axis] : 0;
}

HeadRows head_rows(const headrace_tensor& x) {
  if (!is_given(x) || !has_elements(x)) return {};
  return {x.data, static_cast<DType>(x.dtype), stride_of(x, 0), stride_of(x, 1)};
}

PageRows page_rows(const headrace_tensor& x) {
  if (!is_given(x) || !has_elements(x)) return {};
  return {x.data, static_cast<DType>(x.dtype), stride_of(x, 0), stride_of(x, 1), stride_of(x, 2)};
}

ScaleRows scale_rows(const headrace_tensor& x) {
  if (!is_given(x) || !has_elements(x)) return {};
  return {x.data, stride_of(x, 0), stride_of(x, 1), stride_of(x, 2)};
}

RecentRows recent_rows(const headrace_kv_append_tensors& t) {
  const headrace_quantised_kv& x = quantised_of(t);
  if (!is_given(x.k_recent)) return {};
  return {.k = page_rows(x.k_recent),
          .v = page_rows(x.v_recent),
          .slots = static_cast<const std::int64_t*>(t.recent_slots.data),
          .slot_stride = stride_of(t.recent_slots, 0),
          .group = x.k_recent.shape[1],
          .num_pages = x.k_recent.shape[0]};
}

NormWeight norm_weight(const headrace_tensor& x) {
  return {is_given(x) ? x.data : nullptr, static_cast<DType>(x.dtype)};
}

ChannelFactors channel_factors(const headrace_kv_append_tensors& t) {
  const headrace_tensor& x = t.channel_factors;
  if (!is_given(x) || !has_elements(x)) return {};
  return {.data = static_cast<const float*>(x.data),
          .stride_head = stride_of(x, 0),
          .group = is_given(t.q) ? t.q.shape[1] / x.shape[0] : 1};
}

// The rotation: that of the tables, that of the options, or none.
Status add_rope(const Call& call, const headrace_rope_options* rope, KvAppendArgs& args) {
  const headrace_kv_append_tensors& t = call.t;
  const bool has_tables = is_given(t.cos);
  if (!has_tables && rope == nullptr) return std::nullopt;
  if (has_tables) {
    HEADRACE_TRY(check_view("cos", t.cos, 2, kTable));
    const Axis layout[] = {{"max_positions", t.cos.shape[0], "cos"},
                           {"rot_dim / 2", t.cos.shape[1], "cos"}};
    HEADRACE_TRY(check_operand(call, {"cos", &t.cos}, layout, kTable));
    HEADRACE_TRY(check_operand(call, {"sin", &t.sin}, layout, kTable));
    args.tables = {.cos = t.cos.data,
                   .sin = t.sin.data,
                   .cos_dtype = static_cast<DType>(t.cos.dtype),
                   .sin_dtype = static_cast<DType>(t.sin.dtype),
                   .cos_stride = stride_of(t.cos, 0),
                   .sin_stride = stride_of(t.sin, 0),
                   .max_positions = t.cos.shape[0]};
  }
  const std::int64_t wanted = rope == nullptr ? 0 : rope->rot_dim;
  args.rot_dim = has_tables ? 2 * t.cos.shape[1] : wanted == 0 ? call.head_dim : wanted;
  if (has_tables && wanted != 0 && wanted != args.rot_dim)
    return invalid_argument(
        "rot_dim={}: must be 0 or {}, twice cos.shape[1]; pass 0 with cos and sin", wanted,
        args.rot_dim);
  if (args.rot_dim < 2 || args.rot_dim % 2 != 0 || args.rot_dim > call.head_dim)
    return invalid_argument(
        "rot_dim={} ({}): must be even, 2 to head_dim={}; pass the number of elements of a head "
        "that are rotated",
        args.rot_dim,
        has_tables    ? "twice cos.shape[1]"
        : wanted == 0 ? "0 is head_dim"
                      : "of the options",
        call.head_dim);
  if (!is_given(t.positions)) return missing("positions", "a rotation", "i32 [num_tokens]");
  args.positions = static_cast<const std::int32_t*>(t.positions.data);
  args.position_stride = stride_of(t.positions, 0);
  if (rope == nullptr) return std::nullopt;
  HEADRACE_TRY(check_rope_layout(rope->layout));
  args.layout = rope->layout == HEADRACE_ROPE_HALVES ? RopeLayout::halves : RopeLayout::interleaved;
  if (has_tables) return std::nullopt;
  return fill_rope(*rope, args.rot_dim, args.frequencies, &args.attention_factor);
}

Status add_hadamard(std::int32_t hadamard, KvAppendArgs& args) {
  if (hadamard != 0 && hadamard != 1)
    return invalid_argument("hadamard={}: must be 0 or 1; pass 1 for keys of 4 bits", hadamard);
  if (hadamard == 0) return std::nullopt;
  args.hadamard_block = hadamard_block(args.head_dim);
  args.hadamard_scale = hadamard_scale(args.hadamard_block);
  return std::nullopt;
}

KvAppendArgs make_append_args(const Call& call, double norm_eps) {
  const headrace_kv_append_tensors& t = call.t;
  KvAppendArgs args;
  args.num_tokens = call.num_tokens;
  args.head_dim = call.head_dim;
  args.num_heads = is_given(t.q) ? t.q.shape[1] : 0;
  args.q = head_rows(t.q);
  args.q_out = head_rows(t.q_out);
  args.q_norm = norm_weight(t.q_norm_weight);
  args.k_norm = norm_weight(t.k_norm_weight);
  args.norm_eps = static_cast<float>(norm_eps);
  args.channel_factors = channel_factors(t);
  if (!is_given(t.k)) return args;
  args.num_kv_heads = t.k.shape[1];
  args.head_dim_v = t.v.shape[2];
  args.num_pages = t.k_pages.shape[0];
  args.page_size = t.k_pages.shape[1];
  args.k = head_rows(t.k);
  args.v = head_rows(t.v);
  args.k_pages = page_rows(t.k_pages);
  args.v_pages = page_rows(t.v_pages);
  args.k_scale = scale_rows(quantised_of(t).k_scale);
  args.v_scale = scale_rows(quantised_of(t).v_scale);
  args.recent = recent_rows(t);
  args.slot_mapping = static_cast<const std::int64_t*>(t.slot_mapping.data);
  args.slot_stride = stride_of(t.slot_mapping, 0);
  return args;
}

}  // namespace

headrace_kv_append_options default_kv_append_options() {
  return {.struct_size = sizeof(headrace_kv_append_options),
          .rope = nullptr,
          .norm_eps = 1e-6,
          .hadamard = 0,
          .reserved = 0};
}

Result<KvAppendArgs> validate_kv_append(const headrace_kv_append_tensors& tensors,
                                        const headrace_kv_append_options& options,
                                        const headrace_rope_options* rope) {
  if (auto bad = check_given(tensors)) return std::move(*bad);
  const NamedTensor first =
      is_given(tensors.q) ? NamedTensor{"q", &tensors.q} : NamedTensor{"k", &tensors.k};
  const auto& [name, view] = first;
  if (auto bad = check_view(name, *view, 3, kHeads)) return std::move(*bad);
  if (auto bad = check_head_dim(name, *view)) return std::move(*bad);
  const Call call{tensors, first, view->shape[0], view->shape[2]};
  if (auto bad = check_activation_dtype(first)) return std::move(*bad);
  if (auto bad = check_inner_stride(name, *view, "head_dim")) return std::move(*bad);
  if (auto bad = check_q(call)) return std::move(*bad);
  if (auto bad = check_kv(call)) return std::move(*bad);
  if (auto bad = check_norms(call, options.norm_eps)) return std::move(*bad);
  if (auto bad = check_channel_factors(call)) return std::move(*bad);
  if (is_given(tensors.positions))
    if (auto bad = check_list(call, {"positions", &tensors.positions}, DType::i32))
      return std::move(*bad);
  KvAppendArgs args = make_append_args(call, options.norm_eps);
  if (auto bad = add_rope(call, rope, args)) return std::move(*bad);
  if (auto bad = add_hadamard(options.hadamard, args)) return std::move(*bad);
  if (auto bad = check_overlaps(tensors)) return std::move(*bad);
  return args;
}

}  // namespace headrace
