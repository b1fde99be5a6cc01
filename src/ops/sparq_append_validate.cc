// Validates the tensors of a SparQ append and turns them into backend arguments.
#include <algorithm>

#include "attention/validate.h"
#include "ops/sparq.h"
#include "ops/sparq_checks.h"

namespace headrace {
namespace {

constexpr const char* kPages = "[num_pages, page_size, num_kv_heads, head_dim]";
constexpr const char* kComponents = "[num_pages, num_kv_heads, head_dim, page_size]";

using Tensors = headrace_sparq_append_tensors;

Status check_pages(const NamedTensor& x, const char* layout, const Tensors& t) {
  if (!is_given(*x.view))
    return invalid_argument("{}: not given; it is required; pass {} as {}", x.name, x.name, layout);
  HEADRACE_TRY(check_view(x.name, *x.view, 4, layout));
  HEADRACE_TRY(check_activation_dtype(x));
  HEADRACE_TRY(check_sparq_dtype(x, static_cast<DType>(t.k.dtype), ", as k"));
  return check_same_device(x, {"k", &t.k});
}

Status check_head_dim(const char* name, const headrace_tensor& x) {
  const std::int64_t per_byte = codes_per_byte(static_cast<DType>(x.dtype));
  if (x.shape[3] >= 1 && x.shape[3] <= kMaxHeadDim / per_byte) return std::nullopt;
  return invalid_argument("{}.shape[3]={}: must be 1 to {}, the head dims supported; pass {} as {}",
                          name, x.shape[3], kMaxHeadDim / per_byte, name, kPages);
}

// Of the cache: those of k, unless k has keys in slots of their own.
struct Pages {
  Axis count, size;
};
Pages pages_of(const Tensors& t) {
  if (!is_given(t.k_slots))
    return {{"num_pages", t.k.shape[0], "k"}, {"page_size", t.k.shape[1], "k"}};
  return {{"num_pages", t.k_components.shape[0], "k_components"},
          {"page_size", t.k_components.shape[3], "k_components"}};
}

Status check_keys(const Tensors& t) {
  HEADRACE_TRY(check_pages({"k", &t.k}, kPages, t));
  HEADRACE_TRY(check_head_dim("k", t.k));
  HEADRACE_TRY(check_inner_stride("k", t.k, "head_dim"));
  HEADRACE_TRY(check_pages({"k_components", &t.k_components}, kComponents, t));
  const Pages pages = pages_of(t);
  const Axis layout[] = {pages.count,
                         {"num_kv_heads", t.k.shape[2], "k"},
                         {"head_dim", t.k.shape[3], "k"},
                         pages.size};
  HEADRACE_TRY(check_shape("k_components", t.k_components, layout));
  HEADRACE_TRY(check_inner_stride("k_components", t.k_components, "page_size"));
  HEADRACE_TRY(check_view("slot_mapping", t.slot_mapping, 1, "i64 [num_tokens]"));
  HEADRACE_TRY(check_sparq_dtype({"slot_mapping", &t.slot_mapping}, DType::i64, ""));
  HEADRACE_TRY(check_same_device({"slot_mapping", &t.slot_mapping}, {"k", &t.k}));
  if (!is_given(t.k_slots)) return std::nullopt;
  const Axis of_slots[] = {{"num_tokens", t.slot_mapping.shape[0], "slot_mapping"}};
  return check_sparq_list({"k_slots", &t.k_slots}, DType::i64, of_slots, {"k", &t.k});
}

// v, which may be codes.
Status check_values(const Tensors& t) {
  const auto dtype = static_cast<DType>(t.v.dtype);
  if (!is_code(dtype)) {
    HEADRACE_TRY(check_pages({"v", &t.v}, kPages, t));
  } else {
    HEADRACE_TRY(check_view("v", t.v, 4, kPages));
    HEADRACE_TRY(check_same_device({"v", &t.v}, {"k", &t.k}));
  }
  HEADRACE_TRY(check_head_dim("v", t.v));
  HEADRACE_TRY(check_inner_stride("v", t.v, "head_dim_v"));
  const Pages pages = pages_of(t);
  const Axis heads{"num_kv_heads", t.k.shape[2], "k"};
  const Axis of_v[] = {pages.count, pages.size, heads, {"head_dim_v", t.v.shape[3], "v"}};
  HEADRACE_TRY(check_shape("v", t.v, of_v));
  if (!is_code(dtype)) {
    if (!is_given(t.v_scale)) return std::nullopt;
    return invalid_argument("v_scale: given, but v.dtype={} has no codes; leave v_scale out",
                            dtype_name(dtype));
  }
  if (!is_given(t.v_scale) && dtype == DType::f8e4m3) return std::nullopt;
  if (!is_given(t.v_scale))
    return invalid_argument(
        "v_scale: not given, but v has codes of dtype {}; pass their scales, as in "
        "headrace_quantised_kv",
        dtype_name(dtype));
  if (!has_zero_points(dtype))
    return check_sparq_list({"v_scale", &t.v_scale}, DType::f32, std::span(of_v, 3), {"k", &t.k});
  const std::int64_t words = scales_of_value(dtype, elements_of(dtype, t.v.shape[3]));
  const Axis of_words[] = {of_v[0], of_v[1], heads, {"ceil(head_dim_v / 32)", words, "v"}};
  HEADRACE_TRY(check_sparq_list({"v_scale", &t.v_scale}, DType::u32, of_words, {"k", &t.k}));
  return check_inner_stride("v_scale", t.v_scale, "ceil(head_dim_v / 32)");
}

Status check_sums(const Tensors& t) {
  const bool has_v = is_given(t.v), has_sum = is_given(t.v_sum);
  if (has_v != has_sum)
    return invalid_argument("{}: not given, but {} is; pass both, or neither",
                            has_v ? "v_sum" : "v", has_v ? "v" : "v_sum");
  if (!has_v) {
    if (!is_given(t.cu_seqlens)) return std::nullopt;
    return invalid_argument("cu_seqlens: given without v_sum, whose rows it divides; leave it out");
  }
  HEADRACE_TRY(check_values(t));
  HEADRACE_TRY(check_view("v_sum", t.v_sum, 3, "f32 [batch, num_kv_heads, head_dim_v]"));
  const std::int64_t rows = is_given(t.cu_seqlens) ? t.v_sum.shape[0] : t.slot_mapping.shape[0];
  const Axis of_sum[] = {
      {"batch", rows, is_given(t.cu_seqlens) ? "v_sum" : "slot_mapping (without cu_seqlens)"},
      {"num_kv_heads", t.k.shape[2], "k"},
      {"head_dim_v", elements_of(static_cast<DType>(t.v.dtype), t.v.shape[3]), "v"}};
  HEADRACE_TRY(check_sparq_list({"v_sum", &t.v_sum}, DType::f32, of_sum, {"k", &t.k}));
  HEADRACE_TRY(check_inner_stride("v_sum", t.v_sum, "head_dim_v"));
  if (!is_given(t.cu_seqlens)) return std::nullopt;
  const Axis of_lengths[] = {{"batch + 1", rows + 1, "v_sum"}};
  HEADRACE_TRY(
      check_sparq_list({"cu_seqlens", &t.cu_seqlens}, DType::i32, of_lengths, {"k", &t.k}));
  return check_inner_stride("cu_seqlens", t.cu_seqlens, "batch + 1");
}

Status check_overlaps(const Tensors& t) {
  const NamedTensor all[] = {{"k_components", &t.k_components},
                             {"v_sum", &t.v_sum},
                             {"k", &t.k},
                             {"v", &t.v},
                             {"slot_mapping", &t.slot_mapping},
                             {"cu_seqlens", &t.cu_seqlens},
                             {"k_slots", &t.k_slots},
                             {"v_scale", &t.v_scale}};
  for (std::size_t i = 0; i < 2; ++i) {
    if (!is_given(*all[i].view)) continue;
    HEADRACE_TRY(check_within(all[i]));
    for (std::size_t j = i + 1; j < std::size(all); ++j)
      HEADRACE_TRY(check_overlap(all[i], all[j], false));
  }
  return std::nullopt;
}

}  // namespace

Result<SparqAppendArgs> validate_sparq_append(const headrace_sparq_append_tensors& t) {
  if (auto bad = check_keys(t)) return std::move(*bad);
  if (auto bad = check_sums(t)) return std::move(*bad);
  if (auto bad = check_overlaps(t)) return std::move(*bad);
  SparqAppendArgs args;
  args.num_tokens = t.slot_mapping.shape[0];
  args.num_kv_heads = t.k.shape[2];
  args.head_dim = t.k.shape[3];
  const Pages pages = pages_of(t);
  args.page_size = pages.size.size;
  args.num_pages = pages.count.size;
  args.k_page_size = t.k.shape[1];
  args.k_num_pages = t.k.shape[0];
  if (is_given(t.k_slots)) {
    args.k_slots = static_cast<const std::int64_t*>(t.k_slots.data);
    args.k_slot_stride = sparq_stride(t.k_slots, 0);
  }
  args.dtype = static_cast<DType>(t.k.dtype);
  args.k = sparq_pages(t.k);
  args.components = sparq_components(t.k_components);
  args.slot_mapping = static_cast<const std::int64_t*>(t.slot_mapping.data);
  args.slot_stride = sparq_stride(t.slot_mapping, 0);
  if (!is_given(t.v_sum)) return args;
  args.batch = t.v_sum.shape[0];
  args.v_dtype = static_cast<DType>(t.v.dtype);
  args.head_dim_v = elements_of(args.v_dtype, t.v.shape[3]);
  args.v = sparq_pages(t.v);
  if (is_given(t.v_scale))
    args.v_scale = {.data = t.v_scale.data,
                    .stride_batch = sparq_stride(t.v_scale, 0),
                    .stride_seq = sparq_stride(t.v_scale, 1),
                    .stride_head = sparq_stride(t.v_scale, 2)};
  args.v_sum = sparq_rows(t.v_sum);
  args.cu_seqlens = static_cast<const std::int32_t*>(t.cu_seqlens.data);
  return args;
}

// The rows first: their sums bound the slots that are read.
Status check_sparq_slots(const SparqAppendArgs& args) {
  for (std::int64_t row = 0; args.cu_seqlens != nullptr && row < args.batch; ++row) {
    const auto [first, last] = tokens_of_row(args, row);
    if (first > last || (row == 0 && first != 0) ||
        (row + 1 == args.batch && last != args.num_tokens))
      return invalid_argument(
          "cu_seqlens[{}]={}, cu_seqlens[{}]={}: must be prefix sums of the tokens of each row, "
          "from 0 to the {} of slot_mapping; pass such sums",
          row, first, row + 1, last, args.num_tokens);
  }
  const auto check_slots = [&](const char* name, const char* of, const std::int64_t* slots,
                               std::int64_t stride, std::int64_t num_slots) -> Status {
    for (std::int64_t i = 0; i < args.num_tokens; ++i)
      if (const std::int64_t slot = slots[i * stride]; slot >= num_slots)
        return invalid_argument(
            "{}[{}]={}: must be below {}, the slots of {}, or negative for a token that is left "
            "out; pass page * page_size + slot",
            name, i, slot, num_slots, of);
    return std::nullopt;
  };
  const bool has_k_slots = args.k_slots != nullptr;
  HEADRACE_TRY(check_slots("slot_mapping", has_k_slots ? "k_components" : "k", args.slot_mapping,
                           args.slot_stride, args.num_pages * args.page_size));
  if (!has_k_slots) return std::nullopt;
  return check_slots("k_slots", "k", args.k_slots, args.k_slot_stride,
                     args.k_num_pages * args.k_page_size);
}

}  // namespace headrace
