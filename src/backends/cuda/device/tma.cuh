// TMA: copies of boxes of a tensor between global and shared memory. sm_90. Coordinates are in
// elements, innermost first. Elements outside the tensor are read as 0 and not written. One thread
// issues a copy.
#pragma once

#include "backends/cuda/device/types.cuh"

namespace headrace::cuda {

// Where byte `offset` of an unswizzled box lies under the 128-byte swizzle: the 16-byte chunks of a
// 128-byte row are XORed with the row index modulo 8. The box is aligned to 1024 bytes.
__host__ __device__ constexpr u32 swizzle128(u32 offset) {
  return offset ^ ((offset >> 7 & 7u) << 4);
}

// L2 cache policies as createpolicy encodes them: of all lines; normal: a 16th evict_unchanged.
inline constexpr u64 kEvictNormal = 0x1000000000000000ull;
inline constexpr u64 kEvictFirst = 0x12F0000000000000ull;
inline constexpr u64 kEvictLast = 0x14F0000000000000ull;

__device__ __forceinline__ void prefetch_tensormap(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Completes the bytes of the whole box on the barrier, including those outside the tensor.
__device__ __forceinline__ void cp_async_bulk_tensor_load(u32 to, const TensorMap* map, u32 barrier,
                                                          u64 policy, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(to),
      "l"(map), "r"(barrier), "l"(policy), "r"(c0), "r"(c1)
      : "memory");
}
__device__ __forceinline__ void cp_async_bulk_tensor_load(u32 to, const TensorMap* map, u32 barrier,
                                                          u64 policy, int c0, int c1, int c2,
                                                          int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(to),
      "l"(map), "r"(barrier), "l"(policy), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
__device__ __forceinline__ void cp_async_bulk_tensor_load(u32 to, const TensorMap* map, u32 barrier,
                                                          u64 policy, int c0, int c1, int c2,
                                                          int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(to),
      "l"(map), "r"(barrier), "l"(policy), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

// Contiguous memory without a tensor map. `bytes` and both addresses are multiples of 16.
__device__ __forceinline__ void cp_async_bulk_load(u32 to, const void* from, u32 bytes,
                                                   u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Stores and reductions belong to bulk groups: commit closes a group, a wait takes the number of
// groups that may stay in flight. Threads that wrote `from` call fence_proxy_async() first.
__device__ __forceinline__ void cp_async_bulk_tensor_store(const TensorMap* map, u32 from, int c0,
                                                           int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(from), "r"(c0), "r"(c1)
      : "memory");
}
__device__ __forceinline__ void cp_async_bulk_tensor_store(const TensorMap* map, u32 from, int c0,
                                                           int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], "
      "[%1];" ::"l"(map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
__device__ __forceinline__ void cp_async_bulk_tensor_store(const TensorMap* map, u32 from, int c0,
                                                           int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], "
      "[%1];" ::"l"(map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}
// Adds the box to the tensor, in the element type of the map.
__device__ __forceinline__ void cp_reduce_async_bulk_tensor_add(const TensorMap* map, u32 from,
                                                                int c0, int c1) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3}], "
      "[%1];" ::"l"(map),
      "r"(from), "r"(c0), "r"(c1)
      : "memory");
}
// Stores `bytes` (a multiple of 16) to contiguous memory.
__device__ __forceinline__ void cp_async_bulk_store(void* to, u32 from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
// Adds `bytes` (a multiple of 16) of contiguous floats.
__device__ __forceinline__ void cp_reduce_async_bulk_add_f32(float* to, u32 from, u32 bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void cp_async_bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until the sources have been read: shared memory may be written again.
template <int kPending>
__device__ __forceinline__ void cp_async_bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// Waits until the results are in global memory.
template <int kPending>
__device__ __forceinline__ void cp_async_bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace headrace::cuda
