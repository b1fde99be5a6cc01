// Products of many tokens on Hopper: a persistent, warp-specialized kernel. One thread loads stages
// of x and weights by TMA, two warpgroups multiply 64 tokens each by all rows of the tile.
#pragma once

#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/gemm/epilogue.cuh"
#include "backends/cuda/gemm/stages.cuh"
#include "backends/cuda/gemm/tiles.h"
#include "backends/cuda/runtime/launch.cuh"

namespace headrace::cuda::gemm {

inline constexpr int kTileThreads = 384;

template <int kRows>
struct TilePlan {
  static constexpr int kXBytes = kTileTokens * kSwizzleRowBytes;
  static constexpr int kWBytes = kRows * kSwizzleRowBytes;
  static constexpr int kStageBytes = kXBytes + kWBytes;
  static constexpr int kStages = kRows == 256 ? 4 : kRows == 128 ? 6 : 8;
  static constexpr unsigned kSmemBytes = kStages * kStageBytes + kStages * 16 + 1024;
  static_assert(kSmemBytes <= kSmemLimitSm90);
};

// Tiles in an order in which those that run at once share x and weights: all rows for
// kTokenTilesAtOnce tiles of tokens, tokens fastest.
struct TilePosition {
  int token_tile, row_tile;
};
__device__ __forceinline__ TilePosition position_of(const TileParams& p, int tile) {
  const int per_band = kTokenTilesAtOnce * p.tiles.count;
  const int band = tile / per_band, rest = tile - band * per_band;
  const int first = band * kTokenTilesAtOnce;
  const int width = min(kTokenTilesAtOnce, p.num_token_tiles - first);
  return {first + rest % width, rest / width};
}

template <int kRows>
__device__ void load_tiles(const TileParams& p, const Maps& maps, StageRing ring) {
  const int count = p.tiles.count * p.num_token_tiles;
  griddep_wait();
  for (int tile = static_cast<int>(blockIdx.x); tile < count; tile += static_cast<int>(gridDim.x)) {
    const TilePosition at = position_of(p, tile);
    for (int i = 0; i < p.num_stage_loads; ++i, ring.next()) {
      mbarrier_wait(ring.empty(), ring.parity ^ 1);
      mbarrier_arrive_expect_tx(ring.full(), TilePlan<kRows>::kStageBytes);
      cp_async_bulk_tensor_load(ring.data(), &maps.x, ring.full(), kEvictNormal, i * kTileColumns,
                                at.token_tile * kTileTokens);
      load_tile<kRows>(p.tiles, maps, at.row_tile, i * kTileColumns,
                       ring.data() + TilePlan<kRows>::kXBytes, ring.full(), kEvictNormal);
    }
  }
}

template <class Element, int kRows>
__device__ void multiply_tiles(const TileParams& p, StageRing ring, int group) {
  const int count = p.tiles.count * p.num_token_tiles;
  for (int tile = static_cast<int>(blockIdx.x); tile < count; tile += static_cast<int>(gridDim.x)) {
    float d[kRows / 2];
    sum_stages<Element, kRows>(d, ring, p.num_stage_loads, group * 64 * kSwizzleRowBytes,
                               TilePlan<kRows>::kXBytes);

    const TilePosition at = position_of(p, tile);
    const int matrix = p.tiles.matrix_of(at.row_tile);
    const int row = p.tiles.row_of(at.row_tile, matrix, kRows);
    const int thread = static_cast<int>(threadIdx.x) & 127;
    const int token = at.token_tile * kTileTokens + group * 64 + thread / 32 * 16 + thread % 32 / 4;
    store_tile<Element, kRows>(p.out, d, p.tiles.is_paired != 0, token, p.num_tokens,
                               p.tiles.first_row[matrix] + row, p.tiles.rows[matrix] - row);
  }
}

template <class Element, int kRows>
__global__ void __launch_bounds__(kTileThreads, 1)
    tiles(const __grid_constant__ TileParams p, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Plan = TilePlan<kRows>;
  extern __shared__ unsigned char smem_raw[];
  StageRing ring{.base = (smem_address(smem_raw) + 1023) & ~1023u,
                 .barriers = 0,
                 .stage_bytes = Plan::kStageBytes,
                 .num_stages = Plan::kStages};
  ring.barriers = ring.base + Plan::kStages * Plan::kStageBytes;
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 7, 0);
  // Arrivals of the loading thread, and of both warpgroups that multiply.
  if (threadIdx.x == 0) ring.init_barriers(1, 2);
  __syncthreads();
  griddep_launch_dependents();
  if (group == 0) {
    setmaxnreg_dec<24>();
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5, 0);
    if (warp == 0 && elect_sync()) load_tiles<kRows>(p, maps, ring);
    return;
  }
  setmaxnreg_inc<240>();
  griddep_wait();
  multiply_tiles<Element, kRows>(p, ring, group - 1);
#endif
}

template <class Element, int kRows>
Status launch_variant(const char* name, const TileCall& call) {
  const std::int64_t count = std::int64_t{call.params.tiles.count} * call.params.num_token_tiles;
  const LaunchShape shape{
      .name = name,
      .grid = dim3(static_cast<unsigned>(count < call.num_units ? count : call.num_units)),
      .block = dim3(kTileThreads),
      .smem_bytes = TilePlan<kRows>::kSmemBytes,
      .use_pdl = true};
  static AllowedSmem allowed;
  HEADRACE_TRY(allow_smem(shape, tiles<Element, kRows>, allowed));
  return launch(shape, static_cast<cudaStream_t>(call.stream), tiles<Element, kRows>, call.params,
                call.maps);
}

}  // namespace headrace::cuda::gemm
