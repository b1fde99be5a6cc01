// The online softmax (Milakov and Gimelshein, 2018) of a split, on fragments with keys as M.
#pragma once

#include "backends/cuda/common/row_epilogue.cuh"
#include "backends/cuda/sm90/decode/batch.cuh"
#include "backends/cuda/sm90/decode/fragments.cuh"

namespace headrace::cuda::sm90::decode {

// A compiled variant. Shared prefixes have their own, and calls that begin beside an append
// (AttentionArgs::follows_append): code that a call does not need costs instruction fetches.
template <class ElementOfVariant, int kDimOfVariant, int kRowsOfVariant,
          bool kHasPrefixOfVariant = false, bool kIsEarlyOfVariant = false>
struct Variant {
  using Element = ElementOfVariant;
  static constexpr int kDim = kDimOfVariant, kRows = kRowsOfVariant;
  static constexpr bool kHasPrefix = kHasPrefixOfVariant, kIsEarly = kIsEarlyOfVariant;
};

// Log2 of the largest P. f16 uses its whole range, so that small P keep their digits. bf16 has the
// exponents of float: 64 P of at most 2^-6 sum to 1 at most, so that a sum over values that bf16
// holds stays finite.
template <class Element>
inline constexpr float kPShift = Element::kHasFloatRange ? -6.0f : 15.0f;

// If all scores are -inf, any finite maximum gives P = 0. NaN scores still give NaN.
__device__ __forceinline__ float finite_row_max(float row_max) {
  return row_max == -HUGE_VALF ? 0.0f : row_max;
}

// By which sums shrink where the largest score grows.
__device__ __forceinline__ float shrink_factor(float before, float row_max, float scale_log2) {
  return ex2_approx_ftz((before - finite_row_max(row_max)) * scale_log2);
}
// P of a score. `ref`: finite_row_max() of its row.
template <class Element>
__device__ __forceinline__ float prob_of(float score, float ref, float scale_log2) {
  return ex2_approx_ftz(fmaf(score - ref, scale_log2, kPShift<Element>));
}

// Queries of the lane's rows, a byte each, for masks.
template <int kRowBlocks>
__device__ __forceinline__ u32 query_bytes(const Params& p, int lane) {
  static_assert(kRowBlocks <= 2 && kMaxRows < 256);
  u32 bytes = 0;
#pragma unroll
  for (int i = 0; i < 2 * kRowBlocks; ++i) {
    const int row = 8 * (i / 2) + 2 * (lane & 3) + i % 2;
    bytes |= static_cast<u32>(p.by_group.divide(row)) << 8 * i;
  }
  return bytes;
}
// Keys of the lane in a block: first_key + g and + g + 8. Rows that do not exist take the limits of
// the last query.
template <int kRowBlocks>
__device__ __forceinline__ void mask_scores(const Item& item, u32 queries,
                                            float (&s)[kRowBlocks][4], int first_key, int lane) {
#pragma unroll
  for (int i = 0; i < 4 * kRowBlocks; ++i) {
    const int n = i / 4, h = i % 2;
    const int q_idx = min(static_cast<int>(queries >> 8 * (2 * n + h) & 0xffu), item.seqlen_q - 1);
    const int key = first_key + (lane >> 2) + i % 4 / 2 * 8;
    if (key < item.left + q_idx || key >= min(item.right + q_idx, item.seqlen_k))
      s[n][i % 4] = -HUGE_VALF;
  }
}

template <int kRowBlocks>
__device__ __forceinline__ void block_max(const float (&s)[kRowBlocks][4],
                                          float (&top)[kRowBlocks][2]) {
#pragma unroll
  for (int i = 0; i < 2 * kRowBlocks; ++i) {
    float& x = top[i / 2][i % 2];
    x = fmaxf(s[i / 2][i % 2], s[i / 2][i % 2 + 2]);
#pragma unroll
    for (int step = 4; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  }
}

// Sums of a split: 16 kTiles dims of O, the largest score before the scale, and the lane's part of
// the sum of P.
template <class Element, int kRowBlocks, int kTiles>
struct SplitSums {
  float o[kTiles][kRowBlocks][4], row_max[kRowBlocks][2], sum[kRowBlocks][2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < kRowBlocks; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        row_max[n][h] = -HUGE_VALF;
        sum[n][h] = 0.0f;
      }
#pragma unroll
      for (int i = 0; i < 4 * kTiles; ++i) o[i / 4][n][i % 4] = 0.0f;
    }
  }

  // S of a block becomes P, packed as the B operand of V^T P^T. A block that a row does not see
  // leaves the row unchanged: its rescale factor is 1, or 0 where the sums are still 0.
  __device__ __forceinline__ void add_probs(float (&s)[kRowBlocks][4],
                                            const float (&top)[kRowBlocks][2], float scale_log2,
                                            u32 (&p)[kRowBlocks][2]) {
    if (grows(top)) rescale(top, scale_log2);
#pragma unroll
    for (int n = 0; n < kRowBlocks; ++n) {
      const float ref[2] = {finite_row_max(row_max[n][0]), finite_row_max(row_max[n][1])};
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = prob_of<Element>(s[n][i], ref[i % 2], scale_log2);
      sum[n][0] += s[n][0] + s[n][2];
      sum[n][1] += s[n][1] + s[n][3];
      p[n][0] = movmatrix_trans(Element::pack(s[n][0], s[n][1]));
      p[n][1] = movmatrix_trans(Element::pack(s[n][2], s[n][3]));
    }
  }

  // Whether a maximum of any row of the warp grows.
  __device__ __forceinline__ bool grows(const float (&top)[kRowBlocks][2]) const {
    bool grows = false;
#pragma unroll
    for (int i = 0; i < 2 * kRowBlocks; ++i) grows |= top[i / 2][i % 2] > row_max[i / 2][i % 2];
    return __any_sync(0xffffffffu, grows);
  }
  __device__ __forceinline__ void rescale(const float (&top)[kRowBlocks][2], float scale_log2) {
#pragma unroll
    for (int r = 0; r < 2 * kRowBlocks; ++r) {
      float& max = row_max[r / 2][r % 2];
      const float before = max;
      max = fmaxf(before, top[r / 2][r % 2]);
      const float factor = shrink_factor(before, max, scale_log2);
      // Rounded: P is added to it, and the compiler would fuse where no branch is between.
      sum[r / 2][r % 2] = __fmul_rn(sum[r / 2][r % 2], factor);
#pragma unroll
      for (int j = 0; j < 2 * kTiles; ++j) o[j / 2][r / 2][j % 2 * 2 + r % 2] *= factor;
    }
  }
  // The sums of P become those of all lanes, O the mean of the values, so that merging cannot
  // overflow. Rows that saw no key get 0, also where a NaN that other rows see reached their sums.
  __device__ __forceinline__ void normalise() {
#pragma unroll
    for (int r = 0; r < 2 * kRowBlocks; ++r) {
      float& all = sum[r / 2][r % 2];
#pragma unroll
      for (int step = 4; step < 32; step *= 2) all += __shfl_xor_sync(0xffffffffu, all, step);
      const bool is_empty = all == 0.0f;
      const float factor = rcp_approx(all);
#pragma unroll
      for (int j = 0; j < 2 * kTiles; ++j) {
        float& x = o[j / 2][r / 2][j % 2 * 2 + r % 2];
        x = is_empty ? 0.0f : x * factor;
      }
    }
  }
};

}  // namespace headrace::cuda::sm90::decode
