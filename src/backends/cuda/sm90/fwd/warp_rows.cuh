// A warp's place in a tile: what was announced, which rows it has, where their results go.
#pragma once

#include "backends/cuda/common/row_epilogue.cuh"
#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/sm90/element.cuh"
#include "backends/cuda/sm90/fwd/scheduler.cuh"

namespace headrace::cuda::sm90 {

// A tile as it was announced; the rest of the words is read when it is needed.
struct WorkTile {
  int slot, code, block_max, block_min, unmasked_begin, unmasked_end;
  __device__ __forceinline__ bool has_keys() const { return block_max > block_min; }
  __device__ __forceinline__ bool is_recompute() const { return (code & kRecompute) != 0; }
  // Of all that was loaded, for released_behind().
  __device__ __forceinline__ u32 loaded_words() const {
    return static_cast<u32>(code ^ block_max ^ block_min ^ unmasked_begin ^ unmasked_end);
  }
  // Follows another tile without a stop.
  __device__ __forceinline__ bool can_overlap() const {
    return code >= 0 && !is_recompute() && has_keys();
  }
};

template <Tile kTile, class Element>
class WarpRows {
 public:
  __device__ __forceinline__ WarpRows(const Params& p, u32 smem, int group)
      : p_(p),
        smem_(smem),
        group_(group),
        lane_(static_cast<int>(threadIdx.x) & 31),
        warp_(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5 & 3, 0)) {}

  __device__ __forceinline__ u32 barrier(int i) const {
    return smem_ + kSmem.offset_barriers + 8 * i;
  }
  __device__ __forceinline__ u32 word_address(int slot, int i) const {
    return smem_ + kSmem.offset_tile_info + 4 * (slot * kTileInfoWords + i);
  }
  __device__ __forceinline__ int word(const WorkTile& work, int i) const {
    return static_cast<int>(load_shared(word_address(work.slot, i)));
  }
  // Where the tile lies, in one load.
  struct TileOrigin {
    int query, queries, head, batch;
  };
  __device__ __forceinline__ TileOrigin origin(const WorkTile& work) const {
    TileOrigin x;
    asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.query), "=r"(x.queries), "=r"(x.head), "=r"(x.batch)
                 : "r"(word_address(work.slot, kWordQuery))
                 : "memory");
    return x;
  }
  __device__ __forceinline__ void arrive_tile_done(const WorkTile& work) {
    __syncwarp();
    if (lane_ == 0) mbarrier_arrive(barrier(kBarriers.tile_done + work.slot));
  }

  // Row r (0, 1) of this thread within its warpgroup, and its query and head.
  __device__ __forceinline__ int group_row(int r) const { return warp_ * 16 + lane_ / 4 + 8 * r; }
  __device__ __forceinline__ int query_of(int row) const {
    return group_ * p_.group_queries + (row * p_.pack_inverse >> 16);
  }
  // Keys that a query of the tile sees, [begin, end).
  __device__ __forceinline__ int keys_end(const WorkTile& work, int query) const {
    return min(word(work, kWordSeqlenK), word(work, kWordRight) + query);
  }
  __device__ __forceinline__ int keys_begin(const WorkTile& work, int query) const {
    return max(0, word(work, kWordLeft) + query);
  }
  __device__ __forceinline__ Sequence sequence_of(const WorkTile& work) const {
    return {.row_q = word(work, kWordRowQ),
            .row_k = word(work, kWordRowK),
            .seqlen_q = word(work, kWordSeqlenQ),
            .seqlen_k = word(work, kWordSeqlenK)};
  }
  __device__ __forceinline__ bool row_exists(const TileOrigin& at, int row, int query) const {
    return row < p_.group_queries * p_.pack && query < at.queries - at.query;
  }
  __device__ __forceinline__ int head_of(const TileOrigin& at, int row) const {
    return (at.head - (row * p_.pack_inverse >> 16)) * p_.pack + row;
  }
  __device__ __forceinline__ void write_lse(const WorkTile& work, const TileOrigin& at, int query,
                                            int head, float lse) const {
    const std::int64_t row = std::int64_t{word(work, kWordRowQ)} + at.query + query;
    store_lse(p_.args.lse, at.batch, head, row, lse);
  }

  // Row by row, 16 bytes a lane: rows that are packed, few, or not all wanted.
  __device__ __forceinline__ void store_rows(const WorkTile& work, u32 from, u32 rows) {
    const int chunks = static_cast<int>(p_.problem.head_dim_v) / 8;
    const TileOrigin at = origin(work);
#pragma unroll 1
    for (int row = 0; row < 16; ++row) {
      const int group_row = warp_ * 16 + row, query = query_of(group_row);
      if ((rows >> row & 1u) == 0 || !row_exists(at, group_row, query)) continue;
      Chunk* to = out_address(work, at, query, head_of(at, group_row));
#pragma unroll 1
      for (int chunk = lane_; chunk < chunks; chunk += 32)
        to[chunk] = load_chunk(from + (chunk / 8) * kGroupRows * 128 +
                               swizzle128(static_cast<u32>(row * 128 + chunk % 8 * 16)));
    }
  }

  __device__ __forceinline__ Chunk* out_address(const WorkTile& work, const TileOrigin& at,
                                                int query, int head) const {
    const Operand& out = p_.args.out;
    const std::int64_t row = std::int64_t{word(work, kWordRowQ)} + at.query + query;
    const std::int64_t batch = p_.problem.is_ragged != 0 ? 0 : at.batch;
    return reinterpret_cast<Chunk*>(static_cast<typename Element::Stored*>(out.data) +
                                    row_offset(out, batch, row, head));
  }

  // No row of the tile sees a key.
  __device__ __forceinline__ void write_empty(const WorkTile& work) {
    const int chunks = static_cast<int>(p_.problem.head_dim_v) / 8;
    const TileOrigin at = origin(work);
#pragma unroll 1
    for (int row = 0; row < 16; ++row) {
      const int group_row = warp_ * 16 + row, query = query_of(group_row);
      if (!row_exists(at, group_row, query)) continue;
      const int head = head_of(at, group_row);
      Chunk* to = out_address(work, at, query, head);
#pragma unroll 1
      for (int chunk = lane_; chunk < chunks; chunk += 32) to[chunk] = Chunk{};
      if (lane_ == 0) write_lse(work, at, query, head, -INFINITY);
    }
  }

  const Params& p_;
  const u32 smem_;
  const int group_, lane_, warp_;  // consumer warpgroup; lane; warp of it

 private:
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr BarrierPlan kBarriers = barrier_plan(kTile);
};

}  // namespace headrace::cuda::sm90
