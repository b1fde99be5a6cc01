// Shared memory of the Hopper kernels: word accesses, the rule for releasing a stage, rings of
// stages.
#pragma once

#include "backends/cuda/device/types.cuh"

namespace headrace::cuda::sm90 {

__device__ __forceinline__ u32 load_shared(u32 address) {
  u32 value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ float2 load_shared2(u32 address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ void store_shared(u32 address, u32 value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared2(u32 address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

// ---- releasing shared memory
//
// Shared memory that TMA or another warp overwrites is released by an arrival at its "empty"
// mbarrier. The arrival must be issued behind an instruction that consumes every value loaded from
// that memory. Program order is not enough: TMA writes through the async proxy, which the release
// of an arrival does not order behind loads. nvcc 13.0 issues the arrival while the loads are in
// flight. They wait for shared memory behind the operands of wgmma, for up to thousands of clocks;
// TMA needs no more than 420 clocks to overwrite the memory. A wgmma consumes its operands in
// registers when it is issued; for other values there is released_behind(). tools/check_sass.py
// refuses arrivals with loads from shared memory in flight.

// Returns `barrier` from an instruction that consumes `x`: the values that the warp loaded,
// combined by ^.
__device__ __forceinline__ u32 released_behind(u32 x, u32 barrier) {
  // A square is 0 or 1 modulo 4: bit 1 is always 0, which ptxas does not know.
  asm volatile(
      "{\n"
      ".reg .b32 zero;\n"
      "mul.lo.u32 zero, %1, %1;\n"
      "and.b32 zero, zero, 2;\n"
      "add.u32 %0, %0, zero;\n"
      "}"
      : "+r"(barrier)
      : "r"(x));
  return barrier;
}

// The columns of a thread in a row of accumulators are 8 (i / 2) + i % 2 from its first one: bit i
// is set if that is below x.
__device__ __forceinline__ u32 columns_below(int x) {
  x = max(x, 0);
  return ~__funnelshift_lc(0u, ~0u, x / 8 * 2 + min(x % 8, 2));
}

// The stage of iteration i in a ring of kCount, and the parity of its mbarrier phase.
template <int kCount>
struct Stage {
  int index;
  u32 parity;
  __device__ __forceinline__ explicit Stage(int iteration)
      : index(iteration % kCount), parity(static_cast<u32>(iteration / kCount) & 1u) {}
};
// The same, advanced one iteration at a time.
template <int kCount>
struct Ring {
  int stage = 0;
  u32 parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kCount) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace headrace::cuda::sm90
