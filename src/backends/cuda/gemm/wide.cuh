// Products of 17 to 128 tokens on Hopper. A warpgroup multiplies 64 tokens by a tile of weight
// rows, which may be so small that even a matrix of few rows has one for every multiprocessor.
//
// One producer thread loads weights, and begins before the kernel ahead of this one on the stream
// has ended: the weights do not depend on it. Another loads tokens. A stage has 64 columns of the
// tile, then of all tokens.
#pragma once

#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/gemm/epilogue.cuh"
#include "backends/cuda/gemm/stages.cuh"
#include "backends/cuda/gemm/wide.h"
#include "backends/cuda/runtime/launch.cuh"

namespace headrace::cuda::gemm {

constexpr int wide_threads(int groups) { return 128 * groups + 64; }
// The ring is aligned to 1024 bytes, barriers are behind it.
inline constexpr unsigned kWideSmemBytes = kWideRingBytes + 16 * kWideMaxStages + 1024;
static_assert(kWideSmemBytes <= kSmemLimitSm90);

// Calls begin(tile), then load(column) for each of its stages, once it is empty.
template <class Begin, class Load>
__device__ __forceinline__ void for_each_wide_stage(const WideParams& p, StageRing& ring,
                                                    Begin begin, Load load) {
  StageProducer producer{ring};
  for (int tile = static_cast<int>(blockIdx.x); tile < p.tiles.count; tile += p.plan.num_ctas) {
    begin(tile);
    for (int i = 0; i < p.plan.num_stage_loads; ++i)
      producer.next([&] { load(i * kSwizzleAtomCols); });
  }
}

template <int kRows>
__device__ __forceinline__ void load_wide_weights(const WideParams& p, const Maps& maps,
                                                  StageRing ring) {
  TileSource from{};
  for_each_wide_stage(
      p, ring, [&](int tile) { from = TileSource::of(p.tiles, maps, tile, kRows); },
      [&](int column) {
        mbarrier_arrive_expect_tx(ring.full(), kRows * kSwizzleRowBytes);
        from.load<kRows>(column, ring.data(), ring.full());
      });
}

template <int kRows>
__device__ __forceinline__ void load_wide_tokens(const WideParams& p, const Maps& maps,
                                                 StageRing ring) {
  griddep_wait();
  for_each_wide_stage(
      p, ring, [](int) {},
      [&](int column) {
        mbarrier_arrive_expect_tx(ring.full(),
                                  static_cast<u32>(p.plan.box_tokens * kSwizzleRowBytes));
        cp_async_bulk_tensor_load(ring.data() + kRows * kSwizzleRowBytes, &maps.x, ring.full(),
                                  kEvictLast, column, 0);
      });
}

template <class Element, int kRows>
__device__ __forceinline__ void multiply_wide(const WideParams& p, StageRing ring, int group) {
  const int thread = static_cast<int>(threadIdx.x) & 127;
  const int token = group * kWideGroupTokens + thread / 32 * 16 + thread % 32 / 4;
  for (int tile = static_cast<int>(blockIdx.x); tile < p.tiles.count; tile += p.plan.num_ctas) {
    float d[kRows / 2];
    sum_stages<Element, kRows, 2>(
        p.num_chains, d, ring, p.plan.num_stage_loads,
        (kRows + group * kWideGroupTokens) * kSwizzleRowBytes, 0,
        [&](int stage) {
          if (thread == 0) mbarrier_arrive(ring.empty(stage));
        },
        [] {});
    griddep_wait();  // out may be read by the kernel before, or written
    const int matrix = p.tiles.matrix_of(tile);
    const int row = p.tiles.row_of(tile, matrix, kRows);
    store_tile<Element, kRows>(p.out, d, p.tiles.is_paired != 0, token, p.num_tokens,
                               p.tiles.first_row[matrix] + row, p.tiles.rows[matrix] - row);
  }
}

template <class Element, int kRows, int kGroups>
__global__ void __launch_bounds__(wide_threads(kGroups), 1)
    wide(const __grid_constant__ WideParams p, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char smem_raw[];
  StageRing ring{.base = (smem_address(smem_raw) + 1023) & ~1023u,
                 .barriers = 0,
                 .stage_bytes = p.plan.stage_bytes,
                 .num_stages = p.plan.num_stages};
  ring.barriers = ring.base + kWideRingBytes;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5, 0);
  // Arrivals of both producers, and of each warpgroup that multiplies.
  if (threadIdx.x == 0) ring.init_barriers(2, kGroups);
  __syncthreads();
  griddep_launch_dependents();
  if (warp < 4 * kGroups)
    multiply_wide<Element, kRows>(p, ring, warp / 4);
  else if (elect_sync())
    warp == 4 * kGroups ? load_wide_weights<kRows>(p, maps, ring)
                        : load_wide_tokens<kRows>(p, maps, ring);
#endif
}

template <class Element, int kRows, int kGroups>
Status launch_variant(const char* name, const WideCall& call) {
  const LaunchShape shape{.name = name,
                          .grid = dim3(static_cast<unsigned>(call.params.plan.num_ctas)),
                          .block = dim3(static_cast<unsigned>(wide_threads(kGroups))),
                          .smem_bytes = kWideSmemBytes,
                          .use_pdl = true};
  static AllowedSmem allowed;
  HEADRACE_TRY(allow_smem(shape, wide<Element, kRows, kGroups>, allowed));
  return launch(shape, static_cast<cudaStream_t>(call.stream), wide<Element, kRows, kGroups>,
                call.params, call.maps);
}

template <class Element, int kRows>
Status launch_rows(const char* name, const WideCall& call) {
  return call.params.plan.groups == 1 ? launch_variant<Element, kRows, 1>(name, call)
                                      : launch_variant<Element, kRows, 2>(name, call);
}

template <class Element>
Status launch_wide(const char* name, const WideCall& call) {
  switch (call.params.plan.rows) {
    case 32:
      return launch_rows<Element, 32>(name, call);
    case 48:
      return launch_rows<Element, 48>(name, call);
    case 64:
      return launch_rows<Element, 64>(name, call);
    case 96:
      return launch_rows<Element, 96>(name, call);
    case 112:
      return launch_rows<Element, 112>(name, call);
    default:
      return launch_rows<Element, 128>(name, call);
  }
}

}  // namespace headrace::cuda::gemm
