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
  if (x.shape[3] >= 1 && x.shape[3] <= kMaxHeadDim) return std::nullopt;
  return invalid_argument("{}.shape[3]={}: must be 1 to {}, the head dims supported; pass {} as {}",
                          name, x.shape[3], kMaxHeadDim, name, kPages);
}

Status check_keys(const Tensors& t) {
  HEADRACE_TRY(check_pages({"k", &t.k}, kPages, t));
  HEADRACE_TRY(check_head_dim("k", t.k));
  HEADRACE_TRY(check_inner_stride("k", t.k, "head_dim"));
  HEADRACE_TRY(check_pages({"k_components", &t.k_components}, kComponents, t));
  const Axis layout[] = {{"num_pages", t.k.shape[0], "k"},
                         {"num_kv_heads", t.k.shape[2], "k"},
                         {"head_dim", t.k.shape[3], "k"},
                         {"page_size", t.k.shape[1], "k"}};
  HEADRACE_TRY(check_shape("k_components", t.k_components, layout));
  HEADRACE_TRY(check_inner_stride("k_components", t.k_components, "page_size"));
  HEADRACE_TRY(check_view("slot_mapping", t.slot_mapping, 1, "i64 [num_tokens]"));
  HEADRACE_TRY(check_sparq_dtype({"slot_mapping", &t.slot_mapping}, DType::i64, ""));
  return check_same_device({"slot_mapping", &t.slot_mapping}, {"k", &t.k});
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
  HEADRACE_TRY(check_pages({"v", &t.v}, kPages, t));
  HEADRACE_TRY(check_head_dim("v", t.v));
  HEADRACE_TRY(check_inner_stride("v", t.v, "head_dim_v"));
  const Axis of_v[] = {{"num_pages", t.k.shape[0], "k"},
                       {"page_size", t.k.shape[1], "k"},
                       {"num_kv_heads", t.k.shape[2], "k"},
                       {"head_dim_v", t.v.shape[3], "v"}};
  HEADRACE_TRY(check_shape("v", t.v, of_v));
  HEADRACE_TRY(check_view("v_sum", t.v_sum, 3, "f32 [batch, num_kv_heads, head_dim_v]"));
  const std::int64_t rows = is_given(t.cu_seqlens) ? t.v_sum.shape[0] : t.slot_mapping.shape[0];
  const Axis of_sum[] = {
      {"batch", rows, is_given(t.cu_seqlens) ? "v_sum" : "slot_mapping (without cu_seqlens)"},
      of_v[2],
      of_v[3]};
  HEADRACE_TRY(check_sparq_list({"v_sum", &t.v_sum}, DType::f32, of_sum, {"k", &t.k}));
  HEADRACE_TRY(check_inner_stride("v_sum", t.v_sum, "head_dim_v"));
  if (!is_given(t.cu_seqlens)) return std::nullopt;
  const Axis of_lengths[] = {{"batch + 1", rows + 1, "v_sum"}};
  HEADRACE_TRY(
      check_sparq_list({"cu_seqlens", &t.cu_seqlens}, DType::i32, of_lengths, {"k", &t.k}));
  return check_inner_stride("cu_seqlens", t.cu_seqlens, "batch + 1");
}

Status check_overlaps(const Tensors& t) {
  const NamedTensor all[] = {
      {"k_components", &t.k_components}, {"v_sum", &t.v_sum},          {"k", &t.k}, {"v", &t.v},
      {"slot_mapping", &t.slot_mapping}, {"cu_seqlens", &t.cu_seqlens}};
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
  args.page_size = t.k.shape[1];
  args.num_pages = t.k.shape[0];
  args.dtype = static_cast<DType>(t.k.dtype);
  args.k = sparq_pages(t.k);
  args.components = sparq_components(t.k_components);
  args.slot_mapping = static_cast<const std::int64_t*>(t.slot_mapping.data);
  args.slot_stride = sparq_stride(t.slot_mapping, 0);
  if (!is_given(t.v_sum)) return args;
  args.batch = t.v_sum.shape[0];
  args.head_dim_v = t.v.shape[3];
  args.v = sparq_pages(t.v);
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
  const std::int64_t num_slots = args.num_pages * args.page_size;
  for (std::int64_t i = 0; i < args.num_tokens; ++i)
    if (const std::int64_t slot = args.slot_mapping[i * args.slot_stride]; slot >= num_slots)
      return invalid_argument(
          "slot_mapping[{}]={}: must be below {}, the slots of k, or negative for a token that is "
          "left out; pass page * page_size + slot",
          i, slot, num_slots);
  return std::nullopt;
}

}  // namespace headrace
