// Attention forward for Hopper. A CTA stays on its multiprocessor and works through many tiles:
// a warpgroup schedules (one warp) and copies (a thread each for Q and K, V, a bias), two or three
// compute.
#pragma once

#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/fwd/consumer.cuh"
#include "backends/cuda/sm90/fwd/launch.h"
#include "backends/cuda/sm90/fwd/producer.cuh"

namespace headrace::cuda::sm90 {

template <Tile kTile>
__device__ __forceinline__ void init_barriers(u32 smem) {
  constexpr BarrierPlan b = barrier_plan(kTile);
  const auto init = [&](int first, int count, u32 arrivals) {
    for (int i = first; i < first + count; ++i)
      mbarrier_init(smem + smem_plan(kTile).offset_barriers + 8 * i, arrivals);
  };
  constexpr int kQ = kTile.q_buffers * kTile.warpgroups;
  init(b.q_full, kQ, 1);
  init(b.q_empty, kQ, 4);
  init(b.k_full, kKStages, 1);
  init(b.k_empty, kKStages, kTile.warpgroups);
  init(b.v_full, kTile.v_stages, 1);
  init(b.v_empty, kTile.v_stages, kTile.warpgroups);
  init(b.tile_info_read, 1, 1);
  init(b.tile_info_full, kTileInfoStages, 1);
  init(
      b.tile_done, kTileInfoStages,
      2 + 4 * kTile.warpgroups + (kTile.has_tma_bias ? 1 : 0) + (kTile.has_mask_warpgroup ? 4 : 0));
  if constexpr (kTile.has_tma_bias) {
    init(b.bias_full, kTile.warpgroups, 1);
    init(b.bias_empty, kTile.warpgroups, 4);
  }
  if constexpr (kTile.has_mask_warpgroup) {
    init(b.mask_full, kMaskStages, 4);
    init(b.mask_empty, kMaskStages, 4 * kTile.warpgroups);
  }
  fence_mbarrier_init();
  fence_proxy_async();
}

// What is compiled. A type, since nvcc 13.0 cannot name a kernel whose template parameter is a
// value of a class.
template <Tile kTileOfVariant, class ElementOfVariant, ScoreMod kScoreModOfVariant>
struct Variant {
  static constexpr Tile kTile = kTileOfVariant;
  using Element = ElementOfVariant;
  static constexpr ScoreMod kScoreMod = kScoreModOfVariant;
};

template <class Variant>
__global__ void __launch_bounds__(threads_of(Variant::kTile), 1)
    forward(const __grid_constant__ Params params, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr Tile kTile = Variant::kTile;
  extern __shared__ unsigned char smem_raw[];
  const u32 smem = (smem_address(smem_raw) + 1023) & ~1023u;
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 7, 0);
  if (threadIdx.x == 0) {
    prefetch_tensormap(&maps.q);
    prefetch_tensormap(&maps.k);
    prefetch_tensormap(&maps.v);
    if constexpr (kTile.has_tma_store) prefetch_tensormap(&maps.out);
    if constexpr (kTile.has_tma_bias)
      if (params.has_tma_bias != 0) prefetch_tensormap(&maps.bias);
    init_barriers<kTile>(smem);
  }
  __syncthreads();
  griddep_launch_dependents();
  if constexpr (kTile.has_mask_warpgroup) {
    if (group > kTile.warpgroups) {
      setmaxnreg_dec<mask_registers(kTile)>();
      DropoutMaskProducer<kTile, typename Variant::Element>(params, smem).run();
      return;
    }
  }
  if (group > 0) {
    setmaxnreg_inc<consumer_registers(kTile)>();
    griddep_wait();
    Consumer<kTile, typename Variant::Element, Variant::kScoreMod>(params, maps, smem, group - 1)
        .run();
    return;
  }
  setmaxnreg_dec<producer_registers(kTile)>();
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5, 0);
  if (warp == 1) {
    Scheduler<kTile>(params, smem, static_cast<int>(threadIdx.x) & 31).run();
  } else if (elect_sync()) {
    if (warp == 0) QkProducer<kTile>(params, maps, smem).run();
    if (warp == 2) VProducer<kTile>(params, maps, smem).run();
    if constexpr (kTile.has_tma_bias)
      if (warp == 3) BiasProducer<kTile>(params, maps, smem).run();
  }
#endif
}

template <class Variant>
Status launch_variant(const char* name, const Call& call) {
  constexpr Tile kTile = Variant::kTile;
  const LaunchShape shape{.name = name,
                          .grid = dim3(static_cast<unsigned>(call.num_ctas)),
                          .block = dim3(threads_of(kTile)),
                          .smem_bytes = smem_bytes(kTile),
                          .use_pdl = true};
  static_assert(smem_bytes(kTile) <= kSmemLimitSm90 && shares_registers(kTile));
  static AllowedSmem allowed;
  if (Status bad = allow_smem(shape, forward<Variant>, allowed)) return bad;
  return launch(shape, static_cast<cudaStream_t>(call.stream), forward<Variant>, call.params,
                call.maps);
}

// Both formats of a tile.
template <Tile kTile, ScoreMod kScoreMod>
Status launch_tile(const char* name_bf16, const char* name_f16, const Call& call) {
  if (dtype_of(call.params.problem) == DType::bf16)
    return launch_variant<Variant<kTile, Bf16Element, kScoreMod>>(name_bf16, call);
  return launch_variant<Variant<kTile, F16Element, kScoreMod>>(name_f16, call);
}

}  // namespace headrace::cuda::sm90
