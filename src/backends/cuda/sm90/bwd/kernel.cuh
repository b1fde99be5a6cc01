// Attention backward for Hopper: a CTA keeps a block of keys and iterates over the query blocks
// that see one of them.
#pragma once

#include <type_traits>

#include "backends/cuda/sm90/bwd/cooperative.cuh"
#include "backends/cuda/sm90/bwd/kernels.h"
#include "backends/cuda/sm90/bwd/specialized.cuh"

namespace headrace::cuda::sm90::bwd {

template <Tile kTile>
__device__ __forceinline__ void init_barriers(u32 smem) {
  constexpr BarrierPlan b = barrier_plan(kTile);
  const auto init = [&](int first, int count, u32 arrivals) {
    for (int i = first; i < first + count; ++i)
      mbarrier_init(smem + smem_plan(kTile).offset_barriers + 8 * i, arrivals);
  };
  init(b.k_full, 1, 1);
  init(b.v_full, 1, 1);
  init(b.q_full, stages_q(kTile), 1);
  init(b.dout_full, stages_dout(kTile), 1);
  if constexpr (kTile.is_specialized) {  // arrivals: the warps of one or two warpgroups
    init(b.q_empty, stages_q(kTile), 8);
    init(b.dout_empty, stages_dout(kTile), 8);
    init(b.p_full, kStagesDs, 4);
    init(b.p_empty, kStagesDs, 4);
    init(b.ds_full, kStagesDs, 4);
    init(b.ds_empty, kStagesDs, 4);
  }
  fence_mbarrier_init();
  fence_proxy_async();
}

// The compiled variant, as a type: nvcc 13.0 cannot name a kernel whose template parameter is a
// value of a class.
template <Tile kTileOfVariant, class ElementOfVariant, Kind kKind>
struct Variant {
  static constexpr Tile kTile = kTileOfVariant;
  using Element = ElementOfVariant;
  static constexpr bool kIsFixed = kKind.is_fixed, kIsGeneral = kKind.is_general;
};

template <class Variant>
__global__ void __launch_bounds__(threads_of(Variant::kTile), 1)
    backward(const __grid_constant__ Params params, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr Tile kTile = Variant::kTile;
  extern __shared__ unsigned char smem_raw[];
  const u32 smem = (smem_address(smem_raw) + 1023) & ~1023u;
  const KeyBlock keys = key_block<kTile>(params.blocks);
  if (!exists(keys)) return;
  const BlockIterator<kTile> blocks(params.blocks, keys);
  if (threadIdx.x == 0) {
    prefetch_tensormap(&maps.q);
    prefetch_tensormap(&maps.k);
    prefetch_tensormap(&maps.v);
    prefetch_tensormap(&maps.dout);
    init_barriers<kTile>(smem);
  }
  __syncthreads();
  using Kernel =
      std::conditional_t<kTile.is_specialized, Specialized<Variant>, Cooperative<Variant>>;
  Kernel(params, maps, smem, keys).run(blocks);
#endif
}

template <class Variant>
constexpr KernelImage<Params, Maps> image_of(const char* name) {
  constexpr Tile kTile = Variant::kTile;
  static_assert(smem_bytes(kTile) <= kSmemLimitSm90);
  return {name, backward<Variant>, threads_of(kTile), smem_bytes(kTile)};
}

// Both dtypes of a tile.
template <Tile kTile, Kind kKind>
constexpr Kernels kernels_of(const char* name_bf16, const char* name_f16) {
  return {image_of<Variant<kTile, Bf16Element, kKind>>(name_bf16),
          image_of<Variant<kTile, F16Element, kKind>>(name_f16)};
}

}  // namespace headrace::cuda::sm90::bwd
