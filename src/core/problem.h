// Helpers on a validated headrace_problem (shapes and features, no pointers) for kernel selection,
// planning and kernels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/codes.h"
#include "headrace/tensor.hpp"

namespace headrace {

using Problem = headrace_problem;
using DeviceInfo = headrace_device_info;

// Alignment in bytes that TMA, cp.async and vector loads need of addresses and strides.
inline constexpr std::int32_t kWholeAlignment = 16;

constexpr DType dtype_of(const Problem& p) { return static_cast<DType>(p.dtype); }
constexpr std::int64_t group_size(const Problem& p) {
  return p.num_kv_heads == 0 ? 1 : p.num_heads / p.num_kv_heads;
}
constexpr bool is_backward(const Problem& p) { return p.phase == HEADRACE_BACKWARD; }
constexpr bool has_bias(const Problem& p) { return p.bias_dtype >= 0; }
constexpr bool has_causal(const Problem& p) { return p.causal != HEADRACE_CAUSAL_NONE; }
constexpr bool has_softcap(const Problem& p) { return p.softcap > 0; }
constexpr bool has_dropout(const Problem& p) { return p.dropout_p > 0; }
constexpr bool has_pages(const Problem& p) { return p.page_size > 0; }
constexpr DType k_dtype_of(const Problem& p) {
  return static_cast<DType>(p.k_dtype < 0 ? p.dtype : p.k_dtype);
}
constexpr DType v_dtype_of(const Problem& p) {
  return static_cast<DType>(p.v_dtype < 0 ? p.dtype : p.v_dtype);
}
constexpr bool has_codes(const Problem& p) {
  return k_dtype_of(p) != dtype_of(p) || v_dtype_of(p) != dtype_of(p);
}
constexpr bool has_recent(const Problem& p) { return p.recent_group > 0; }
// Whether lengths of sequences are tensors of the call.
constexpr bool has_device_lengths(const Problem& p) { return p.is_ragged || p.has_seqused_k; }
// Whether the rows of k and v are packed, [total, heads, dim].
constexpr bool has_ragged_keys(const Problem& p) { return p.is_ragged && !has_pages(p); }

// "General" scores need more per element than scale, causal, window and sinks.
constexpr bool has_general_scores(const Problem& p) {
  return has_softcap(p) || has_bias(p) || has_dropout(p) || p.has_alibi || p.has_mask ||
         p.has_tree_mask;
}

// True if later queries see more keys than earlier ones, so that tiles of a sequence differ in
// length.
constexpr bool is_triangular(const Problem& p) {
  return p.window_left < 0 && (has_causal(p) || p.window_right >= 0);
}

// Causal mask and window: which keys a query may see.
struct Window {
  std::int64_t left, right;  // in keys, inclusive; -1: open
  std::int32_t causal;       // headrace_causal
};
constexpr Window window_of(const Problem& p) { return {p.window_left, p.window_right, p.causal}; }
constexpr bool has_causal(const Window& w) { return w.causal != HEADRACE_CAUSAL_NONE; }

// Offset from a query's index to its diagonal key, query i to key i + shift. Causal masks, windows
// and ALiBi all use it. Bottom-right alignment unless the mask is top-left.
constexpr std::int64_t diagonal_shift(bool is_top_left, std::int64_t seqlen_q,
                                      std::int64_t seqlen_k) {
  return is_top_left ? 0 : seqlen_k - seqlen_q;
}
constexpr std::int64_t diagonal_shift(const Window& w, std::int64_t seqlen_q,
                                      std::int64_t seqlen_k) {
  return diagonal_shift(w.causal == HEADRACE_CAUSAL_TOP_LEFT, seqlen_q, seqlen_k);
}
constexpr std::int64_t diagonal_shift(const Problem& p, std::int64_t seqlen_q,
                                      std::int64_t seqlen_k) {
  return diagonal_shift(window_of(p), seqlen_q, seqlen_k);
}

// The keys [begin, end) visible to query `q_idx` under causal mask and window; may be empty.
struct KeyRange {
  std::int64_t begin, end;
};
constexpr KeyRange visible_keys(const Window& w, std::int64_t q_idx, std::int64_t seqlen_q,
                                std::int64_t seqlen_k) {
  const std::int64_t diagonal = q_idx + diagonal_shift(w, seqlen_q, seqlen_k);
  KeyRange keys{0, seqlen_k};
  if (has_causal(w)) keys.end = std::min(keys.end, diagonal + 1);
  if (w.right >= 0) keys.end = std::min(keys.end, diagonal + w.right + 1);
  if (w.left >= 0) keys.begin = std::max<std::int64_t>(0, diagonal - w.left);
  keys.end = std::max<std::int64_t>(keys.end, 0);
  keys.begin = std::min(keys.begin, keys.end);
  return keys;
}
constexpr KeyRange visible_keys(const Problem& p, std::int64_t q_idx, std::int64_t seqlen_q,
                                std::int64_t seqlen_k) {
  return visible_keys(window_of(p), q_idx, seqlen_q, seqlen_k);
}

// The form in which a query sees a key, if k and v are codes with recent keys.
enum class KeyForm { stored, recent };

// The first key that a query at `position`, its diagonal key, sees as a recent one: keys of its own
// group. Earlier keys are codes.
constexpr std::int64_t first_recent(const Problem& p, std::int64_t position) {
  return position < 0 ? 0 : position / p.recent_group * p.recent_group;
}

// Those of `keys` that a query at `position` sees in this form.
constexpr KeyRange keys_in_form(const Problem& p, KeyRange keys, std::int64_t position,
                                KeyForm form) {
  if (!has_recent(p)) return keys;
  const std::int64_t first = first_recent(p, position);
  return form == KeyForm::stored ? KeyRange{keys.begin, std::min(keys.end, first)}
                                 : KeyRange{std::max(keys.begin, first), keys.end};
}

}  // namespace headrace
