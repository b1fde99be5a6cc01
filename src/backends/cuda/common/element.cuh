// Elements of the four floating-point dtypes, converted from and to the compute type.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/problem.h"

namespace headrace::cuda {

// float for everything but double.
template <class T>
struct ComputeType {
  using type = float;
};
template <>
struct ComputeType<double> {
  using type = double;
};

__device__ inline float load_real(const float* x, std::int64_t idx) { return x[idx]; }
__device__ inline double load_real(const double* x, std::int64_t idx) { return x[idx]; }
__device__ inline float load_real(const __half* x, std::int64_t idx) {
  return __half2float(x[idx]);
}
__device__ inline float load_real(const __nv_bfloat16* x, std::int64_t idx) {
  return __bfloat162float(x[idx]);
}

// Rounds to nearest, ties to even; NaN stays NaN.
__device__ inline void store_real(float* x, std::int64_t idx, float value) { x[idx] = value; }
__device__ inline void store_real(double* x, std::int64_t idx, double value) { x[idx] = value; }
__device__ inline void store_real(__half* x, std::int64_t idx, float value) {
  x[idx] = __float2half_rn(value);
}
__device__ inline void store_real(__nv_bfloat16* x, std::int64_t idx, float value) {
  x[idx] = __float2bfloat16_rn(value);
}

}  // namespace headrace::cuda
