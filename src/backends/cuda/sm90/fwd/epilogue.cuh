// The end of a tile: from sums and accumulators to O and the lse in memory.
#pragma once

#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/sm90/fwd/softmax.cuh"
#include "backends/cuda/sm90/fwd/warp_rows.cuh"

namespace headrace::cuda::sm90 {

template <Tile kTile, class Element, ScoreMod kScoreMod>
class Epilogue : public WarpRows<kTile, Element> {
 public:
  using Base = WarpRows<kTile, Element>;
  using typename Base::TileOrigin;
  using Accumulators = float[kTile.head_dim_v / 2];  // of O: this thread's two rows

  __device__ __forceinline__ Epilogue(const Params& p, const Maps& maps, u32 smem, int group)
      : Base(p, smem, group), maps_(maps) {}

  struct SoftmaxState {
    float row_max_ref[2], sum[2];  // sum: of this thread's columns
    float max_score[2];            // of a tile that is computed again, else -inf
  };

  // The thread's two rows, when their weights are known. A row is bad, and is computed again, if
  // its numbers are too large for the usual arithmetic or O has an infinity or NaN; one that
  // belongs there comes again.
  struct RowResults {
    float factor[2];  // for O
    bool exists[2], needs_recompute[2];
    bool has_row_max_ref[2];  // kHasBias: set where the row has seen a key with a finite score
    u32 rows;                 // of the warp that are to be written, bit r for row r
  };

  // Everything but O: needs no products, so it runs beside them. is_redo: only rows that were bad
  // are written. The lse of a bad row is written by the same thread again.
  __device__ __forceinline__ RowResults finish_rows(const WorkTile& work, const SoftmaxState& sums,
                                                    bool is_recompute) const {
    const TileOrigin at = origin(work);
    RowResults results;
    results.rows = is_recompute ? load_shared(recompute_rows_address(work)) : 0xffffu;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = sums.sum[r];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const float row_max_ref = sums.row_max_ref[r];
      const int row = group_row(r), query = query_of(row), head = head_of(at, row);
      const RowEpilogue end = row_epilogue(p_.problem, p_.args, p_.score_params, head, row_max_ref,
                                           sum, sums.max_score[r]);
      results.factor[r] = end.factor;
      results.exists[r] = row_exists(at, row, query);
      results.needs_recompute[r] =
          !(sum <= kMaxSum) || (fabsf(row_max_ref) > kMaxRowMaxRef && row_max_ref != -INFINITY);
      // A reference that was too high: all weights were tiny.
      if constexpr (kScoreMod == ScoreMod::alibi)
        results.needs_recompute[r] |= sum < kMinSum && row_max_ref != -INFINITY;
      if constexpr (kHasBias) results.has_row_max_ref[r] = row_max_ref != -INFINITY;
      if ((lane_ & 3) == 0 && is_written(results, r)) write_lse(work, at, query, head, end.lse);
    }
    return results;
  }

  // O, but for its last factor.
  __device__ __forceinline__ void store(const WorkTile& work, RowResults results,
                                        const Accumulators& o, bool is_recompute) {
    if constexpr (kHasBias)
      if (p_.args.bias.data != nullptr) find_overflowed_bias(work, results);
    if constexpr (kTile.has_tma_store) {
      store_by_tma(work, results, o, is_recompute);
    } else {
      store_from_registers(work, results, o, is_recompute);
    }
    arrive_tile_done(work);
  }

 protected:
  using Base::arrive_tile_done;
  using Base::group_;
  using Base::group_row;
  using Base::head_of;
  using Base::keys_begin;
  using Base::keys_end;
  using Base::lane_;
  using Base::origin;
  using Base::out_address;
  using Base::p_;
  using Base::query_of;
  using Base::row_exists;
  using Base::smem_;
  using Base::store_rows;
  using Base::warp_;
  using Base::word;
  using Base::word_address;
  using Base::write_lse;
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr int kDimV = kTile.head_dim_v;
  static constexpr bool kHasBias = kScoreMod == ScoreMod::bias || kScoreMod == ScoreMod::general;

  // A row of visible keys without a reference: its bias lies near the least float, and overflowed
  // when it was multiplied by log2 e. (Or a mask hides them all: the second pass finds that again.)
  __device__ __forceinline__ void find_overflowed_bias(const WorkTile& work,
                                                       RowResults& results) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = query_of(group_row(r));
      results.needs_recompute[r] |=
          !results.has_row_max_ref[r] && keys_begin(work, query) < keys_end(work, query);
    }
  }
  __device__ __forceinline__ bool is_written(const RowResults& results, int r) const {
    return results.exists[r] && (results.rows >> (group_row(r) & 15) & 1u) != 0;
  }
  // Two neighbours of O as they are stored. `zero` becomes NaN beside an infinity or NaN.
  static __device__ __forceinline__ u32 pack_out(const Accumulators& o, int j, int r, float factor,
                                                 u32& zero) {
    const u32 out = Element::pack(o[4 * j + 2 * r] * factor, o[4 * j + 2 * r + 1] * factor);
    zero = Element::times_zero_plus(out, zero);
    return out;
  }
  __device__ __forceinline__ u32 recompute_rows_address(const WorkTile& work) const {
    return word_address(work.slot, kWordRecomputeRows + 4 * group_ + warp_);
  }
  // The bad rows of the warp, which the scheduler is told.
  __device__ __forceinline__ u32 report_recompute_rows(const WorkTile& work,
                                                       const RowResults& results) const {
    const bool needs_recompute[2] = {results.exists[0] && results.needs_recompute[0],
                                     results.exists[1] && results.needs_recompute[1]};
    if (!__any_sync(0xffffffffu, needs_recompute[0] || needs_recompute[1])) [[likely]]
      return 0;
    const u32 bad = (needs_recompute[0] ? 1u << lane_ / 4 : 0) |
                    (needs_recompute[1] ? 1u << (lane_ / 4 + 8) : 0);
    const u32 all = __reduce_or_sync(0xffffffffu, bad);
    if (lane_ == 0) store_shared(recompute_rows_address(work), all);
    return all;
  }

  // Through shared memory and the copy engine. Bad rows are left out: stores of the engine are not
  // ordered, and the second must win.
  __device__ __forceinline__ void store_by_tma(const WorkTile& work, RowResults& results,
                                               const Accumulators& o, bool is_recompute) {
    u32 out[kDimV / 8][2];  // [j][row]: columns 8 j + 2 (lane % 4) and the next
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      u32 zero = 0;
#pragma unroll
      for (int j = 0; j < kDimV / 8; ++j) out[j][r] = pack_out(o, j, r, results.factor[r], zero);
      results.needs_recompute[r] |= zero != 0;
    }
    if (!is_recompute) results.rows &= ~report_recompute_rows(work, results);
    // A warp stages its 16 rows and stores them without waiting for others.
    const u32 from = smem_ + kSmem.offset_o + group_ * kSmem.o_group + warp_ * 16 * 128;
    if (lane_ == 0) cp_async_bulk_wait_group_read<0>();  // the store of the tile before
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kDimV / 8; j += 2) {
      const int row = lane_ & 15, chunk = j % 8 + (lane_ >> 4);
      const u32 fragment[4] = {out[j][0], out[j][1], out[j + 1][0], out[j + 1][1]};
      // `from` is a multiple of 2048: the pattern begins there.
      stmatrix_x4(
          from + (j / 8) * kGroupRows * 128 + swizzle128(static_cast<u32>(row * 128 + chunk * 16)),
          fragment);
    }
    const TileOrigin at = origin(work);
    const int query = at.query + group_ * p_.group_queries + warp_ * 16;
    const bool is_whole = p_.problem.is_ragged == 0 || query + 16 <= at.queries;
    if (p_.pack == 1 && results.rows == 0xffffu && is_whole) [[likely]] {
      fence_proxy_async();
      __syncwarp();
      if (lane_ == 0 && query < at.queries) {
        const int row = word(work, kWordRowQ) + query;
#pragma unroll
        for (int atom = 0; atom < num_swizzle_atoms(kDimV); ++atom)
          cp_async_bulk_tensor_store(&maps_.out, from + atom * kGroupRows * 128,
                                     atom * kSwizzleAtomCols, row, at.head,
                                     p_.problem.is_ragged != 0 ? 0 : at.batch);
        cp_async_bulk_commit_group();
      }
    } else {
      __syncwarp();
      store_rows(work, from, results.rows);
    }
  }

  // From registers, 8 bytes a lane and 32, a sector of the cache, a row. Bad rows are written as
  // well: the thread that writes them again is the same.
  __device__ __forceinline__ void store_from_registers(const WorkTile& work, RowResults& results,
                                                       const Accumulators& o, bool is_recompute) {
    const TileOrigin at = origin(work);
    const int mine = lane_ & 1, chunks = static_cast<int>(p_.problem.head_dim_v) / 8;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = group_row(r);
      const bool writes = is_written(results, r);
      // Of an even group of eight columns for even lanes, of an odd one for odd lanes.
      auto* to = reinterpret_cast<HalfChunk*>(
                     out_address(work, at, query_of(row), head_of(at, row)) + mine) +
                 (lane_ >> 1 & 1);
      u32 zero = 0;
#pragma unroll
      for (int j = 0; j < kDimV / 8; j += 2) {
        const u32 x = pack_out(o, j, r, results.factor[r], zero);
        const u32 y = pack_out(o, j + 1, r, results.factor[r], zero);
        const HalfChunk half = exchange_with_neighbour_lane(x, y, lane_);
        if (writes && j + mine < chunks) to[2 * j] = half;
      }
      results.needs_recompute[r] |= zero != 0;
    }
    if (!is_recompute) report_recompute_rows(work, results);
  }

  const Maps& maps_;
};

}  // namespace headrace::cuda::sm90
