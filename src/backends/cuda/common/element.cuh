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

// The same of a dtype that is known at run time: f32, f16 or bf16.
__device__ inline float load_real(DType dtype, const void* data, std::int64_t idx) {
  switch (dtype) {
    case DType::f16:
      return load_real(static_cast<const __half*>(data), idx);
    case DType::bf16:
      return load_real(static_cast<const __nv_bfloat16*>(data), idx);
    default:
      return load_real(static_cast<const float*>(data), idx);
  }
}
__device__ inline void store_real(DType dtype, void* data, std::int64_t idx, float value) {
  switch (dtype) {
    case DType::f16:
      return store_real(static_cast<__half*>(data), idx, value);
    case DType::bf16:
      return store_real(static_cast<__nv_bfloat16*>(data), idx, value);
    default:
      return store_real(static_cast<float*>(data), idx, value);
  }
}

}  // namespace headrace::cuda
