// Up to 16 rows of a KV head, with strict_rows or of 64 or 256 columns: CTAs that take one split of
// the keys after the other, keys as M ("swap-AB"):
//
//   S^T = K Q^T    A: 64 keys x 16 dims of K      B: 16 dims x 8 or 16 rows of Q
//   O^T = V^T P^T  A: 64 columns x 16 keys of V   B: 16 keys x 8 or 16 rows of P
//
// Little code: of few sequences most of the time is that of its first instructions to arrive. Two
// or four warps load K and V, a warpgroup computes. Sums are those of the other tiles, to the bit:
// products are added in the same order, and P goes through shared memory to threads that add it as
// the threads of a row do there.
#pragma once

#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/sm90/fwd/transposed_consume.cuh"
#include "backends/cuda/sm90/fwd/transposed_launch.cuh"
#include "backends/cuda/sm90/fwd/transposed_produce.cuh"

namespace headrace::cuda::sm90::fwd {

template <class Variant>
__global__ void __launch_bounds__(threads_of(Variant::kTile), Variant::kTile.ctas)
    attend_splits(const __grid_constant__ Params params, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr Tile kTile = Variant::kTile;
  extern __shared__ unsigned char smem_raw[];
  const u32 smem = (smem_address(smem_raw) + 1023) & ~1023u;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5, 0);
  if (warp == 4) prefetch_tensormap(&maps.k);
  if (warp == 5) prefetch_tensormap(&maps.v);
  prepare_smem<kTile>(params, smem);
  griddep_launch_dependents();
  griddep_wait();
  if (warp < 4)
    SplitConsumer<kTile, typename Variant::Element>(params, smem).run();
  else
    SplitProducer<kTile, typename Variant::Element>(params, maps, smem, warp - 4).run();
#endif
}

// Both dtypes of a tile.
template <Tile kTile>
constexpr Kernels split_kernels_of(const char* name_bf16, const char* name_f16) {
  return {transposed_image<kTile>(name_bf16, attend_splits<TransposedVariant<kTile, Bf16Element>>),
          transposed_image<kTile>(name_f16, attend_splits<TransposedVariant<kTile, F16Element>>)};
}

}  // namespace headrace::cuda::sm90::fwd
