// Attention backward for Hopper: a CTA keeps a block of keys and iterates over the query blocks
// that see one of them.
#pragma once

#include <type_traits>

#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/bwd/cooperative.cuh"
#include "backends/cuda/sm90/bwd/launch.h"
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
Status launch_variant(const char* name, const Call& call) {
  constexpr Tile kTile = Variant::kTile;
  const LaunchShape shape{.name = name,
                          .grid = call.grid,
                          .block = dim3(threads_of(kTile)),
                          .smem_bytes = smem_bytes(kTile)};
  static_assert(smem_bytes(kTile) <= kSmemLimitSm90);
  static AllowedSmem allowed;
  if (Status bad = allow_smem(shape, backward<Variant>, allowed)) return bad;
  return launch(shape, static_cast<cudaStream_t>(call.stream), backward<Variant>, call.params,
                call.maps);
}

// Both dtypes of a tile.
template <Tile kTile, Kind kKind>
Status launch_tile(const char* name_bf16, const char* name_f16, const Call& call) {
  if (call.dtype == DType::bf16)
    return launch_variant<Variant<kTile, Bf16Element, kKind>>(name_bf16, call);
  return launch_variant<Variant<kTile, F16Element, kKind>>(name_f16, call);
}

}  // namespace headrace::cuda::sm90::bwd
