// Scores that need one thing more than a plain kernel's, each with a kernel of its own: what that
// costs is a few instructions an element, and nothing else is in its way.
//
//   sloped   ALiBi: a line in the number of the key, left and right of the diagonal
//   capped   softcap: a polynomial where no score of a warp is near the cap
//   biased   an additive bias: S begins with it
//   dropped  dropout: a warpgroup of its own draws masks of packed weights (drop_masks.cuh)
//
// Everything here is a function of the row and the key alone: which way a warp takes changes no
// bits. Rows are computed again (PreciseSoftmax) with the scores of common/scores.cuh.
#pragma once

#include "backends/cuda/common/scores.cuh"
#include "backends/cuda/sm90/fwd/softmax.cuh"

namespace headrace::cuda::sm90 {

// Element i of a thread's accumulators: row i / 2 % 2, this many columns behind its first, and its
// number among those of the row.
__device__ constexpr int row_of(int i) { return i / 2 % 2; }
__device__ constexpr int column_of(int i) { return 8 * (i / 4) + i % 2; }
__device__ constexpr int bit_of(int i) { return 2 * (i / 4) + i % 2; }

// ---- sloped
struct AlibiRows {
  float slope[2];  // in log2
  float natural_slope[2];
  float max_term[2];  // of the slope's part, over the keys that the row sees
  int diagonal[2];
  int first_diagonal, last_diagonal;  // of the warp
};
struct AlibiBlock {
  float c;
  float slope[2], distance[2];  // score * c + slope * (distance + column)
  u32 left[2];                  // mixed: bit number_of(i) where the key is left of the diagonal
};
// kIsMixed: some row of the warp has its diagonal within the step.
template <bool kCrossesDiagonal>
struct AlibiScores {
  const AlibiBlock& step;
  __device__ __forceinline__ float slope(int i) const {
    const float x = step.slope[row_of(i)];
    return kCrossesDiagonal && (step.left[row_of(i)] >> bit_of(i) & 1) == 0 ? -x : x;
  }
  __device__ __forceinline__ float exponent(float x, float from, int i) const {
    const float m = slope(i), begin = fmaf(m, step.distance[row_of(i)], -from);
    return fmaf(x, step.c, fmaf(m, static_cast<float>(column_of(i)), begin));
  }
  // Without a reference.
  __device__ __forceinline__ float value(float x, int i) const {
    const float m = slope(i), begin = m * step.distance[row_of(i)];
    return fmaf(x, step.c, fmaf(m, static_cast<float>(column_of(i)), begin));
  }
};
// The reference begins with the best that a slope can do, not with what the first keys have:
// uncausal rows meet the farthest first, and would move with every step after it, or overflow.
struct AlibiMax {
  float c;
  const AlibiRows& rows;
  __device__ __forceinline__ float masked(float x, int) const { return x; }
  __device__ __forceinline__ float to_log2(float x, int r) const {
    return fmaf(x, c, rows.max_term[r]);
  }
};

// ---- capped
// With v = score * scale, |v| < 2 is what the polynomial is for: bit 30 of a float says so.
struct SoftcapParams {
  float scale;
  float factor[5];  // of v, v^3 ...: softcap * tanh in log2
  float log2;       // softcap in log2
};
inline constexpr float kSoftcapPolyRange = 0.6f;  // of tanh's argument, 2 of v
inline constexpr u32 kAtLeastTwo = 1u << 30;
__device__ __forceinline__ SoftcapParams softcap_params(const ScoreParams& numbers) {
  // tanh(x) / x in x^2: our own fit, relative error 8.4e-8.
  constexpr float kSeries[5] = {1.0f, -0x1.555368p-2f, 0x1.10a712p-3f, -0x1.abb818p-5f,
                                0x1.ff9844p-7f};
  SoftcapParams x;
  x.scale = numbers.scale_over_softcap * (2 / kSoftcapPolyRange);
  x.log2 = numbers.softcap * kLog2E;
  float power = kSoftcapPolyRange / 2;
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    x.factor[i] = kSeries[i] * power * x.log2;
    power *= kSoftcapPolyRange * kSoftcapPolyRange / 4;
  }
  return x;
}
// kIsAny: elements may be large, or hidden.
template <bool kHandlesAll>
struct SoftcapScores {
  const SoftcapParams& numbers;
  const u32 (&visible)[2];  // bit number_of(i)
  __device__ __forceinline__ float quotient(float v) const {
    const float square = v * v;
    float x = fmaf(numbers.factor[4], square, numbers.factor[3]);
    x = fmaf(x, square, numbers.factor[2]);
    x = fmaf(x, square, numbers.factor[1]);
    return fmaf(x, square, numbers.factor[0]);
  }
  // tanh = 1 - 2 / (e^2x + 1), both ways computed: elements of a warp seldom agree.
  __device__ __forceinline__ float large(float v) const {
    float quotient;
    asm("rcp.approx.ftz.f32 %0, %1;"
        : "=f"(quotient)
        : "f"(ex2_approx_ftz(fabsf(v) * (kSoftcapPolyRange * kLog2E)) + 1.0f));
    return copysignf(fmaf(-2.0f, quotient, 1.0f), v);
  }
  __device__ __forceinline__ float exponent(float v, float from, int i) const {
    const float small = fmaf(quotient(v), v, -from);
    if constexpr (!kHandlesAll) return small;
    const float far = fmaf(large(v), numbers.log2, -from);
    const float x = (__float_as_uint(v) & kAtLeastTwo) == 0 ? small : far;
    return (visible[row_of(i)] >> bit_of(i) & 1) != 0 ? x : -INFINITY;
  }
  // -inf: hidden.
  __device__ __forceinline__ float masked(float v, int i) const {
    if constexpr (!kHandlesAll) return v;
    return (visible[row_of(i)] >> bit_of(i) & 1) != 0 ? fmaxf(v, -0x1p120f) : -INFINITY;
  }
  __device__ __forceinline__ float to_log2(float v, int) const {
    if (v == -INFINITY) return v;
    return (__float_as_uint(v) & kAtLeastTwo) == 0 ? quotient(v) * v : large(v) * numbers.log2;
  }
};
// True where some element of the thread is large, or NaN.
template <int kCount>
__device__ __forceinline__ bool scale_for_softcap(const SoftcapParams& numbers,
                                                  float (&s)[kCount]) {
  u32 bits[2] = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    s[i] *= numbers.scale;
    bits[i / 2 % 2] |= __float_as_uint(s[i]);
  }
  return ((bits[0] | bits[1]) & kAtLeastTwo) != 0;
}

}  // namespace headrace::cuda::sm90
