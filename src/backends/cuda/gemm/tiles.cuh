// Products of many tokens on Hopper: a persistent, warp-specialized kernel of clusters of two CTAs.
// One thread of a CTA loads stages of its x, and of half of the weights for both, by TMA; two
// warpgroups multiply, in turns or together (TileShape).
#pragma once

#include <iterator>
#include <utility>

#include "backends/cuda/device/cluster.cuh"
#include "backends/cuda/device/multicast.cuh"
#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/gemm/epilogue.cuh"
#include "backends/cuda/gemm/stages.cuh"
#include "backends/cuda/gemm/tiles.h"
#include "backends/cuda/runtime/launch.cuh"

namespace headrace::cuda::gemm {

inline constexpr int kTileThreads = 384;
// Named barriers of ping-pong: a warpgroup waits for its turn at its own.
inline constexpr int kTurnBarrier = 1;

template <TileShape kShape>
struct TileLayout {
  static constexpr int kXBytes = kShape.tokens() * kSwizzleRowBytes;
  static constexpr int kHalfWBytes = kShape.rows / kTileCluster * kSwizzleRowBytes;
  static constexpr int kStageBytes = kXBytes + kTileCluster * kHalfWBytes;
  static constexpr int kStages = 208 * 1024 / kStageBytes;
  static constexpr unsigned kSmemBytes = kStages * kStageBytes + kStages * 16 + 1024;
  static_assert(kSmemBytes <= kSmemLimitSm90);
};

// What of a launch a CTA computes: tiles i, i + stride, ... of its cluster.
struct TileWalk {
  const TileParams& p;
  int rank, first, stride, count;

  __device__ explicit TileWalk(const TileParams& params)
      : p(params),
        rank(static_cast<int>(cluster_rank())),
        first(static_cast<int>(blockIdx.x) / kTileCluster),
        stride(static_cast<int>(gridDim.x) / kTileCluster),
        count(params.tiles.count * params.num_token_tiles) {}

  struct Position {
    int token;  // the first of this CTA
    int matrix, row;
  };
  // Tiles that run at once share x and weights: all rows for token_tiles_at_once, tokens fastest.
  template <TileShape kShape>
  __device__ Position position_of(int tile) const {
    const int per_band = p.token_tiles_at_once * p.tiles.count;
    const int band = tile / per_band, rest = tile - band * per_band;
    const int first_of_band = band * p.token_tiles_at_once;
    const int width = min(p.token_tiles_at_once, p.num_token_tiles - first_of_band);
    const int row_tile = rest / width, matrix = p.tiles.matrix_of(row_tile);
    return {(first_of_band + rest % width) * kShape.cluster_tokens() + rank * kShape.tokens(),
            matrix, p.tiles.row_of(row_tile, matrix, kShape.rows)};
  }
};

// What a CTA loads of a tile: its x, and its half of the weights, gate or up, or half of the rows.
template <TileShape kShape>
struct TileLoads {
  using Layout = TileLayout<kShape>;
  const TensorMap *x, *w;
  int token, row;
  int x_bytes;  // what the box leaves out of a tile is of no token, whatever it holds
  u32 w_offset;

  __device__ TileLoads(const TileWalk& walk, const Maps& maps, int tile) {
    const bool is_paired = walk.p.tiles.is_paired != 0;
    const auto at = walk.position_of<kShape>(tile);
    const int num_tokens = walk.p.num_tokens - at.token;
    const bool is_tail = num_tokens <= walk.p.tail_tokens;
    x = is_tail ? &maps.x_tail : &maps.x;
    w = &maps.w[is_paired ? walk.rank : at.matrix];
    token = at.token;
    row = is_paired ? at.row : at.row + walk.rank * (kShape.rows / kTileCluster);
    x_bytes = num_tokens <= 0 ? 0
              : is_tail       ? walk.p.tail_tokens * kSwizzleRowBytes
                              : Layout::kXBytes;
    w_offset = static_cast<u32>(Layout::kXBytes + walk.rank * Layout::kHalfWBytes);
  }
  // Of a stage, for both CTAs. Before its x.
  __device__ void load_weights(const StageRing& ring, int i) const {
    mbarrier_arrive_expect_tx(ring.full(),
                              static_cast<u32>(x_bytes + kTileCluster * Layout::kHalfWBytes));
    cp_async_bulk_tensor_multicast(ring.data() + w_offset, w, ring.full(), kEvictNormal,
                                   (1 << kTileCluster) - 1, i * kTileColumns, row);
  }
  __device__ void load_x(const StageRing& ring, int i) const {
    if (x_bytes > 0)
      cp_async_bulk_tensor_load(ring.data(), x, ring.full(), kEvictNormal, i * kTileColumns, token);
  }
};

// The weights of the first stages do not depend on the kernel before this one, and are loaded while
// it ends.
template <TileShape kShape>
__device__ void load_tiles(const TileWalk& walk, const Maps& maps, StageRing ring) {
  const TileLoads<kShape> first(walk, maps, walk.first);
  const int num_early = min(ring.num_stages, walk.p.num_stage_loads);
  StageRing early = ring;
  for (int i = 0; i < num_early; ++i, early.next()) first.load_weights(early, i);
  griddep_wait();
  for (int tile = walk.first; tile < walk.count; tile += walk.stride) {
    const TileLoads<kShape> loads(walk, maps, tile);
    for (int i = 0; i < walk.p.num_stage_loads; ++i, ring.next()) {
      if (tile != walk.first || i >= num_early) {
        mbarrier_wait(ring.empty(), ring.parity ^ 1);
        loads.load_weights(ring, i);
      }
      loads.load_x(ring, i);
    }
  }
  // The other CTA's last arrivals land before this CTA ends: an arrival at one that has ended is a
  // launch failure. A barrier of the cluster does not wait for them.
  for (int i = 0; i < ring.num_stages; ++i, ring.next())
    mbarrier_wait(ring.empty(), ring.parity ^ 1);
}

template <class Element, TileShape kShape>
__device__ void multiply_tiles(const TileWalk& walk, StageRing ring, int group) {
  constexpr bool kIsPingPong = kShape.is_ping_pong;
  const TileParams& p = walk.p;
  const int thread = static_cast<int>(threadIdx.x) & 127;
  const int first_token = kIsPingPong ? 0 : group * 64;
  // A stage that this warpgroup has read is loaded again by both CTAs. One thread of each of two
  // warps arrives at the barrier of one of them.
  const u32 empty = cluster_address(ring.empty(0), static_cast<u32>(thread / 32 % kTileCluster));
  const auto release = [&](int stage) {
    if (thread == 0 || thread == 32) mbarrier_arrive_cluster(empty + static_cast<u32>(16 * stage));
  };
  int tile = walk.first;
  if (kIsPingPong && group == 1) {
    bar_arrive(kTurnBarrier, 256);
    tile += walk.stride;
    ring.skip(p.num_stage_loads);
  }
  for (; tile < walk.count; tile += kIsPingPong ? 2 * walk.stride : walk.stride) {
    float d[kShape.rows / 2];
    if constexpr (kIsPingPong) bar_sync(kTurnBarrier + group, 256);
    sum_stages<Element, kShape.rows, kShape.most_chains()>(
        p.num_chains, d, ring, p.num_stage_loads, first_token * kSwizzleRowBytes,
        TileLayout<kShape>::kXBytes, release, [&] {
          if (kIsPingPong && tile + walk.stride < walk.count)
            bar_arrive(kTurnBarrier + (group ^ 1), 256);
        });
    if constexpr (kIsPingPong) ring.skip(p.num_stage_loads);

    const auto at = walk.position_of<kShape>(tile);
    store_tile<Element, kShape.rows>(p.out, d, p.tiles.is_paired != 0,
                                     at.token + first_token + thread / 32 * 16 + thread % 32 / 4,
                                     p.num_tokens, p.tiles.first_row[at.matrix] + at.row,
                                     p.tiles.rows[at.matrix] - at.row);
  }
}

// kIndex: of kTileShapes; nvcc takes no class as a kernel's template argument.
template <class Element, std::size_t kIndex>
__global__ void __launch_bounds__(kTileThreads, 1)
    tiles(const __grid_constant__ TileParams p, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr TileShape kShape = kTileShapes[kIndex];
  using Layout = TileLayout<kShape>;
  extern __shared__ unsigned char smem_raw[];
  StageRing ring{.base = (smem_address(smem_raw) + 1023) & ~1023u,
                 .barriers = 0,
                 .stage_bytes = Layout::kStageBytes,
                 .num_stages = Layout::kStages};
  ring.barriers = ring.base + Layout::kStages * Layout::kStageBytes;
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 7, 0);
  // Arrivals of the loading thread, and of the warpgroups of both CTAs that read a stage.
  if (threadIdx.x == 0) ring.init_barriers(1, kTileCluster * (kShape.is_ping_pong ? 1 : 2));
  __syncthreads();
  cluster_arrive();
  cluster_wait();
  griddep_launch_dependents();
  const TileWalk walk(p);
  if (group == 0) {
    setmaxnreg_dec<24>();
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5, 0);
    if (warp == 0 && elect_sync()) load_tiles<kShape>(walk, maps, ring);
  } else {
    setmaxnreg_inc<240>();
    griddep_wait();
    multiply_tiles<Element, kShape>(walk, ring, group - 1);
  }
#endif
}

template <class Element, std::size_t kIndex>
Status launch_variant(const char* name, const TileCall& call) {
  const std::int64_t clusters =
      std::min<std::int64_t>(call.params.count(), std::max(call.num_units / kTileCluster, 1));
  const LaunchShape shape{.name = name,
                          .grid = dim3(static_cast<unsigned>(kTileCluster * clusters)),
                          .block = dim3(kTileThreads),
                          .smem_bytes = TileLayout<kTileShapes[kIndex]>::kSmemBytes,
                          .cluster = kTileCluster,
                          .use_pdl = true};
  static AllowedSmem allowed;
  HEADRACE_TRY(allow_smem(shape, tiles<Element, kIndex>, allowed));
  return launch(shape, static_cast<cudaStream_t>(call.stream), tiles<Element, kIndex>, call.params,
                call.maps);
}

template <class Element, std::size_t... kIndex>
Status launch_shape(const char* name, const TileCall& call, std::index_sequence<kIndex...>) {
  Status failed;
  const bool exists = ((call.shape == kTileShapes[kIndex] &&
                        (failed = launch_variant<Element, kIndex>(name, call), true)) ||
                       ...);
  return exists ? failed : unsupported("tiles of {} rows are not compiled", call.shape.rows);
}

template <class Element>
Status launch_tiles(const char* name, const TileCall& call) {
  return launch_shape<Element>(name, call, std::make_index_sequence<std::size(kTileShapes)>());
}

}  // namespace headrace::cuda::gemm
