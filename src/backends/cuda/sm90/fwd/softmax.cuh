// Online softmax on the accumulators of a warp: a thread has two rows and, of each, the columns
// 8 j + 2 (lane % 4) and the one after.
//
// P of a row is 2^(score * c - row_max_ref). FlashAttention's row_max_ref is the running maximum.
// Any value near it gives the same relative precision, since a float carries its exponent. So
// row_max_ref is the maximum of the first keys that the row sees, and is rarely updated after that:
//   conditional  to the maximum, when that has grown by more than kRescaleThreshold. Each thread
//                tests its own columns before the exponentials; if one exceeds the threshold, the
//                four threads of the row reduce their maxima;
//   lazy         to the maximum, when a thread's part of the row sum of a k-block, which it
//                computes anyway, exceeds 2^9: no maximum, no shuffle and nothing between the
//                scores and the exponentials. bf16 has the range of float for it. Scores that jump
//                by more than 127 (in log2) within one k-block overflow: the sum shows it, and the
//                row is recomputed (PreciseSoftmax).
// When and how far row_max_ref moves depends only on the row itself: its bits are the same in any
// tile. A key that outweighs all others by more than 16 bits can represent moves row_max_ref, so
// that its P is 1 and the row is exactly that key's V.
#pragma once

#include "backends/cuda/common/constants.h"
#include "backends/cuda/device/mma.cuh"

namespace headrace::cuda::sm90::fwd {

inline constexpr float kRescaleAboveSum = 0x1p9f;  // lazy: bf16 has 8 bits
inline constexpr float kMaxSum = 0x1p96f;          // of a valid row
inline constexpr float kMinSum = 0x1p-40f;         // of a valid row where row_max_ref is a guess
inline constexpr float kMaxRowMaxRef = 0x1p13f;    // beyond it score * c is not exact enough

// A score policy: the exponent of P of element i of the thread is exponent(x, row_max_ref, i);
// masked(x, i) is the value that its row maximum is taken of, -inf where it is masked;
// to_log2(max, r) is the maximum of row r in units of row_max_ref. Here for S that only lacks its
// factor; other policies: score_policies.cuh.
struct ScaledScores {
  float c;
  __device__ __forceinline__ float exponent(float x, float row_max_ref, int) const {
    return fmaf(x, c, -row_max_ref);
  }
  __device__ __forceinline__ float masked(float x, int) const { return x; }
  // Rounded: the compiler would fuse it with what is subtracted, in some kernels and not in others.
  __device__ __forceinline__ float to_log2(float x, int) const { return __fmul_rn(x, c); }
};

// The maximum of this thread's columns of each row.
template <int kKeys, class Score>
__device__ __forceinline__ void thread_max(const float (&s)[kKeys / 2], Score score,
                                           float (&max)[2]) {
  const auto masked = [&](int i) { return score.masked(s[i], i); };
  float part[2][2];  // two dependency chains a row
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    part[r][0] = fmaxf(masked(2 * r), masked(2 * r + 1));
    part[r][1] = fmaxf(masked(4 + 2 * r), masked(4 + 2 * r + 1));
  }
#pragma unroll
  for (int j = 2; j < kKeys / 8; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      part[r][j & 1] = fmaxf(part[r][j & 1], masked(4 * j + 2 * r));
      part[r][j & 1] = fmaxf(part[r][j & 1], masked(4 * j + 2 * r + 1));
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) max[r] = fmaxf(part[r][0], part[r][1]);
}
// Over the four threads of a row; all get the same value.
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
template <int kKeys, class Score>
__device__ __forceinline__ void row_max(const float (&s)[kKeys / 2], Score score, float (&max)[2]) {
  thread_max<kKeys>(s, score, max);
#pragma unroll
  for (int r = 0; r < 2; ++r) max[r] = row_max(max[r]);
}

// Row r of the thread has elements 2 r and 2 r + 1 of each group of four. P is in units of
// 2^-kLog2Scale: f16 has no values below 2^-24, and range above 1. kRescaleThreshold is in log2.
template <int kKeys, int kLog2Scale, int kRescaleThreshold>
struct Softmax {
  float row_max_ref[2];  // -inf: the row has seen no key
  float sum[2];          // of this thread's columns

  // S becomes P. Adds this thread's sums, which are also returned in `thread_sum`.
  template <class Score>
  __device__ __forceinline__ void exponentials(float (&s)[kKeys / 2], Score score,
                                               float (&thread_sum)[2]) {
    float part[2][2] = {};
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float max_ref = row_max_ref[r] == -INFINITY ? 0.0f : row_max_ref[r];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * j + 2 * r + e];
          x = ex2_approx_ftz(score.exponent(x, max_ref, 4 * j + 2 * r + e));
          part[r][e] += x;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      thread_sum[r] = part[r][0] + part[r][1];
      sum[r] += thread_sum[r];
    }
  }

  // Initializes row_max_ref of rows that have seen no key yet.
  template <class Score>
  __device__ __forceinline__ void init_max(const float (&s)[kKeys / 2], Score score) {
    if (!__any_sync(0xffffffffu, row_max_ref[0] == -INFINITY || row_max_ref[1] == -INFINITY))
        [[likely]]
      return;
    float max[2];
    row_max<kKeys>(s, score, max);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (row_max_ref[r] == -INFINITY) row_max_ref[r] = score.to_log2(max[r], r) - kLog2Scale;
  }

  // The first k-block of a tile. `max_score` is the policy for the maximum.
  template <class MaxScore, class Score>
  __device__ __forceinline__ void first_block(float (&s)[kKeys / 2], MaxScore max_score,
                                              Score score) {
    float max[2];
    row_max<kKeys>(s, max_score, max);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row_max_ref[r] = max_score.to_log2(max[r], r) - kLog2Scale;
      sum[r] = 0.0f;
    }
    float thread_sum[2];
    exponentials(s, score, thread_sum);
  }

  // Makes nvcc compute P here. nvcc 13.0 moves the exponentials behind the following wait for P V,
  // where they do not overlap with that product, unless a branch depends on their sum.
  __device__ __forceinline__ void pin_exponentials() const {
    const bool is_valid = sum[0] <= kMaxSum && sum[1] <= kMaxSum;
    if (__any_sync(0xffffffffu, !is_valid)) [[unlikely]]
      __nanosleep(20);
  }

  // True for the whole warp: O and this P must be multiplied by `factor`.
  template <class Score>
  __device__ __forceinline__ bool lazy_update(float (&s)[kKeys / 2], Score score,
                                              float (&factor)[2]) {
    float thread_sum[2];
    exponentials(s, score, thread_sum);
    const bool is_small = thread_sum[0] <= kRescaleAboveSum && thread_sum[1] <= kRescaleAboveSum;
    if (!__any_sync(0xffffffffu, !is_small)) [[likely]]
      return false;
    float max[2];
    row_max<kKeys>(s, ScaledScores{1.0f}, max);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool moves = row_max(thread_sum[r]) > kRescaleAboveSum;  // the four threads must agree
      // 2^-126 is the smallest factor that is not denormal.
      const float growth = moves ? fminf(__log2f(max[r]), 126.0f) : 0.0f;
      factor[r] = ex2_approx_ftz(-growth);
      row_max_ref[r] += growth;
      sum[r] = __fmul_rn(sum[r], factor[r]);
    }
    return true;
  }

  // True for the whole warp: O must be multiplied by `factor`.
  template <class Score>
  __device__ __forceinline__ bool conditional_update(float (&s)[kKeys / 2], Score score,
                                                     float (&factor)[2]) {
    const auto grows = [&](float max, int r) {
      return score.to_log2(max, r) - row_max_ref[r] >
             static_cast<float>(kLog2Scale + kRescaleThreshold);
    };
    float max[2];
    thread_max<kKeys>(s, score, max);
    const bool moves = __any_sync(0xffffffffu, grows(max[0], 0) || grows(max[1], 1));
    if (moves) [[unlikely]] {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float new_max = row_max(max[r]);
        const float next =
            grows(new_max, r) ? score.to_log2(new_max, r) - kLog2Scale : row_max_ref[r];
        factor[r] = grows(new_max, r) ? ex2_approx_ftz(row_max_ref[r] - next) : 1.0f;
        sum[r] = __fmul_rn(sum[r], factor[r]);
        row_max_ref[r] = next;
      }
    }
    float thread_sum[2];
    exponentials(s, score, thread_sum);
    return moves;
  }
};

// For rows with large scores, with overflows, with V near the largest float: the maximum is
// subtracted before the product with c, it is the running maximum, and P is far below 1
// (kLog2Scale < 0).
template <int kKeys, int kLog2Scale>
struct PreciseSoftmax {
  float max[2];  // of the scores, before the product with c; -inf: the row has seen no key
  float sum[2];

  __device__ __forceinline__ float row_max_ref(int r, float c) const {
    return __fmul_rn(max[r], c) - kLog2Scale;
  }

  __device__ __forceinline__ void init() {
    max[0] = max[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
  }

  // O must be multiplied by `factor`.
  __device__ __forceinline__ void update(float (&s)[kKeys / 2], float c, float (&factor)[2]) {
    float block_max[2];
    row_max<kKeys>(s, ScaledScores{c}, block_max);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float next = fmaxf(max[r], block_max[r]);
      factor[r] = max[r] == next ? 1.0f : ex2_approx_ftz((max[r] - next) * c);
      sum[r] = __fmul_rn(sum[r], factor[r]);
      max[r] = next;
      const float max_ref = next == -INFINITY ? 0.0f : next;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * j + 2 * r + e];
          x = ex2_approx_ftz(fmaf(x - max_ref, c, static_cast<float>(kLog2Scale)));
          sum[r] += x;
        }
      }
    }
  }
};

}  // namespace headrace::cuda::sm90::fwd
