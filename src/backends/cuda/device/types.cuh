// Types of the device headers. Device headers include no standard header of the host, so that NVRTC
// can compile them.
#pragma once

namespace headrace::cuda {

using u32 = unsigned int;
using u64 = unsigned long long;
static_assert(sizeof(u32) == 4 && sizeof(u64) == 8);

// CUtensorMap as the driver encodes it. A kernel takes it as a __grid_constant__.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

#ifdef __CUDACC__
// Shared memory address for PTX.
__device__ __forceinline__ u32 smem_address(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}
#endif

}  // namespace headrace::cuda
