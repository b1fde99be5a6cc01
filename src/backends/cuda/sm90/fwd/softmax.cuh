// Online softmax on the accumulators of a warp: a thread has two rows and, of each, the columns
// 8 j + 2 (lane % 4) and the one after.
//
// A row's weights are 2^(score * c - reference) with an integer reference. The usual choice is the
// running maximum; any reference near it gives the same relative precision, since a float carries
// its exponent. So the reference of a row is the maximum of the first keys that it sees, rounded up,
// and then moves seldom:
//   conditional  when the maximum has grown by more than 2^8 (weights must fit f16);
//   lazy         when the row's sum, which is needed anyway, has grown beyond 2^32: no maximum, no
//                shuffle and nothing between the scores and the exponentials. bf16 has the range of
//                float for it. Scores that jump by more than 2^95 between two steps overflow: the
//                sum shows it, and the row is computed again, conditionally.
// A move is a factor of a power of two and depends on nothing but the row itself: its bits are the
// same in whatever tile it lies.
#pragma once

#include "backends/cuda/device/mma.cuh"

namespace headrace::cuda::sm90 {

inline constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
inline constexpr float kMoveAboveSum = 0x1p32f;   // lazy
inline constexpr float kMoveAboveGrowth = 8.0f;   // conditional, in log2
inline constexpr float kLargestSum = 0x1p96f;     // of a lazy row that is sound

// Row r of the thread in element e of its group of four: e / 2.
template <int kKeys>
struct Softmax {
  float reference[2];  // -inf: the row has seen no key
  float sum[2];        // of this thread's columns

  __device__ __forceinline__ void row_max(const float (&s)[kKeys / 2], float (&top)[2]) const {
    float part[2][2];  // two chains a row: one would wait for itself
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      part[r][0] = fmaxf(s[2 * r], s[2 * r + 1]);
      part[r][1] = fmaxf(s[4 + 2 * r], s[4 + 2 * r + 1]);
    }
#pragma unroll
    for (int j = 2; j < kKeys / 8; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        part[r][j & 1] = fmaxf(part[r][j & 1], s[4 * j + 2 * r]);
        part[r][j & 1] = fmaxf(part[r][j & 1], s[4 * j + 2 * r + 1]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = fmaxf(part[r][0], part[r][1]);
      top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
      top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2));
    }
  }

  // Scores to weights against the references; adds their sum.
  __device__ __forceinline__ void exponentials(float (&s)[kKeys / 2], float c) {
    float part[2][2] = {};
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float from = reference[r] == -INFINITY ? 0.0f : reference[r];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * j + 2 * r + e];
          x = exp2_approx(fmaf(x, c, -from));
          part[r][e] += x;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += part[r][0] + part[r][1];
  }

  // Rows that have seen no key yet take their reference from these scores.
  __device__ __forceinline__ void adopt(const float (&s)[kKeys / 2], float c) {
    if (!__any_sync(0xffffffffu, reference[0] == -INFINITY || reference[1] == -INFINITY)) return;
    float top[2];
    row_max(s, top);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (reference[r] == -INFINITY) reference[r] = ceilf(top[r] * c);
  }

  __device__ __forceinline__ void first(float (&s)[kKeys / 2], float c) {
    float top[2];
    row_max(s, top);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference[r] = ceilf(top[r] * c);
      sum[r] = 0.0f;
    }
    exponentials(s, c);
  }

  // True for the whole warp: O and these weights must be multiplied by `factor`.
  __device__ __forceinline__ bool lazy_step(float (&s)[kKeys / 2], float c, float (&factor)[2]) {
    exponentials(s, c);
    const bool is_sound = sum[0] <= kMoveAboveSum && sum[1] <= kMoveAboveSum;
    if (!__any_sync(0xffffffffu, !is_sound)) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = sum[r];  // of the four threads of a row, which must agree
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      const int exponent =
          largest > kMoveAboveSum ? min((__float_as_int(largest) >> 23) - 127, 126) : 0;
      factor[r] = __int_as_float((127 - exponent) << 23);
      reference[r] += static_cast<float>(exponent);
      sum[r] *= factor[r];
    }
    return true;
  }

  // True for the whole warp: O must be multiplied by `factor`.
  __device__ __forceinline__ bool conditional_step(float (&s)[kKeys / 2], float c,
                                                   float (&factor)[2]) {
    float top[2];
    row_max(s, top);
    const bool grows[2] = {top[0] * c - reference[0] > kMoveAboveGrowth,
                           top[1] * c - reference[1] > kMoveAboveGrowth};
    const bool moves = __any_sync(0xffffffffu, grows[0] || grows[1]);
    if (moves) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float next = grows[r] ? ceilf(top[r] * c) : reference[r];
        factor[r] = grows[r] ? exp2_approx(reference[r] - next) : 1.0f;
        sum[r] *= factor[r];
        reference[r] = next;
      }
    }
    exponentials(s, c);
    return moves;
  }
};

// What a row ends with: its O is multiplied by `inverse`.
struct RowEnd {
  float inverse, lse;
};
__device__ __forceinline__ RowEnd end_row(float reference, float sum, float sink) {
  if (sum == 0.0f) return {0.0f, -INFINITY};  // empty, whatever the sink; NaN goes on
  float factor = 1.0f;
  const float above = sink * kLog2e - reference;  // the sink, relative to the reference
  if (above > 0.0f) {
    factor = exp2_approx(-above);
    sum = fmaf(sum, factor, 1.0f);
    reference += above;
  } else {
    sum += exp2_approx(above);  // 0 without a sink, which is -inf then
  }
  return {__fdividef(factor, sum), (reference + __log2f(sum)) * kLn2};
}

}  // namespace headrace::cuda::sm90
