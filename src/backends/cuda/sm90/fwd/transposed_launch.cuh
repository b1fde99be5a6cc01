// How the kernels with keys as M begin: what their launch needs, their shared memory.
#pragma once

#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/sm90/fwd/kernels.h"
#include "backends/cuda/sm90/fwd/transposed_items.cuh"

namespace headrace::cuda::sm90::fwd {

// Barriers, and rows of Q that no TMA box has. By all threads of the CTA.
template <Tile kTile>
__device__ __forceinline__ void prepare_smem(const Params& params, u32 smem) {
  constexpr TransposedSmem kSmem = transposed_smem(kTile);
  constexpr int kThreads = threads_of(kTile);
  static_assert(num_transposed_barriers(kTile) <= kThreads);
  // Lanes initialise barriers one after the other, warps at the same time.
  if (const u32 i = threadIdx.x / 32 + threadIdx.x % 32 * (kThreads / 32);
      i < num_transposed_barriers(kTile))
    mbarrier_init(smem + static_cast<u32>(kSmem.offset_barriers) + 8 * i,
                  TransposedBarriers<kTile>::arrivals(static_cast<int>(i)));
  if (params.tiles.group_queries * params.tiles.pack != kTile.transposed_rows)
    for (int i = kSmem.offset_q + 16 * static_cast<int>(threadIdx.x); i < kSmem.offset_probs;
         i += 16 * kThreads)
      store_chunk(smem + static_cast<u32>(i), Chunk{});
  fence_mbarrier_init();
  fence_proxy_async();
  __syncthreads();
}

template <Tile kTileOfVariant, class ElementOfVariant>
struct TransposedVariant {
  static constexpr Tile kTile = kTileOfVariant;
  using Element = ElementOfVariant;
};

template <Tile kTile>
constexpr KernelImage<Params, Maps> transposed_image(const char* name,
                                                     void (*kernel)(Params, Maps)) {
  static_assert(kTile.ctas * (smem_bytes(kTile) + 1024) <= 228 * 1024);
  return {name, kernel, threads_of(kTile), smem_bytes(kTile)};
}

}  // namespace headrace::cuda::sm90::fwd
