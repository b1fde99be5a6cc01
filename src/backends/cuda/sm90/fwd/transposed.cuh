// Up to 16 rows of a KV head, with strict_rows or of more than 128 columns: CTAs that take one
// split of the keys after the other, keys as M ("swap-AB"):
//
//   S^T = K Q^T    A: 64 keys x 16 dims of K      B: 16 dims x 8 or 16 rows of Q
//   O^T = V^T P^T  A: 64 columns x 16 keys of V   B: 16 keys x 8 or 16 rows of P
//
// Little code: of few sequences most of the time is that of its first instructions to arrive. Two
// or four warps load K and V, a warpgroup computes. Sums are those of the other tiles, to the bit:
// products are added in the same order, and P goes through shared memory to threads that add it as
// the threads of a row do there.
#pragma once

#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/fwd/launch.h"
#include "backends/cuda/sm90/fwd/transposed_consume.cuh"
#include "backends/cuda/sm90/fwd/transposed_produce.cuh"

namespace headrace::cuda::sm90::fwd {

template <class Variant>
__global__ void __launch_bounds__(threads_of(Variant::kTile), Variant::kTile.ctas)
    attend_splits(const __grid_constant__ Params params, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr Tile kTile = Variant::kTile;
  constexpr TransposedSmem kSmem = transposed_smem(kTile);
  constexpr int kThreads = threads_of(kTile);
  extern __shared__ unsigned char smem_raw[];
  const u32 smem = (smem_address(smem_raw) + 1023) & ~1023u;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5, 0);
  if (warp == 4) prefetch_tensormap(&maps.k);
  if (warp == 5) prefetch_tensormap(&maps.v);
  // Lanes initialise barriers one after the other, warps at the same time.
  if (const u32 i = threadIdx.x / 32 + threadIdx.x % 32 * (kThreads / 32);
      i < num_transposed_barriers(kTile))
    mbarrier_init(smem + static_cast<u32>(kSmem.offset_barriers) + 8 * i,
                  TransposedBarriers<kTile>::arrivals(static_cast<int>(i)));
  // Rows of Q that no TMA box has.
  if (params.tiles.group_queries * params.tiles.pack != kTile.transposed_rows)
    for (int i = kSmem.offset_q + 16 * static_cast<int>(threadIdx.x); i < kSmem.offset_probs;
         i += 16 * kThreads)
      store_chunk(smem + static_cast<u32>(i), Chunk{});
  fence_mbarrier_init();
  fence_proxy_async();
  __syncthreads();
  griddep_launch_dependents();
  griddep_wait();
  if (warp < 4)
    SplitConsumer<kTile, typename Variant::Element>(params, smem).run();
  else
    SplitProducer<kTile, typename Variant::Element>(params, maps, smem, warp - 4).run();
#endif
}

template <class Variant>
Status launch_transposed_variant(const char* name, const Call& call) {
  constexpr Tile kTile = Variant::kTile;
  const LaunchShape shape{.name = name,
                          .grid = dim3(static_cast<unsigned>(call.num_ctas)),
                          .block = dim3(threads_of(kTile)),
                          .smem_bytes = smem_bytes(kTile),
                          .use_pdl = true};
  static_assert(kTile.ctas * (smem_bytes(kTile) + 1024) <= 228 * 1024);
  static AllowedSmem allowed;
  if (Status bad = allow_smem(shape, attend_splits<Variant>, allowed)) return bad;
  return launch(shape, static_cast<cudaStream_t>(call.stream), attend_splits<Variant>, call.params,
                call.maps);
}

template <Tile kTileOfVariant, class ElementOfVariant>
struct TransposedVariant {
  static constexpr Tile kTile = kTileOfVariant;
  using Element = ElementOfVariant;
};

// Both dtypes of a tile.
template <Tile kTile>
Status launch_transposed_tile(const char* name_bf16, const char* name_f16, const Call& call) {
  if (call.dtype == DType::bf16)
    return launch_transposed_variant<TransposedVariant<kTile, Bf16Element>>(name_bf16, call);
  return launch_transposed_variant<TransposedVariant<kTile, F16Element>>(name_f16, call);
}

}  // namespace headrace::cuda::sm90::fwd
