// Writes elements of out.
#pragma once

#include "backends/cuda/gemm/params.h"
#include "backends/cuda/sm90/element.cuh"

namespace headrace::cuda::gemm {

// sum: of row `row` of all matrices, for a token.
template <class Element>
__device__ __forceinline__ void store(const Output& out, int token, int row, float sum) {
  using Stored = typename Element::Stored;
  const std::int64_t i = token * out.stride + row;
  if (out.bias != nullptr) sum += out.bias[row];
  if (out.is_float != 0) {
    float* to = static_cast<float*>(out.data) + i;
    *to = out.adds != 0 ? *to + sum : sum;
  } else {
    Stored* to = static_cast<Stored*>(out.data) + i;
    *to = static_cast<Stored>(out.adds != 0 ? static_cast<float>(*to) + sum : sum);
  }
}

// Rows `row` and, if it exists, the next: one access where the pair is aligned.
template <class Element>
__device__ __forceinline__ void store_pair(const Output& out, int token, int row, float sum0,
                                           float sum1, bool has_both) {
  const std::int64_t i = token * out.stride + row;
  if (!has_both || i % 2 != 0 || out.is_float != 0) {
    store<Element>(out, token, row, sum0);
    if (has_both) store<Element>(out, token, row + 1, sum1);
    return;
  }
  if (out.bias != nullptr) {
    sum0 += out.bias[row];
    sum1 += out.bias[row + 1];
  }
  u32* to = reinterpret_cast<u32*>(static_cast<typename Element::Stored*>(out.data) + i);
  if (out.adds != 0) {
    const float2 old = Element::unpack(*to);
    sum0 += old.x;
    sum1 += old.y;
  }
  *to = Element::pack(sum0, sum1);
}

// The accumulators of a warpgroup for 64 tokens by kRows rows (wgmma.cuh), of which `rows` exist.
// token: of this thread's first accumulator.
template <class Element, int kRows>
__device__ __forceinline__ void store_tile(const Output& out, const float (&d)[kRows / 2],
                                           int token, int num_tokens, int first_row, int rows) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (token + 8 * half >= num_tokens) continue;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const int column = 8 * j + 2 * (static_cast<int>(threadIdx.x) & 3);
      if (column < rows)
        store_pair<Element>(out, token + 8 * half, first_row + column, d[4 * j + 2 * half],
                            d[4 * j + 2 * half + 1], column + 1 < rows);
    }
  }
}

}  // namespace headrace::cuda::gemm
