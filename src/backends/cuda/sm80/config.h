// Shared by fwd/ and bwd/: head dims, general scores, work order. Host arithmetic, tested without a
// GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cuda/common/constants.h"
#include "base/math.h"
#include "core/problem.h"

namespace headrace::cuda::sm80 {

inline constexpr int kHeadDims[] = {64, 128, 256};
inline constexpr int kMaxHeadDim = 256;

// The smallest compiled head dim that holds both; 0: none.
constexpr int head_dim_bucket(const Problem& p) {
  const std::int64_t dim = p.head_dim > p.head_dim_v ? p.head_dim : p.head_dim_v;
  for (const int bucket : kHeadDims)
    if (dim <= bucket) return bucket;
  return 0;
}

// Whether rows of `dim` elements are whole 16-byte chunks, aligned.
constexpr bool is_even(const Problem& p, std::int64_t dim) {
  const int chunk = dtype_of(p) == DType::f32 ? 4 : 8;  // elements
  return p.alignment >= kWholeAlignment && dim % chunk == 0;
}

// Plain scores: scale, causal mask, window, sinks. Everything else is general.
constexpr bool needs_general_scores(const Problem& p) {
  return has_general_scores(p) || !(p.softmax_scale > 0);
}

// Relative error of a 3xTF32 product in units of 2^-24: splitting loses up to 2^-23 of each factor,
// and the product of the low parts, up to 2^-22, is omitted.
inline constexpr int k3xTf32ProductError = 8;

inline constexpr int kScoreRowBytes = 40;  // of a ScoreRow

// A work tile is what one CTA computes at a time: a tile or a split of one (batch entry, KV head).
// Work tiles run head by head, for L2 reuse. With a triangular mask they differ in length: the
// longest of a head come first. The last heads, as many as fill the GPU once, are interleaved: the
// longest work tile of each, then the second of each. Otherwise a launch would end with long work
// tiles on some SMs and none on the others.
struct WorkOrder {
  std::int64_t tiles_per_head, num_heads, last_heads;
  constexpr std::int64_t num_tiles() const { return tiles_per_head * num_heads; }
};
// `num_slots`: CTAs resident at once; 0: unknown.
constexpr WorkOrder work_order(const Problem& p, std::int64_t tiles_per_head,
                               std::int64_t num_slots) {
  const std::int64_t num_heads = p.batch * p.num_kv_heads;
  const bool is_simple = tiles_per_head == 0 || !is_triangular(p);
  const std::int64_t last = is_simple ? 0 : ceil_div(num_slots, tiles_per_head);
  return {tiles_per_head, num_heads, last < num_heads ? last : num_heads};
}

// a / b, in 32 bits where possible: 64-bit division is slow.
constexpr std::int64_t quotient(std::int64_t a, std::int64_t b) {
  const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
  if (((x | y) >> 32) == 0) return static_cast<std::uint32_t>(x) / static_cast<std::uint32_t>(y);
  return a / b;
}

struct WorkCoord {
  std::int64_t head_idx;
  int idx;  // work tile of the head
};
constexpr WorkCoord work_coord(const WorkOrder& order, std::int64_t work_idx) {
  const std::int64_t first_last = order.num_heads - order.last_heads;
  const std::int64_t among_last = work_idx - first_last * order.tiles_per_head;
  const bool is_last = among_last >= 0;
  const std::int64_t dividend = is_last ? among_last : work_idx;
  const std::int64_t divisor = is_last ? order.last_heads : order.tiles_per_head;
  const std::int64_t whole = quotient(dividend, divisor), rest = dividend - whole * divisor;
  if (is_last) return {first_last + rest, static_cast<int>(whole)};
  return {whole, static_cast<int>(rest)};
}

}  // namespace headrace::cuda::sm80
