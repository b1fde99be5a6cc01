// The two 16-bit dtypes of the Hopper kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backends/cuda/device/mma.cuh"
#include "backends/cuda/device/wgmma.cuh"

namespace headrace::cuda::sm90 {

struct Bf16Element {
  using Operand = Bf16;
  using Stored = __nv_bfloat16;
  static constexpr bool kHasFloatRange = true;  // 8 bits of exponent
  static constexpr int kLog2Scale = 0,
                       kRescaleThreshold = 9;  // see Softmax; 2^9 outweighs all that bf16 shows
  static constexpr int kPreciseLog2Scale = -40;
  static __device__ __forceinline__ u32 pack(float low, float high) {
    return cvt_rn_bf16x2(low, high);
  }
  static __device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    mma_m16n8k16_bf16(d, a, b0, b1);
  }
  static __device__ __forceinline__ float2 unpack(u32 x) {
    return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)};
  }
  static __device__ __forceinline__ u32 times_zero_plus(u32 x, u32 y) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(0), "r"(y));
    return y;
  }
};
struct F16Element {
  using Operand = F16;
  using Stored = __half;
  static constexpr bool kHasFloatRange = false;
  static constexpr int kLog2Scale = 11, kRescaleThreshold = 4;  // P up to 2^15
  static constexpr int kPreciseLog2Scale = 15;
  static __device__ __forceinline__ u32 pack(float low, float high) {
    return cvt_rn_f16x2(low, high);
  }
  static __device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    mma_m16n8k16_f16(d, a, b0, b1);
  }
  static __device__ __forceinline__ float2 unpack(u32 x) {
    return __half22float2(*reinterpret_cast<const __half2*>(&x));
  }
  static __device__ __forceinline__ u32 times_zero_plus(u32 x, u32 y) {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(0), "r"(y));
    return y;
  }
};

struct alignas(16) Chunk {
  u32 words[4];
};
__device__ __forceinline__ Chunk load_chunk(u32 address) {
  Chunk c;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(c.words[0]), "=r"(c.words[1]), "=r"(c.words[2]), "=r"(c.words[3])
               : "r"(address)
               : "memory");
  return c;
}

__device__ __forceinline__ void store_chunk(u32 address, const Chunk& c) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(c.words[0]),
               "r"(c.words[1]), "r"(c.words[2]), "r"(c.words[3])
               : "memory");
}

struct alignas(8) HalfChunk {
  u32 words[2];
};
// Neighbouring lanes exchange words: an even lane gets x of both, an odd lane y of both, in the
// order of the lanes.
__device__ __forceinline__ HalfChunk exchange_with_neighbour_lane(u32 x, u32 y, int lane) {
  const bool is_odd = (lane & 1) != 0;
  const u32 kept = is_odd ? y : x;
  const u32 got = __shfl_xor_sync(0xffffffffu, is_odd ? x : y, 1);
  return {{is_odd ? got : kept, is_odd ? kept : got}};
}

}  // namespace headrace::cuda::sm90
