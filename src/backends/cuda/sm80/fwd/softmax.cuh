// One iteration of the online softmax (Milakov and Gimelshein, 2018) on the fragments of a row.
//
// P = 2^(s scale - row_max_ref) is one FFMA and one ex2; its relative error is the rounding error
// of row_max_ref. That is harmless while the largest P still rounds to a power of two. For a large
// row_max_ref the maximum is subtracted from the scores first; with float always.
#pragma once

#include "backends/cuda/device/mma.cuh"

namespace headrace::cuda::sm80::fwd {

// If all scores are -inf, any finite maximum gives P = 0. NaN scores still give NaN.
__device__ __forceinline__ float finite_row_max(float row_max) {
  return row_max == -HUGE_VALF ? 0.0f : row_max;
}

template <bool kIsFloat>
__device__ __forceinline__ bool is_large_ref(float row_max_ref) {
  return kIsFloat || fabsf(row_max_ref) > 1024.0f;
}

struct RowMaxUpdate {
  float row_max_ref, rescale;  // rescale: factor for sum and O
  bool is_large;
};

// kHalf: elements 2 kHalf and 2 kHalf + 1 of each fragment belong to the row. Updates row_max.
template <bool kIsFloat, int kHalf, int kBlocks>
__device__ __forceinline__ RowMaxUpdate update_row_max(const float (&s)[kBlocks][4], float scale,
                                                       float shift, float& row_max) {
  const float before = row_max;
  float top = before;
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) top = fmaxf(top, fmaxf(s[j][2 * kHalf], s[j][2 * kHalf + 1]));
  top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
  row_max = top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
  const float used = finite_row_max(top), row_max_ref = fmaf(used, scale, -shift);
  const bool is_large = is_large_ref<kIsFloat>(row_max_ref);
  const float change =
      is_large ? (before - used) * scale : fmaf(before, scale, -shift) - row_max_ref;
  return {row_max_ref, ex2_approx_ftz(change), is_large};
}

template <bool kIsFloat, int kHalf, int kBlocks>
__device__ __forceinline__ void subtract_row_max(float row_max, float shift, float (&s)[kBlocks][4],
                                                 float& row_max_ref) {
  if (!is_large_ref<kIsFloat>(row_max_ref)) return;
  const float used = finite_row_max(row_max);
#pragma unroll
  for (int n = 0; n < 2 * kBlocks; ++n) s[n / 2][2 * kHalf + n % 2] -= used;
  row_max_ref = -shift;
}

}  // namespace headrace::cuda::sm80::fwd
