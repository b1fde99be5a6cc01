// Online softmax on the accumulators of a warp: a thread has two rows and, of each, the columns
// 8 j + 2 (lane % 4) and the one after.
//
// A row's weights are 2^(score * c - reference). The usual reference is the running maximum; any
// that is near it gives the same relative precision, since a float carries its exponent. So a row's
// reference is the maximum of the first keys that it sees, and then moves seldom:
//   conditional  to the maximum, when that has grown by more than kGrowth. Each thread looks at its
//                own columns before the exponentials; where one asks for it the row's four agree;
//   lazy         to the maximum, when a thread's share of a step's weights, which it sums anyway,
//                is beyond 2^9: no maximum, no shuffle and nothing between the scores and the
//                exponentials. bf16 has the range of float for it. Scores that jump by more than
//                127 (in log2) in one step overflow: the sum shows it, and the row is computed
//                again (PreciseSoftmax).
// When and how far it moves depends on nothing but the row itself: its bits are the same in
// whatever tile it lies. A key that outweighs all others by what 16 bits can show moves the
// reference, so that its weight is 1 and the row is that key's V exactly.
#pragma once

#include "backends/cuda/common/constants.h"
#include "backends/cuda/device/mma.cuh"

namespace headrace::cuda::sm90 {

inline constexpr float kRescaleAboveSum = 0x1p9f;  // lazy: bf16 has 8 bits
inline constexpr float kMaxSum = 0x1p96f;          // of a row that is sound
inline constexpr float kMinSum = 0x1p-40f;         // where references are guesses
inline constexpr float kMaxRowMaxRef = 0x1p13f;    // beyond it score * c is not exact enough

// What the weights of products are: 2^exponent, for element i of the thread and a reference `from`.
// Here of a product that only lacks its factor; of others: kinds.cuh.
struct ScaledScores {
  float c;
  __device__ __forceinline__ float exponent(float x, float from, int) const {
    return fmaf(x, c, -from);
  }
  // The element as the maximum of its row is taken of it, -inf where it is hidden; and what the
  // maximum of row r is as a reference.
  __device__ __forceinline__ float masked(float x, int) const { return x; }
  __device__ __forceinline__ float to_log2(float x, int) const { return x * c; }
};

// The maximum of this thread's columns of each row.
template <int kKeys, class Score>
__device__ __forceinline__ void thread_max(const float (&s)[kKeys / 2], Score score,
                                           float (&top)[2]) {
  const auto masked = [&](int i) { return score.masked(s[i], i); };
  float part[2][2];  // two chains a row: one would wait for itself
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
  for (int r = 0; r < 2; ++r) top[r] = fmaxf(part[r][0], part[r][1]);
}
// Of what the four threads of a row have: the same in all.
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
template <int kKeys, class Score>
__device__ __forceinline__ void row_max(const float (&s)[kKeys / 2], Score score, float (&top)[2]) {
  thread_max<kKeys>(s, score, top);
#pragma unroll
  for (int r = 0; r < 2; ++r) top[r] = row_max(top[r]);
}

// Row r of the thread in element e of its group of four: e / 2. Weights are kept in units of
// 2^-kLift: f16 has no numbers below 2^-24, and room above 1. kGrowth is in log2.
template <int kKeys, int kLog2Scale, int kRescaleThreshold>
struct Softmax {
  float row_max_ref[2];  // -inf: the row has seen no key
  float sum[2];          // of this thread's columns

  // Scores to weights against the references; adds their sums, which are `share`.
  template <class Score>
  __device__ __forceinline__ void exponentials(float (&s)[kKeys / 2], Score score,
                                               float (&share)[2]) {
    float part[2][2] = {};
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float from = row_max_ref[r] == -INFINITY ? 0.0f : row_max_ref[r];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * j + 2 * r + e];
          x = ex2_approx_ftz(score.exponent(x, from, 4 * j + 2 * r + e));
          part[r][e] += x;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      share[r] = part[r][0] + part[r][1];
      sum[r] += share[r];
    }
  }

  // Rows that have seen no key yet take their reference from these scores.
  template <class Score>
  __device__ __forceinline__ void init_max(const float (&s)[kKeys / 2], Score score) {
    if (!__any_sync(0xffffffffu, row_max_ref[0] == -INFINITY || row_max_ref[1] == -INFINITY))
        [[likely]]
      return;
    float top[2];
    row_max<kKeys>(s, score, top);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (row_max_ref[r] == -INFINITY) row_max_ref[r] = score.to_log2(top[r], r) - kLog2Scale;
  }

  template <class Top, class Score>
  __device__ __forceinline__ void first_block(float (&s)[kKeys / 2], Top tops, Score score) {
    float top[2];
    row_max<kKeys>(s, tops, top);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row_max_ref[r] = tops.to_log2(top[r], r) - kLog2Scale;
      sum[r] = 0.0f;
    }
    float share[2];
    exponentials(s, score, share);
  }

  // Asks for the weights: nvcc 13.0 would compute them behind the wait for P V that follows, and
  // not under that product, but for a branch that needs their sum.
  __device__ __forceinline__ void pin_exponentials() const {
    const bool is_sound = sum[0] <= kMaxSum && sum[1] <= kMaxSum;
    if (__any_sync(0xffffffffu, !is_sound)) [[unlikely]]
      __nanosleep(20);
  }

  // True for the whole warp: O and these weights must be multiplied by `factor`.
  template <class Score>
  __device__ __forceinline__ bool lazy_update(float (&s)[kKeys / 2], Score score,
                                              float (&factor)[2]) {
    float share[2];
    exponentials(s, score, share);
    const bool is_small = share[0] <= kRescaleAboveSum && share[1] <= kRescaleAboveSum;
    if (!__any_sync(0xffffffffu, !is_small)) [[likely]]
      return false;
    float top[2];
    row_max<kKeys>(s, ScaledScores{1.0f}, top);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool moves = row_max(share[r]) > kRescaleAboveSum;  // the four threads must agree
      // 2^-126 is the smallest factor that is no denormal.
      const float growth = moves ? fminf(__log2f(top[r]), 126.0f) : 0.0f;
      factor[r] = ex2_approx_ftz(-growth);
      row_max_ref[r] += growth;
      sum[r] *= factor[r];
    }
    return true;
  }

  // True for the whole warp: O must be multiplied by `factor`.
  template <class Score>
  __device__ __forceinline__ bool conditional_update(float (&s)[kKeys / 2], Score score,
                                                     float (&factor)[2]) {
    const auto grows = [&](float top, int r) {
      return score.to_log2(top, r) - row_max_ref[r] >
             static_cast<float>(kLog2Scale + kRescaleThreshold);
    };
    float top[2];
    thread_max<kKeys>(s, score, top);
    const bool moves = __any_sync(0xffffffffu, grows(top[0], 0) || grows(top[1], 1));
    if (moves) [[unlikely]] {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float best = row_max(top[r]);
        const float next = grows(best, r) ? score.to_log2(best, r) - kLog2Scale : row_max_ref[r];
        factor[r] = grows(best, r) ? ex2_approx_ftz(row_max_ref[r] - next) : 1.0f;
        sum[r] *= factor[r];
        row_max_ref[r] = next;
      }
    }
    float share[2];
    exponentials(s, score, share);
    return moves;
  }
};

// For rows of large scores, of overflows, of V near the largest float: the difference to the
// maximum before the product, references that follow the maximum, weights far below 1 (kLift < 0).
template <int kKeys, int kLog2Scale>
struct PreciseSoftmax {
  float maximum[2];  // of the scores, before the product with c; -inf: the row has seen no key
  float sum[2];

  __device__ __forceinline__ float row_max_ref(int r, float c) const {
    return maximum[r] * c - kLog2Scale;
  }

  __device__ __forceinline__ void init() {
    maximum[0] = maximum[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
  }

  // O must be multiplied by `factor`.
  __device__ __forceinline__ void update(float (&s)[kKeys / 2], float c, float (&factor)[2]) {
    float top[2];
    row_max<kKeys>(s, ScaledScores{c}, top);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float next = fmaxf(maximum[r], top[r]);
      factor[r] = maximum[r] == next ? 1.0f : ex2_approx_ftz((maximum[r] - next) * c);
      sum[r] *= factor[r];
      maximum[r] = next;
      const float from = next == -INFINITY ? 0.0f : next;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * j + 2 * r + e];
          x = ex2_approx_ftz(fmaf(x - from, c, static_cast<float>(kLog2Scale)));
          sum[r] += x;
        }
      }
    }
  }
};

}  // namespace headrace::cuda::sm90
