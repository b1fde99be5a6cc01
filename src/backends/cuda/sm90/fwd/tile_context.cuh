// A warp's view of the current tile: the TileInfo in shared memory, its rows, its barriers.
#pragma once

#include <cstddef>

#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/sm90/fwd/config.h"
#include "backends/cuda/sm90/fwd/params.h"
#include "backends/cuda/sm90/shared.cuh"

namespace headrace::cuda::sm90::fwd {

// The loop bounds of a tile, in registers. Other fields of its TileInfo are read when needed.
struct WorkTile {
  int slot;  // of the TileInfo
  int tile, k_block_max, k_block_min, unmasked_begin, unmasked_end;
  __device__ __forceinline__ bool has_keys() const { return k_block_max > k_block_min; }
  __device__ __forceinline__ bool is_recompute() const { return (tile & kRecompute) != 0; }
  // Its first S may run beside the last P V of the tile before.
  __device__ __forceinline__ bool can_overlap() const {
    return tile >= 0 && !is_recompute() && has_keys();
  }
  // All loaded words combined, for released_behind().
  __device__ __forceinline__ u32 loaded_words() const {
    return static_cast<u32>(tile ^ k_block_max ^ k_block_min ^ unmasked_begin ^ unmasked_end);
  }
};

// Position of a tile: its first query, the length of its sequence, head (of the tile_heads), batch.
struct TileOrigin {
  int query, seqlen_q, head, batch;
};

template <Tile kTile>
struct TileContext {
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr BarrierPlan kBarriers = barrier_plan(kTile);

  const Params& p;
  u32 smem;
  int group, lane, warp;  // consumer warpgroup; lane; warp of the warpgroup

  __device__ __forceinline__ TileContext(const Params& params, u32 smem_base, int warpgroup)
      : p(params),
        smem(smem_base),
        group(warpgroup),
        lane(static_cast<int>(threadIdx.x) & 31),
        warp(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5 & 3, 0)) {}

  __device__ __forceinline__ u32 barrier(int i) const {
    return smem + kSmem.offset_barriers + 8 * i;
  }

  // ---- TileInfo: `offset` is an offsetof(TileInfo, field)
  __device__ __forceinline__ u32 info_address(const WorkTile& work, std::size_t offset) const {
    return smem + kSmem.offset_tile_info + work.slot * static_cast<int>(sizeof(TileInfo)) +
           static_cast<int>(offset);
  }
  __device__ __forceinline__ int info(const WorkTile& work, std::size_t offset) const {
    return static_cast<int>(load_shared(info_address(work, offset)));
  }
  __device__ __forceinline__ TileOrigin origin(const WorkTile& work) const {
    TileOrigin x;
    asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.query), "=r"(x.seqlen_q), "=r"(x.head), "=r"(x.batch)
                 : "r"(info_address(work, offsetof(TileInfo, query)))
                 : "memory");
    return x;
  }
  __device__ __forceinline__ Sequence sequence(const WorkTile& work) const {
    return {.row_q = info(work, offsetof(TileInfo, row_q)),
            .row_k = info(work, offsetof(TileInfo, row_k)),
            .seqlen_q = info(work, offsetof(TileInfo, seqlen_q)),
            .seqlen_k = info(work, offsetof(TileInfo, seqlen_k))};
  }
  __device__ __forceinline__ void arrive_tile_done(const WorkTile& work) const {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(barrier(kBarriers.tile_done + work.slot));
  }

  // ---- rows
  // Row r (0, 1) of this thread within its warpgroup, and its query and head.
  __device__ __forceinline__ int group_row(int r) const { return warp * 16 + lane / 4 + 8 * r; }
  __device__ __forceinline__ int query_of(int row) const {
    return group * p.tiles.group_queries + (row * p.tiles.pack_inverse >> 16);
  }
  __device__ __forceinline__ int head_of(const TileOrigin& at, int row) const {
    return (at.head - (row * p.tiles.pack_inverse >> 16)) * p.tiles.pack + row;
  }
  __device__ __forceinline__ bool row_exists(const TileOrigin& at, int row, int query) const {
    return row < p.tiles.group_queries * p.tiles.pack && query < at.seqlen_q - at.query;
  }
  // Keys that a query of the tile sees, [begin, end).
  __device__ __forceinline__ int keys_end(const WorkTile& work, int query) const {
    return min(info(work, offsetof(TileInfo, seqlen_k)),
               info(work, offsetof(TileInfo, right)) + query);
  }
  __device__ __forceinline__ int keys_begin(const WorkTile& work, int query) const {
    return max(0, info(work, offsetof(TileInfo, left)) + query);
  }
};

}  // namespace headrace::cuda::sm90::fwd
