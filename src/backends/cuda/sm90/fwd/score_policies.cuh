// Score policies of kernels with one feature, each compiled on its own: a feature costs a few
// instructions an element, and no code of other features is in the loop.
//
//   alibi    a linear term in the key index, left and right of the diagonal
//   softcap  tanh by a polynomial where no score of a warp is near the cap
//   bias     an additive bias: S starts as bias / scale
//   dropout  one more warpgroup draws masks of packed P (dropout_masks.cuh)
//
// Everything here depends on the row and the key alone, so the branch that a warp takes changes no
// bits. Recomputed rows (PreciseSoftmax) use the scores of common/scores.cuh.
#pragma once

#include "backends/cuda/common/scores.cuh"
#include "backends/cuda/sm90/fwd/softmax.cuh"

namespace headrace::cuda::sm90::fwd {

// Element i of a thread's accumulators: its row, its column relative to the thread's first, and its
// bit in a mask of the row's columns.
__device__ constexpr int row_of(int i) { return i / 2 % 2; }
__device__ constexpr int column_of(int i) { return 8 * (i / 4) + i % 2; }
__device__ constexpr int bit_of(int i) { return 2 * (i / 4) + i % 2; }

// ---- ALiBi
struct AlibiRows {
  float slope[2];  // in log2
  float natural_slope[2];
  float max_term[2];  // maximum of the ALiBi term over the keys of the tile that the row sees
  int diagonal[2];
  int first_diagonal, last_diagonal;  // of the warp
};
// Of a k-block: score * c + slope * (distance + column).
struct AlibiBlock {
  float c;
  float slope[2], distance[2];
  u32 left[2];  // with kCrossesDiagonal: bit bit_of(i) is set where the key is left of the diagonal
};
// kCrossesDiagonal: some row of the warp has its diagonal within the k-block.
template <bool kCrossesDiagonal>
struct AlibiScores {
  const AlibiBlock& block;
  __device__ __forceinline__ float slope(int i) const {
    const float x = block.slope[row_of(i)];
    return kCrossesDiagonal && (block.left[row_of(i)] >> bit_of(i) & 1) == 0 ? -x : x;
  }
  __device__ __forceinline__ float exponent(float x, float row_max_ref, int i) const {
    const float m = slope(i), begin = fmaf(m, block.distance[row_of(i)], -row_max_ref);
    return fmaf(x, block.c, fmaf(m, static_cast<float>(column_of(i)), begin));
  }
  // The score, in log2.
  __device__ __forceinline__ float value(float x, int i) const {
    const float m = slope(i), begin = m * block.distance[row_of(i)];
    return fmaf(x, block.c, fmaf(m, static_cast<float>(column_of(i)), begin));
  }
};
// row_max_ref starts with the largest term that the slope can give, not with that of the first
// keys: without a causal mask the first keys are the farthest, and row_max_ref would move in every
// k-block after them, or overflow.
struct AlibiMax {
  float c;
  const AlibiRows& rows;
  __device__ __forceinline__ float masked(float x, int) const { return x; }
  __device__ __forceinline__ float to_log2(float x, int r) const {
    return fmaf(x, c, rows.max_term[r]);
  }
};

// ---- softcap
// With v = score * scale, the polynomial is for |v| < 2: bit 30 of a float is set from 2 on.
struct SoftcapParams {
  float scale;
  float factor[5];  // of v, v^3 ...; the polynomial is softcap * tanh in log2
  float log2;       // softcap in log2
};
inline constexpr float kSoftcapPolyRange = 0.6f;  // of tanh's argument; v is 2 there
inline constexpr u32 kAtLeastTwo = 1u << 30;
__device__ __forceinline__ SoftcapParams softcap_params(const ScoreParams& params) {
  // tanh(x) / x in x^2: our own fit, relative error 8.4e-8.
  constexpr float kSeries[5] = {1.0f, -0x1.555368p-2f, 0x1.10a712p-3f, -0x1.abb818p-5f,
                                0x1.ff9844p-7f};
  SoftcapParams x;
  x.scale = params.scale_over_softcap * (2 / kSoftcapPolyRange);
  x.log2 = params.softcap * kLog2E;
  float power = kSoftcapPolyRange / 2;
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    x.factor[i] = kSeries[i] * power * x.log2;
    power *= kSoftcapPolyRange * kSoftcapPolyRange / 4;
  }
  return x;
}
// kHandlesAll: elements may be large or masked.
template <bool kHandlesAll>
struct SoftcapScores {
  const SoftcapParams& params;
  const u32 (&visible)[2];  // bit bit_of(i)
  __device__ __forceinline__ float quotient(float v) const {
    const float square = v * v;
    float x = fmaf(params.factor[4], square, params.factor[3]);
    x = fmaf(x, square, params.factor[2]);
    x = fmaf(x, square, params.factor[1]);
    return fmaf(x, square, params.factor[0]);
  }
  // tanh = 1 - 2 / (e^2x + 1). Both forms are computed: the elements of a warp rarely agree.
  __device__ __forceinline__ float large(float v) const {
    float quotient;
    asm("rcp.approx.ftz.f32 %0, %1;"
        : "=f"(quotient)
        : "f"(ex2_approx_ftz(fabsf(v) * (kSoftcapPolyRange * kLog2E)) + 1.0f));
    return copysignf(fmaf(-2.0f, quotient, 1.0f), v);
  }
  __device__ __forceinline__ float exponent(float v, float row_max_ref, int i) const {
    const float small = fmaf(quotient(v), v, -row_max_ref);
    if constexpr (!kHandlesAll) return small;
    const float far = fmaf(large(v), params.log2, -row_max_ref);
    const float x = (__float_as_uint(v) & kAtLeastTwo) == 0 ? small : far;
    return (visible[row_of(i)] >> bit_of(i) & 1) != 0 ? x : -INFINITY;
  }
  // -inf: masked.
  __device__ __forceinline__ float masked(float v, int i) const {
    if constexpr (!kHandlesAll) return v;
    return (visible[row_of(i)] >> bit_of(i) & 1) != 0 ? fmaxf(v, -0x1p120f) : -INFINITY;
  }
  __device__ __forceinline__ float to_log2(float v, int) const {
    if (v == -INFINITY) return v;
    return (__float_as_uint(v) & kAtLeastTwo) == 0 ? quotient(v) * v : large(v) * params.log2;
  }
};
// True where some element of the thread is large, or NaN.
template <int kCount>
__device__ __forceinline__ bool scale_for_softcap(const SoftcapParams& params, float (&s)[kCount]) {
  u32 bits[2] = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    s[i] *= params.scale;
    bits[i / 2 % 2] |= __float_as_uint(s[i]);
  }
  return ((bits[0] | bits[1]) & kAtLeastTwo) != 0;
}

}  // namespace headrace::cuda::sm90::fwd
