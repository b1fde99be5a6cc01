// Checks of Problem: values only, no tensors.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/tensor_checks.h"
#include "attention/validate.h"
#include "base/math.h"

namespace headrace {
namespace {

// Maximum of each axis and of batch * num_heads: dropout's counters are 32-bit. Tensors may have
// far more elements.
constexpr std::int64_t kMaxSize = INT32_MAX;

Status check_sizes(const Problem& p) {
  // Almost always: kMaxSize is all ones, so a negative or larger size has a bit beyond it.
  const std::int64_t bits = p.batch | p.seqlen_q | p.seqlen_k | p.total_q | p.total_k |
                            p.num_heads | p.head_dim | p.num_kv_heads | p.head_dim_v | p.page_size |
                            p.num_pages | p.max_pages | p.recent_group | p.num_recent_pages |
                            p.max_recent | p.max_shared_prefix;
  if ((bits & ~kMaxSize) == 0) return std::nullopt;
  const struct {
    const char* name;
    std::int64_t size;
  } sizes[] = {{"batch", p.batch},
               {"seqlen_q", p.seqlen_q},
               {"seqlen_k", p.seqlen_k},
               {"total_q", p.total_q},
               {"total_k", p.total_k},
               {"num_heads", p.num_heads},
               {"head_dim", p.head_dim},
               {"num_kv_heads", p.num_kv_heads},
               {"head_dim_v", p.head_dim_v},
               {"page_size", p.page_size},
               {"num_pages", p.num_pages},
               {"max_pages", p.max_pages},
               {"recent_group", p.recent_group},
               {"num_recent_pages", p.num_recent_pages},
               {"max_recent", p.max_recent},
               {"max_shared_prefix", p.max_shared_prefix}};
  for (const auto& [name, size] : sizes) {
    if (size < 0 || size > kMaxSize)
      return invalid_argument("problem.{}={}: must be 0 to {}; correct the shape it comes from",
                              name, size, kMaxSize);
  }
  return std::nullopt;
}

// Offsets and workspace sizes are int64: the bytes of every tensor, and of f64 partial results of
// every row, must fit with a margin, also if some axis is 0 (workspace sizes ignore that).
Status check_products(const Problem& p) {
  if (p.batch * p.num_heads > kMaxSize)
    return invalid_argument(
        "batch={} with num_heads={}: their product must be at most {}; split the call", p.batch,
        p.num_heads, kMaxSize);
  const std::int64_t seqlen = std::max({p.seqlen_q, p.seqlen_k, std::int64_t{1}});
  std::int64_t bytes = 8 * (p.head_dim + p.head_dim_v);
  if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(p.batch * p.num_heads, 1), &bytes) ||
      __builtin_mul_overflow(bytes, seqlen, &bytes))
    return invalid_argument(
        "batch={}, num_heads={}, sequences of {} rows, head_dim={}: the byte size of all rows must "
        "fit 64 bits; split the call",
        p.batch, p.num_heads, seqlen, p.head_dim);
  return std::nullopt;
}

Status check_heads(const Problem& p) {
  if ((p.num_kv_heads == 0) != (p.num_heads == 0) ||
      (p.num_kv_heads > 0 && p.num_heads % p.num_kv_heads != 0))
    return invalid_argument(
        "num_heads={} (q.shape) with num_kv_heads={} (k.shape): num_heads must be a multiple of "
        "num_kv_heads (query head h reads KV head h / (num_heads / num_kv_heads)); pass k and v "
        "with a head count that divides that of q",
        p.num_heads, p.num_kv_heads);
  const struct {
    const char* name;
    std::int64_t dim;
  } dims[] = {{"head_dim", p.head_dim}, {"head_dim_v", p.head_dim_v}};
  for (const auto& [name, dim] : dims) {
    if (dim < 1 || dim > kMaxHeadDim)
      return unsupported(
          "{}={}: the kernels support 1 to {}; split or project the head to that size", name, dim,
          kMaxHeadDim);
  }
  return std::nullopt;
}

Status check_key_dtype(const char* name, std::int32_t dtype, std::int32_t scaling, std::int64_t dim,
                       const Problem& p) {
  const auto type = static_cast<DType>(dtype);
  if (dtype != p.dtype && !is_code(type))
    return invalid_argument("problem.{}_dtype={}: must be {} (dtype), {}; set it to -1 for dtype",
                            name, dtype_name(type), dtype_name(dtype_of(p)), kCodeNames);
  HEADRACE_TRY(check_whole_bytes(name[0] == 'k' ? "k.dtype" : "v.dtype", type, dim));
  const bool is_scaled =
      scaling == HEADRACE_SCALING_PER_KEY || scaling == HEADRACE_SCALING_PER_SEQUENCE;
  const bool is_possible = has_zero_points(type)   ? scaling == HEADRACE_SCALING_ZERO_POINTS
                           : type == DType::f8e4m3 ? is_scaled || scaling == 0
                           : is_code(type)         ? is_scaled
                                                   : scaling == 0;
  if (!is_possible)
    return invalid_argument(
        "problem.{}_scaling={} with {}_dtype={}: must be 1 or 2 for i8 and i4x2, also 0 for "
        "f8e4m3, 3 for u4x2 and u2x4, and 0 for others; use a headrace_scaling value",
        name, scaling, name, dtype_name(type));
  if (has_zero_points(type) && !has_pages(p))
    return invalid_argument("{}.dtype={}: codes with zero points are for pages; pass block_table",
                            name, dtype_name(type));
  return std::nullopt;
}

// Keys with zero points count in groups, of which pages and the groups of recent keys are
// multiples.
Status check_key_groups(const Problem& p) {
  if (!has_zero_points(k_dtype_of(p))) return std::nullopt;
  if (p.page_size % kZeroPointGroup == 0 && p.recent_group % kZeroPointGroup == 0)
    return std::nullopt;
  return invalid_argument(
      "k.dtype={} with page_size={} and groups of {} recent keys: both must be multiples of {}, "
      "the "
      "keys of a scale; use pages of 32 or 64 and groups of 32",
      dtype_name(k_dtype_of(p)), p.page_size, p.recent_group, kZeroPointGroup);
}

Status check_recent(const Problem& p) {
  if (!has_recent(p)) {
    if (p.num_recent_pages == 0 && p.max_recent == 0) return std::nullopt;
    return invalid_argument(
        "problem.num_recent_pages={}, problem.max_recent={}: must be 0 without recent_group; set "
        "recent_group or clear them",
        p.num_recent_pages, p.max_recent);
  }
  if (!has_codes(p) || !has_pages(p))
    return invalid_argument(
        "k_recent: given, but k and v are {}; recent keys belong to codes in pages; leave them out",
        has_codes(p) ? "not paged" : "no codes");
  if (p.has_tree_mask)
    return invalid_argument(
        "k_recent with tree_mask: the nodes of a tree have no positions of their own; leave one "
        "out");
  if (p.causal == HEADRACE_CAUSAL_BOTTOM_RIGHT || (p.seqlen_q <= 1 && p.causal == 0))
    return std::nullopt;
  return invalid_argument(
      "k_recent with causal={} and seqlen_q={}: a query needs a position, its diagonal key; set "
      "causal to 1 (bottom-right)",
      p.causal, p.seqlen_q);
}

Status check_dtypes(const Problem& p) {
  const DType dtype = dtype_of(p);
  if (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16 && dtype != DType::f64)
    return invalid_argument("q.dtype={}: must be f32, f16, bf16 or f64; convert q, k, v and out",
                            dtype_name(dtype));
  HEADRACE_TRY(check_key_dtype("k", p.k_dtype, p.k_scaling, p.head_dim, p));
  HEADRACE_TRY(check_key_dtype("v", p.v_dtype, p.v_scaling, p.head_dim_v, p));
  HEADRACE_TRY(check_key_groups(p));
  if (!has_bias(p)) return std::nullopt;
  const auto bias_dtype = static_cast<DType>(p.bias_dtype);
  const bool is_f64_pair = dtype == DType::f64 && bias_dtype == DType::f64;
  if (bias_dtype != dtype && bias_dtype != DType::f32 && !is_f64_pair)
    return invalid_argument("bias.dtype={}: must be {} (the dtype of q){}; convert bias",
                            dtype_name(bias_dtype), dtype_name(dtype),
                            dtype == DType::f32 ? "" : " or f32");
  return std::nullopt;
}

// Kernels use the value as float, where 1e300 would be infinite and 1e-300 zero.
bool fits_compute_type(const Problem& p, double value) {
  return dtype_of(p) == DType::f64 ? std::isfinite(value)
                                   : std::isfinite(static_cast<float>(value));
}

double default_scale(const Problem& p) { return 1.0 / std::sqrt(static_cast<double>(p.head_dim)); }

Status check_scalars(const Problem& p) {
  if (!fits_compute_type(p, p.softmax_scale))
    return invalid_argument(
        "softmax_scale={}: must be finite{}; pass the factor of q k^T, or NaN for the default "
        "head_dim^-0.5={}",
        p.softmax_scale, dtype_of(p) == DType::f64 ? "" : " as f32", default_scale(p));
  const bool vanishes =
      p.softcap > 0 && dtype_of(p) != DType::f64 && !std::isnormal(static_cast<float>(p.softcap));
  if (!(p.softcap >= 0) || !fits_compute_type(p, p.softcap) || vanishes)
    return invalid_argument(
        "softcap={}: must be 0 (none) or a positive normal number{}; set it to "
        "the bound c of c * tanh(score / c)",
        p.softcap, dtype_of(p) == DType::f64 ? "" : " as f32");
  if (!(p.dropout_p >= 0 && p.dropout_p < 1))
    return invalid_argument(
        "dropout_p={}: must be in [0, 1); pass the probability of dropping, 0 for none",
        p.dropout_p);
  return std::nullopt;
}

Status check_masking(const Problem& p) {
  if (p.causal < HEADRACE_CAUSAL_NONE || p.causal > HEADRACE_CAUSAL_TOP_LEFT)
    return invalid_argument(
        "causal={}: must be 0 (none), 1 (bottom-right) or 2 (top-left); use "
        "a headrace_causal value",
        p.causal);
  const struct {
    const char* name;
    std::int64_t size;
  } windows[] = {{"window_left", p.window_left}, {"window_right", p.window_right}};
  for (const auto& [name, size] : windows) {
    if (size < -1)
      return invalid_argument("{}={}: must be -1 (open) or a number of keys; pass -1 for no limit",
                              name, size);
  }
  if (p.num_splits < 0)
    return invalid_argument("num_splits={}: must not be negative; pass 0 to choose automatically",
                            p.num_splits);
  return std::nullopt;
}

Status check_layout(const Problem& p) {
  const bool is_power = p.alignment >= 0 && (p.alignment & (p.alignment - 1)) == 0;
  if (is_power && p.alignment <= kWholeAlignment) return std::nullopt;
  return invalid_argument(
      "problem.alignment={}: must be 1, 2, 4, 8 or 16 bytes (0 means 16); set it to the alignment "
      "of the addresses and strides of q, k, v and out",
      p.alignment);
}

Status check_combinations(const Problem& p) {
  if (p.has_tree_mask && !p.is_ragged && p.seqlen_q > p.seqlen_k)
    return invalid_argument(
        "tree_mask with seqlen_q={} and seqlen_k={}: seqlen_q must be at most seqlen_k (the draft "
        "queries are the last keys); append their keys to k and v first",
        p.seqlen_q, p.seqlen_k);
  if (p.has_probs && has_device_lengths(p))
    return invalid_argument(
        "probs given for {}: only dense batches of equal lengths support probs; call without probs "
        "or one sequence at a time",
        p.is_ragged ? "a ragged batch" : "a batch with seqused_k");
  std::int64_t count = p.batch;
  if (p.has_probs &&
      (__builtin_mul_overflow(count, p.num_heads, &count) ||
       __builtin_mul_overflow(count, p.seqlen_q, &count) ||
       __builtin_mul_overflow(count, p.seqlen_k, &count) || count > kMaxProbsElements))
    return invalid_argument(
        "probs of shape [{}, {}, {}, {}]: must have at most {} elements (probs are for debugging "
        "small shapes); call without probs or on a slice",
        p.batch, p.num_heads, p.seqlen_q, p.seqlen_k, kMaxProbsElements);
  if (!has_pages(p) && (p.num_pages != 0 || p.max_pages != 0))
    return invalid_argument(
        "problem.num_pages={}, problem.max_pages={}: must be 0 without pages; set page_size or "
        "clear them",
        p.num_pages, p.max_pages);
  if (!has_pages(p) && p.max_shared_prefix != 0)
    return invalid_argument(
        "max_shared_prefix={}: must be 0 without block_table, since equal pages are looked for; "
        "pass keys in pages or leave it 0",
        p.max_shared_prefix);
  if (has_pages(p) && (!p.has_seqused_k || p.total_k != 0))
    return invalid_argument(
        "problem.page_size={} with has_seqused_k={} and total_k={}: keys in pages have seqused_k "
        "and no total_k; set has_seqused_k and clear total_k",
        p.page_size, p.has_seqused_k, p.total_k);
  if (has_pages(p) && p.seqlen_k > saturating_product({p.max_pages, p.page_size}))
    return invalid_argument(
        "problem.seqlen_k={}: must be at most max_pages={} * page_size={}; set it to the longest "
        "length or add columns to block_table",
        p.seqlen_k, p.max_pages, p.page_size);
  if (!p.is_ragged && (p.total_q != 0 || p.total_k != 0))
    return invalid_argument(
        "problem.total_q={}, problem.total_k={}: must be 0 for a dense batch; "
        "set is_ragged or clear them",
        p.total_q, p.total_k);
  return std::nullopt;
}

Status check_phase(const Problem& p) {
  if (p.phase != HEADRACE_FORWARD && p.phase != HEADRACE_BACKWARD)
    return invalid_argument(
        "problem.phase={}: must be 0 (forward) or 1 (backward); use a headrace_phase value",
        p.phase);
  const struct {
    const char* name;
    bool is_set, is_allowed;
    const char* rule;
  } flags[] = {
      {"has_dlse", p.has_dlse != 0, is_backward(p), "phase 1 (backward)"},
      {"has_dbias", p.has_dbias != 0, is_backward(p) && has_bias(p), "phase 1 and a bias"},
      {"has_dsinks", p.has_dsinks != 0, is_backward(p) && p.has_sinks, "phase 1 and sinks"},
      {"has_probs", p.has_probs != 0, !is_backward(p), "phase 0 (forward)"},
      {"has_seqused_k", p.has_seqused_k != 0, !is_backward(p), "phase 0 (forward)"},
      {"k_dtype or v_dtype of codes", has_codes(p), !is_backward(p), "phase 0 (forward)"}};
  for (const auto& [name, is_set, is_allowed, rule] : flags) {
    if (is_set && !is_allowed)
      return invalid_argument("problem.{}=1: needs {}; clear it or set that", name, rule);
  }
  if (is_backward(p) && !p.has_lse)
    return invalid_argument(
        "problem.has_lse=0 with phase=1: the backward needs the lse of the forward; set has_lse");
  return std::nullopt;
}

// cu_seqlens are int32, and every row must belong to a sequence.
Status check_ragged(const Problem& p) {
  if (!p.is_ragged) return std::nullopt;
  const struct {
    const char* name;
    std::int64_t total, max_seqlen;
  } sides[] = {{"q", p.total_q, p.seqlen_q}, {"k", p.total_k, p.seqlen_k}};
  for (const auto& [name, total, max_seqlen] : sides) {
    if (total > INT32_MAX)
      return invalid_argument(
          "{}.shape[0]={}: a ragged batch must have at most 2147483647 rows (cu_seqlens are "
          "32-bit); split the batch",
          name, total);
    if (total > 0 && p.batch == 0)
      return invalid_argument(
          "cu_seqlens_{} of 0 sequences with {}.shape[0]={}: must end with the number of rows; "
          "pass "
          "[batch + 1] entries",
          name, name, total);
    if (total > 0 && max_seqlen < 1)
      return invalid_argument(
          "max_seqlen_{}={}: must be an upper bound of the sequence lengths, at least 1 for {} "
          "rows; set it in the options of a ragged batch",
          name, max_seqlen, total);
    if (max_seqlen > INT32_MAX)
      return invalid_argument(
          "max_seqlen_{}={}: must be at most 2147483647; set it to the longest sequence", name,
          max_seqlen);
  }
  return std::nullopt;
}

// No sequence is longer than the total number of rows, and some kernels' work grows with the
// bounds. Bias and mask keep max_seqlen_k: it is their number of columns.
void tighten_bounds(Problem& p) {
  if (!p.is_ragged) return;
  p.seqlen_q = std::min(p.seqlen_q, p.total_q);
  if (has_ragged_keys(p) && !has_bias(p) && !p.has_mask)
    p.seqlen_k = std::min(p.seqlen_k, p.total_k);
}

Failure other_problem(const char* name, std::int64_t planned, std::int64_t arrived) {
  return invalid_argument(
      "tensors: {}={} but the plan was made for {}={}; make a plan for this problem or pass "
      "tensors of the planned one",
      name, arrived, name, planned);
}

std::int64_t open_if_idle(std::int64_t window, const Problem& p) {
  // A window past every key hides nothing, and arithmetic with it could overflow.
  return window >= p.seqlen_q + p.seqlen_k ? -1 : window;
}

}  // namespace

headrace_attention_options default_options() {
  headrace_attention_options options{};
  options.struct_size = sizeof options;
  options.softmax_scale = std::nan("");
  options.window_left = options.window_right = -1;
  return options;
}

Problem default_problem() {
  Problem p{};
  p.struct_size = sizeof p;
  p.batch = p.seqlen_q = p.seqlen_k = 1;
  p.num_heads = p.num_kv_heads = p.head_dim = p.head_dim_v = 1;
  p.window_left = p.window_right = -1;
  p.softmax_scale = std::nan("");
  p.dtype = HEADRACE_F32;
  p.bias_dtype = -1;
  p.k_dtype = p.v_dtype = -1;
  p.alignment = kWholeAlignment;
  return p;
}

Result<Problem> check_problem(const Problem& problem) {
  Problem p = problem;
  if (auto bad = complete_problem(p)) return std::move(*bad);
  return p;
}

Status complete_problem(Problem& p) {
  if (p.k_dtype == -1) p.k_dtype = p.dtype;
  if (p.v_dtype == -1) p.v_dtype = p.dtype;
  using Check = Status (*)(const Problem&);
  for (const Check check :
       {check_phase, check_ragged, check_sizes, check_heads, check_products, check_dtypes,
        check_masking, check_recent, check_layout, check_combinations}) {
    HEADRACE_TRY(check(p));
  }
  if (std::isnan(p.softmax_scale)) p.softmax_scale = default_scale(p);
  HEADRACE_TRY(check_scalars(p));
  tighten_bounds(p);
  p.window_left = open_if_idle(p.window_left, p);
  p.window_right = open_if_idle(p.window_right, p);
  p.max_shared_prefix = std::min(p.max_shared_prefix, p.seqlen_k);
  for (std::int32_t* flag :
       {&p.is_ragged, &p.has_alibi, &p.has_mask, &p.has_tree_mask, &p.has_sinks, &p.has_lse,
        &p.has_probs, &p.has_seqused_k, &p.has_dlse, &p.has_dbias, &p.has_dsinks, &p.deterministic,
        &p.strict_fallback, &p.strict_rows, &p.checked, &p.has_negative_strides})
    *flag = *flag != 0;
  if (p.alignment == 0) p.alignment = kWholeAlignment;
  return std::nullopt;
}

Status check_same_problem(const Problem& planned, const Problem& call) {
  // One comparison each: a table of the fields would be built on every run.
#define HEADRACE_SAME(name) \
  if (planned.name != call.name) return other_problem(#name, planned.name, call.name)
  HEADRACE_SAME(is_ragged);
  HEADRACE_SAME(dtype);
  HEADRACE_SAME(batch);
  HEADRACE_SAME(seqlen_q);
  HEADRACE_SAME(seqlen_k);
  HEADRACE_SAME(total_q);
  HEADRACE_SAME(total_k);
  HEADRACE_SAME(num_heads);
  HEADRACE_SAME(num_kv_heads);
  HEADRACE_SAME(head_dim);
  HEADRACE_SAME(head_dim_v);
  HEADRACE_SAME(bias_dtype);
  HEADRACE_SAME(has_alibi);
  HEADRACE_SAME(has_mask);
  HEADRACE_SAME(has_sinks);
  HEADRACE_SAME(has_tree_mask);
  HEADRACE_SAME(has_lse);
  HEADRACE_SAME(has_probs);
  HEADRACE_SAME(has_dlse);
  HEADRACE_SAME(has_dbias);
  HEADRACE_SAME(has_dsinks);
  HEADRACE_SAME(has_seqused_k);
  HEADRACE_SAME(page_size);
  HEADRACE_SAME(num_pages);
  HEADRACE_SAME(max_pages);
  HEADRACE_SAME(k_dtype);
  HEADRACE_SAME(v_dtype);
  HEADRACE_SAME(k_scaling);
  HEADRACE_SAME(v_scaling);
  HEADRACE_SAME(recent_group);
  HEADRACE_SAME(num_recent_pages);
  HEADRACE_SAME(max_recent);
#undef HEADRACE_SAME
  if (call.alignment < planned.alignment)
    return invalid_argument(
        "tensors: an address or stride of q, k, v, out or of their gradients is aligned to only {} "
        "bytes but the plan was made for alignment={}; make a plan for this problem or pass "
        "aligned "
        "tensors",
        call.alignment, planned.alignment);
  if (call.has_negative_strides && !planned.has_negative_strides)
    return invalid_argument(
        "tensors: q, k, v, out or one of their gradients has a negative stride but the plan was "
        "made for non-negative strides; make a plan for this problem or pass views without "
        "negative strides");
  return std::nullopt;
}

Status copy_versioned(const char* name, const void* theirs, std::size_t min_bytes, void* ours,
                      std::size_t our_bytes) {
  constexpr std::size_t kMaxGrowth = 4096;
  if (theirs == nullptr)
    return invalid_argument(
        "{}=NULL: must point to a struct; pass one that its init function filled", name);
  std::size_t bytes = 0;
  std::memcpy(&bytes, theirs, sizeof bytes);
  if (bytes < min_bytes || bytes % alignof(std::int64_t) != 0 || bytes > our_bytes + kMaxGrowth)
    return invalid_argument(
        "{}.struct_size={}: must be sizeof of the struct ({} in this library, at least {}); call "
        "its init function first",
        name, bytes, our_bytes, min_bytes);
  const auto* source = static_cast<const unsigned char*>(theirs);
  for (std::size_t i = our_bytes; i < bytes; ++i) {
    if (source[i] != 0)
      return unsupported(
          "{}: byte {} is set, but this library ({}.{}.{}) only knows {} bytes of it; leave newer "
          "fields zero or load a newer library",
          name, i, HEADRACE_VERSION_MAJOR, HEADRACE_VERSION_MINOR, HEADRACE_VERSION_PATCH,
          our_bytes);
  }
  std::memcpy(ours, theirs, std::min(bytes, our_bytes));
  std::memcpy(ours, &our_bytes, sizeof our_bytes);
  return std::nullopt;
}

}  // namespace headrace
