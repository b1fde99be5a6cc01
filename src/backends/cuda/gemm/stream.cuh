// What the kernels have in common that stream weights: stages, the tiles of a CTA, the producers.
//
// A tile of weights is operand A, the tokens are B. One producer warp loads weights by TMA, and
// begins before the kernel ahead of this one on the stream has ended: the weights do not depend on
// it. Another loads x. A stage has some columns of a group of tiles and of x, in swizzle atoms.
#pragma once

#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/gemm/epilogue.cuh"
#include "backends/cuda/gemm/stages.cuh"
#include "backends/cuda/gemm/stream.h"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/shared.cuh"

namespace headrace::cuda::gemm {

constexpr int stream_threads(const StreamShape& s) {
  return 32 * (s.most_tiles * s.unit_warps + 2);
}
constexpr int stream_tile_bytes(const StreamShape& s) { return s.tile_rows * stream_row_bytes(s); }
// The ring is aligned to 1024 bytes, barriers are behind it.
constexpr unsigned stream_smem_bytes(const StreamShape& s) {
  return static_cast<unsigned>(s.ring_bytes) + 16 * kStreamMaxStages + 1024;
}
static_assert(2 * (stream_smem_bytes(kNarrowStream) + 1024) <= 228 * 1024);
static_assert(stream_smem_bytes(kWideStream) <= kSmemLimitSm90);

struct TileRange {
  int first, last;
};
__device__ __forceinline__ TileRange tiles_of_cta(const StreamParams& p) {
  const auto begin = [&](unsigned cta) {
    return static_cast<int>(std::int64_t{cta} * p.tiles.count / gridDim.x);
  };
  return {begin(blockIdx.x), begin(blockIdx.x + 1)};
}

// Calls load(first tile, number of tiles, first column) for each stage.
template <class Load>
__device__ __forceinline__ void for_each_stage(const StreamParams& p, int stage_columns,
                                               StageRing& ring, Load load) {
  const TileRange tiles = tiles_of_cta(p);
  for (int tile = tiles.first; tile < tiles.last; tile += p.plan.group) {
    const int count = min(p.plan.group, tiles.last - tile);
    for (int i = 0; i < p.plan.num_stage_loads; ++i, ring.next()) {
      mbarrier_wait(ring.empty(), ring.parity ^ 1);
      load(tile, count, i * stage_columns);
    }
  }
}

template <int kRows, int kAtoms>
__device__ __forceinline__ void load_weights(const StreamParams& p, const Maps& maps,
                                             StageRing ring, int lane) {
  for_each_stage(p, kAtoms * kSwizzleAtomCols, ring, [&](int tile, int count, int column) {
    constexpr int kAtomBytes = kRows * kSwizzleRowBytes;
    if (lane == 0)
      mbarrier_arrive_expect_tx(ring.full(), static_cast<u32>(count * kAtoms * kAtomBytes));
    if (lane < count * kAtoms) {
      const int mine = tile + lane / kAtoms, atom = lane % kAtoms;
      const int matrix = p.tiles.matrix_of(mine);
      cp_async_bulk_tensor_load(ring.data() + static_cast<u32>(lane * kAtomBytes), &maps.w[matrix],
                                ring.full(), kEvictFirst, column + atom * kSwizzleAtomCols,
                                (mine - p.tiles.first_tile[matrix]) * kRows);
    }
    __syncwarp();
  });
}

template <int kRows, int kAtoms>
__device__ __forceinline__ void load_x(const StreamParams& p, const Maps& maps, StageRing ring,
                                       int lane) {
  griddep_wait();
  const u32 offset = static_cast<u32>(p.plan.group * kRows * kAtoms * kSwizzleRowBytes);
  const int atom_bytes = p.plan.tokens * kSwizzleRowBytes;
  for_each_stage(p, kAtoms * kSwizzleAtomCols, ring, [&](int, int, int column) {
    if (lane == 0) mbarrier_arrive_expect_tx(ring.full(), static_cast<u32>(kAtoms * atom_bytes));
    if (lane < kAtoms)
      cp_async_bulk_tensor_load(ring.data() + offset + static_cast<u32>(lane * atom_bytes), &maps.x,
                                ring.full(), kEvictLast, column + lane * kSwizzleAtomCols, 0);
    __syncwarp();
  });
}

// Sets up the ring, then starts producers and multiply(ring, unit).
template <int kRows, int kAtoms, int kMostTiles, int kUnitWarps, int kRingBytes, class Multiply>
__device__ __forceinline__ void run_stream(const StreamParams& p, const Maps& maps,
                                           unsigned char* smem_raw, Multiply multiply) {
  StageRing ring{.base = (smem_address(smem_raw) + 1023) & ~1023u,
                 .barriers = 0,
                 .stage_bytes = p.plan.stage_bytes,
                 .num_stages = p.plan.num_stages};
  ring.barriers = ring.base + kRingBytes;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5, 0);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  // Arrivals of both producers, and of each unit of a group.
  if (threadIdx.x == 0) ring.init_barriers(2, static_cast<u32>(p.plan.group));
  __syncthreads();
  griddep_launch_dependents();
  constexpr int kProducer = kMostTiles * kUnitWarps;
  if (warp == kProducer)
    load_weights<kRows, kAtoms>(p, maps, ring, lane);
  else if (warp == kProducer + 1)
    load_x<kRows, kAtoms>(p, maps, ring, lane);
  else if (warp / kUnitWarps < p.plan.group)
    multiply(ring, warp / kUnitWarps);
}

// For the tile of a unit in each group: multiply(tile), or skip() where the last group of the CTA
// has no tile for the unit.
template <class Body, class Skip>
__device__ __forceinline__ void for_each_tile(const StreamParams& p, int unit, Body body,
                                              Skip skip) {
  const TileRange tiles = tiles_of_cta(p);
  for (int tile = tiles.first + unit; tile < tiles.last + unit; tile += p.plan.group) {
    if (tile < tiles.last)
      body(tile);
    else
      skip();
  }
}

template <class Kernel>
Status launch_stream(const char* name, const StreamShape& shape, Kernel kernel,
                     AllowedSmem& allowed, const StreamCall& call) {
  const LaunchShape launch_shape{.name = name,
                                 .grid = dim3(static_cast<unsigned>(call.params.plan.num_ctas)),
                                 .block = dim3(static_cast<unsigned>(stream_threads(shape))),
                                 .smem_bytes = stream_smem_bytes(shape),
                                 .use_pdl = true};
  HEADRACE_TRY(allow_smem(launch_shape, kernel, allowed));
  return launch(launch_shape, static_cast<cudaStream_t>(call.stream), kernel, call.params,
                call.maps);
}

}  // namespace headrace::cuda::gemm
