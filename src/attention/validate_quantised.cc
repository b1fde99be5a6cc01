// Validation of quantised k and v: scales and recent keys.
#include "attention/validate_parts.h"

namespace headrace {
namespace {

// The codes that a scale belongs to.
struct Codes {
  const char* name;
  const headrace_tensor& tensor;
};

// Words of u4x2 and u2x4, whose pages are checked with the Problem.
Status check_scale_words(const NamedTensor& scale, const Codes& codes, const Problem& p) {
  const auto& [name, tensor] = scale;
  const DType dtype = type_of(codes.tensor);
  const bool is_of_k = codes.name[0] == 'k';
  const char* const text = is_of_k
                               ? "u32 [num_pages, page_size / 32, num_kv_heads, head_dim]"
                               : "u32 [num_pages, page_size, num_kv_heads, ceil(head_dim_v / 32)]";
  if (!is_given(*tensor))
    return invalid_argument(
        "{}: not given, but {} has codes of dtype {}; pass words of scales and zero points, {}",
        name, codes.name, dtype_name(dtype), text);
  HEADRACE_TRY(check_view(name, *tensor, 4, text));
  HEADRACE_TRY(check_dtype(name, *tensor, DType::u32, " (a scale and a zero point)"));
  const Axis num_pages{"num_pages", p.num_pages, "k"};
  const Axis heads{"num_kv_heads", p.num_kv_heads, "k"};
  const Axis of_k[] = {num_pages,
                       {"page_size / 32", p.page_size / kZeroPointGroup, "k"},
                       heads,
                       {"head_dim", scales_of_key(dtype, p.head_dim), "q"}};
  const Axis of_v[] = {num_pages,
                       {"page_size", p.page_size, "k"},
                       heads,
                       {"ceil(head_dim_v / 32)", scales_of_value(dtype, p.head_dim_v), "v"}};
  HEADRACE_TRY(check_shape(name, *tensor, is_of_k ? of_k : of_v));
  return check_inner_stride(name, *tensor, is_of_k ? "head_dim" : "ceil(head_dim_v / 32)");
}

Status check_scale(const NamedTensor& scale, const Codes& codes, const Problem& p,
                   std::int32_t& scaling) {
  const auto& [name, tensor] = scale;
  const DType dtype = type_of(codes.tensor);
  scaling = has_zero_points(dtype) ? HEADRACE_SCALING_ZERO_POINTS : HEADRACE_SCALING_NONE;
  if (has_zero_points(dtype)) {
    // Other pages are refused with the Problem.
    const bool has_groups = codes.name[0] == 'v' || p.page_size % kZeroPointGroup == 0;
    return has_pages(p) && has_groups ? check_scale_words(scale, codes, p) : std::nullopt;
  }
  if (!is_given(*tensor)) {
    if (dtype != DType::i8 && dtype != DType::i4x2) return std::nullopt;
    return invalid_argument(
        "{}: not given, but {} has codes of dtype {}; pass f32 scales in the shape of {} without "
        "its last axis, or [batch, num_kv_heads]",
        name, codes.name, dtype_name(dtype), codes.name);
  }
  if (!is_code(dtype))
    return invalid_argument("{}: given, but {}.dtype={} has no codes; leave {} out", name,
                            codes.name, dtype_name(dtype), name);
  HEADRACE_TRY(check_dtype(name, *tensor, DType::f32, ""));
  if (tensor->rank == 2 && codes.tensor.rank == 4) {
    const Axis layout[] = {{"batch", p.batch, "q"}, {"num_kv_heads", p.num_kv_heads, "k"}};
    scaling = HEADRACE_SCALING_PER_SEQUENCE;
    HEADRACE_TRY(check_view(name, *tensor, 2, "f32 [batch, num_kv_heads]"));
    return check_shape(name, *tensor, layout);
  }
  const int rank = codes.tensor.rank - 1;
  const headrace_tensor& k = codes.tensor;
  const Axis layout[] = {{has_pages(p) ? "num_pages" : "batch", k.shape[0], codes.name},
                         {has_pages(p) ? "page_size" : "seqlen_k", k.shape[1], codes.name},
                         {"num_kv_heads", p.num_kv_heads, codes.name}};
  const Axis ragged[] = {{"total_k", k.shape[0], codes.name}, layout[2]};
  scaling = HEADRACE_SCALING_PER_KEY;
  HEADRACE_TRY(
      check_view(name, *tensor, rank, "f32, the shape of its codes without the last axis"));
  return rank == 3 ? check_shape(name, *tensor, layout) : check_shape(name, *tensor, ragged);
}

constexpr const char* kRecent = "[num_recent_pages, group, num_kv_heads, head_dim]";

Status check_recent(const headrace_quantised_kv& x, Problem& p) {
  const NamedTensor parts[] = {
      {"k_recent", &x.k_recent}, {"v_recent", &x.v_recent}, {"recent_table", &x.recent_table}};
  const int num_given = is_given(x.k_recent) + is_given(x.v_recent) + is_given(x.recent_table);
  if (num_given == 0) return std::nullopt;
  for (const auto& [name, tensor] : parts)
    if (!is_given(*tensor))
      return invalid_argument(
          "{}: not given; k_recent, v_recent and recent_table belong together; pass {} or leave "
          "all three out",
          name, name);
  HEADRACE_TRY(check_view("k_recent", x.k_recent, 4, kRecent));
  HEADRACE_TRY(check_view("v_recent", x.v_recent, 4, kRecent));
  HEADRACE_TRY(check_dtype("k_recent", x.k_recent, dtype_of(p), " (the dtype of q)"));
  HEADRACE_TRY(check_dtype("v_recent", x.v_recent, dtype_of(p), " (the dtype of q)"));
  const std::int64_t group = x.k_recent.shape[1];
  if (group < 1)
    return invalid_argument(
        "k_recent.shape[1]={}: must be at least 1, the keys of a group; pass {}", group, kRecent);
  const Axis k[] = {{"num_recent_pages", x.k_recent.shape[0], "k_recent"},
                    {"group", group, "k_recent"},
                    {"num_kv_heads", p.num_kv_heads, "k"},
                    {"head_dim", p.head_dim, "q"}};
  const Axis v[] = {k[0], k[1], k[2], {"head_dim_v", p.head_dim_v, "v"}};
  HEADRACE_TRY(check_shape("k_recent", x.k_recent, k));
  HEADRACE_TRY(check_shape("v_recent", x.v_recent, v));
  HEADRACE_TRY(check_inner_stride("k_recent", x.k_recent, "head_dim"));
  HEADRACE_TRY(check_inner_stride("v_recent", x.v_recent, "head_dim_v"));
  HEADRACE_TRY(check_view("recent_table", x.recent_table, 2, "i32 [batch, max_recent]"));
  HEADRACE_TRY(check_dtype("recent_table", x.recent_table, DType::i32, ""));
  HEADRACE_TRY(check_inner_stride("recent_table", x.recent_table, "max_recent"));
  p.recent_group = group;
  p.num_recent_pages = x.k_recent.shape[0];
  p.max_recent = x.recent_table.shape[1];
  const Axis table[] = {{"batch", p.batch, "q"}, {"max_recent", p.max_recent, "recent_table"}};
  return check_shape("recent_table", x.recent_table, table);
}

}  // namespace

Status check_quantised(const headrace_attention_tensors& t, Problem& p) {
  if (t.quantised == nullptr && !is_code(k_dtype_of(p)) && !is_code(v_dtype_of(p)))
    return std::nullopt;
  const headrace_quantised_kv& x = quantised_of(t);
  HEADRACE_TRY(check_scale({"k_scale", &x.k_scale}, {"k", t.k}, p, p.k_scaling));
  HEADRACE_TRY(check_scale({"v_scale", &x.v_scale}, {"v", t.v}, p, p.v_scaling));
  return check_recent(x, p);
}

}  // namespace headrace
