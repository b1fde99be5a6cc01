// The accumulators of a sum: its chains take the steps of 16 columns in turns (num_chains()).
#pragma once

namespace headrace::cuda::gemm {

// Two chains never give -0: kernels differ in the steps of zeros behind the last column, and those
// may turn a chain of -0 into one of 0.
template <int kChains>
__device__ __forceinline__ float add_chains(float first, float last) {
  static_assert(kChains == 1 || kChains == 2);
  return kChains == 1 ? first : first + last + 0.0f;
}

}  // namespace headrace::cuda::gemm
