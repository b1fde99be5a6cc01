// Epilogue of a tile: from row sums and the accumulators of O to O and the lse in global memory.
#pragma once

#include "backends/cuda/common/row_epilogue.cuh"
#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/sm90/element.cuh"
#include "backends/cuda/sm90/fwd/merge.cuh"
#include "backends/cuda/sm90/fwd/softmax.cuh"
#include "backends/cuda/sm90/fwd/tile_context.cuh"

namespace headrace::cuda::sm90::fwd {

// Of the thread's two rows, when all P are known.
struct SoftmaxState {
  float row_max_ref[2], sum[2];  // sum: of this thread's columns
  float max_score[2];            // of a recomputed tile, else -inf
};

// A row is recomputed if its values are too large for the usual arithmetic or O has an infinity or
// NaN. A genuine NaN or Inf is reproduced by the recompute pass.
struct RowResults {
  float factor[2];  // for O
  bool exists[2], needs_recompute[2];
  bool has_row_max_ref[2];  // kHasBias: set if the row has seen a key with a finite score
  u32 rows;                 // of the warp, to be written: bit r for row r
};

// Of the thread's two rows, when all P of a split are known.
struct SplitResults {
  SplitWeight weight[2];
  float factor[2];  // for O, so that it is the mean of the values
  bool overflows[2];
};

__device__ __forceinline__ bool overflows(float row_max_ref, float sum) {
  return !(sum <= kMaxSum) || (fabsf(row_max_ref) > kMaxRowMaxRef && row_max_ref != -INFINITY);
}
// Of a SplitWeight. Where row_max_ref overflowed, also with a bias, its difference to another one
// is 0 or beyond any exponent: any unit will do.
__device__ __forceinline__ float split_reference(float row_max_ref, float max_score) {
  return fabsf(row_max_ref) == INFINITY ? 0.5f * max_score : 0.25f * row_max_ref;
}

template <Tile kTile, class Element, ScoreMod kScoreMod>
class Epilogue {
 public:
  using O = float[kTile.head_dim_v / 2];  // accumulators: this thread's two rows

  __device__ __forceinline__ Epilogue(const TileContext<kTile>& ctx, const Maps& maps)
      : ctx_(ctx), maps_(maps) {}

  // The lse, and the factors for O. Does not depend on O, so it runs beside the last P V.
  // is_recompute: writes only the rows that needed it. The lse of such a row is written again by
  // the same thread. That of merged splits is written with O.
  __device__ __forceinline__ RowResults finish_rows(const WorkTile& work, const SoftmaxState& state,
                                                    bool is_recompute) const {
    const TileOrigin at = ctx_.origin(work);
    RowResults results;
    results.rows = is_recompute ? load_shared(recompute_rows_address(work)) : 0xffffu;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = row_sum(state, r);
      const float row_max_ref = state.row_max_ref[r];
      const int row = ctx_.group_row(r), query = ctx_.query_of(row), head = ctx_.head_of(at, row);
      RowEpilogue end = row_epilogue(ctx_.p.rows.sinks, ctx_.p.scores.params.keep_factor, head,
                                     row_max_ref, sum, state.max_score[r]);
      // As lse_of() of a split. Known of a recomputed tile alone.
      if constexpr (kScoreMod == ScoreMod::plain)
        if (row_max_ref == INFINITY && fabsf(state.max_score[r]) < INFINITY)
          end.lse = state.max_score[r];
      results.factor[r] = end.factor;
      results.exists[r] = ctx_.row_exists(at, row, query);
      results.needs_recompute[r] = overflows(row_max_ref, sum);
      // row_max_ref was far too high: all P were tiny.
      if constexpr (kScoreMod == ScoreMod::alibi)
        results.needs_recompute[r] |= sum < kMinSum && row_max_ref != -INFINITY;
      if constexpr (kHasBias) results.has_row_max_ref[r] = row_max_ref != -INFINITY;
      if ((ctx_.lane & 3) == 0 && is_written(results, r)) {
        if (has_splits())
          ctx_.p.splits.weights[partial_row(work, at, row)] = {
              split_reference(row_max_ref, state.max_score[r]), sum};
        else
          write_lse(work, at, query, head, end.lse);
      }
    }
    return results;
  }

  // Writes O * factor, reports the rows to recompute, arrives at tile_done.
  __device__ __forceinline__ void store(const WorkTile& work, RowResults results, O& o,
                                        bool is_recompute) {
    if constexpr (kHasBias)
      if (ctx_.p.scores.bias.data != nullptr) find_overflowed_bias(work, results);
    if (has_splits()) {
      store_partial(work, results, o, is_recompute);
    } else {
      store_rows(work, results, o, is_recompute);
    }
    ctx_.arrive_tile_done(work);
  }

  // ---- splits that are merged
  // Does not depend on O, so it runs beside the last P V of the split.
  __device__ __forceinline__ SplitResults finish_split(const SoftmaxState& state) const {
    SplitResults split;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = row_sum(state, r), row_max_ref = state.row_max_ref[r];
      split.weight[r] = {split_reference(row_max_ref, state.max_score[r]), sum};
      split.factor[r] = sum == 0.0f ? 0.0f : rcp_approx(sum);  // as row_epilogue()
      split.overflows[r] = overflows(row_max_ref, sum);
    }
    return split;
  }
  // O becomes the mean of the values, and `overflows` that of all threads of a row, by the
  // condition of store_partial().
  __device__ __forceinline__ void normalise(SplitResults& split, O& o) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      u32 zero = 0;
#pragma unroll
      for (int j = 0; j < kDimV / 8; ++j) {
        float &x = o[4 * j + 2 * r], &y = o[4 * j + 2 * r + 1];
        x *= split.factor[r], y *= split.factor[r];
        zero = Element::times_zero_plus(Element::pack(x, y), zero);
      }
      split.overflows[r] = of_row(split.overflows[r] || zero != 0);
    }
  }
  // O and the weights become those of the split and of all to its right, which are kept for the
  // next split unless this is the last. Of rows that do not count, they are those to its right.
  __device__ __forceinline__ void merge(SplitResults& split, O& o, const bool (&counts)[2],
                                        bool is_first, bool is_last) const {
    MergeShares shares[2];
    bool is_skipped[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      SplitWeight all = is_first ? SplitWeight{-HUGE_VALF, 0.0f} : load_weight(ctx_.group_row(r));
      is_skipped[r] = !counts[r] || split.weight[r].sum == 0.0f;
      shares[r] = {1.0f, 0.0f};
      if (!is_skipped[r]) shares[r] = merge_weights(all, split.weight[r]);
      split.weight[r] = all;
    }
    // A value that no row sees may be a NaN.
    if (__any_sync(0xffffffffu, is_skipped[0] || is_skipped[1])) [[unlikely]] {
#pragma unroll
      for (int i = 0; i < kDimV / 2; ++i)
        if (is_skipped[i / 2 % 2]) o[i] = -0.0f;  // which changes no addend
    }
    if (!is_first) {
#pragma unroll
      for (int j = 0; j < kDimV / 8; ++j) {
        float before[4];
        load_merged(j, before);
#pragma unroll
        for (int i = 0; i < 4; ++i) o[4 * j + i] = merged(before[i], o[4 * j + i], shares[i / 2]);
      }
    }
    if (is_last) return;
    __syncwarp();  // all have read the weights
    if ((ctx_.lane & 3) == 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r) store_weight(ctx_.group_row(r), split.weight[r]);
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kDimV / 8; ++j) store_merged(j, o);
  }
  // A row that overflows in some split gets a sum of NaN, so that it is reported behind the last.
  static __device__ __forceinline__ void mark_overflows(SplitResults& split) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (split.overflows[r]) split.weight[r].sum = NAN;
  }
  // Behind the last merge.
  __device__ __forceinline__ void store_merged_rows(const WorkTile& work, const SplitResults& split,
                                                    const O& o, bool is_recompute) {
    const TileOrigin at = ctx_.origin(work);
    RowResults results;
    results.rows = is_recompute ? load_shared(recompute_rows_address(work)) : 0xffffu;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = ctx_.group_row(r), query = ctx_.query_of(row), head = ctx_.head_of(at, row);
      results.factor[r] = split.weight[r].sum == 0.0f ? -0.0f : 1.0f;  // O of no key is +0
      results.exists[r] = ctx_.row_exists(at, row, query);
      results.needs_recompute[r] = !(split.weight[r].sum <= HUGE_VALF);
      if ((ctx_.lane & 3) == 0 && is_written(results, r))
        write_lse(work, at, query, head, lse_of(split.weight[r]));
    }
    store_rows(work, results, o, is_recompute);
    ctx_.arrive_tile_done(work);
  }

  // No row of the tile sees a key: O is 0, the lse -inf. O of such a split is not read.
  __device__ __forceinline__ void store_empty(const WorkTile& work) {
    const int chunks = static_cast<int>(ctx_.p.sizes.head_dim_v) / 8;
    const TileOrigin at = ctx_.origin(work);
#pragma unroll 1
    for (int row = 0; row < 16; ++row) {
      const int group_row = ctx_.warp * 16 + row, query = ctx_.query_of(group_row);
      if (!ctx_.row_exists(at, group_row, query)) continue;
      const int head = ctx_.head_of(at, group_row);
      if (has_splits()) {
        if (ctx_.lane == 0)
          ctx_.p.splits.weights[partial_row(work, at, group_row)] = {-INFINITY, 0.0f};
        continue;
      }
      Chunk* to = out_address(work, at, query, head);
#pragma unroll 1
      for (int chunk = ctx_.lane; chunk < chunks; chunk += 32) to[chunk] = Chunk{};
      if (ctx_.lane == 0) write_lse(work, at, query, head, -INFINITY);
    }
    ctx_.arrive_tile_done(work);
  }

 private:
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr int kDimV = kTile.head_dim_v;
  static constexpr bool kHasBias = kScoreMod == ScoreMod::bias || kScoreMod == ScoreMod::general;

  // ---- sums of rows
  static __device__ __forceinline__ float row_sum(const SoftmaxState& state, int r) {
    const float sum = state.sum[r] + __shfl_xor_sync(0xffffffffu, state.sum[r], 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
  }

  // ---- rows to recompute
  // A row that sees keys and has no row_max_ref: its bias is near the least float, and overflowed
  // when it was multiplied by log2 e. (Or a mask hides all keys: the recompute pass finds the
  // same.)
  __device__ __forceinline__ void find_overflowed_bias(const WorkTile& work,
                                                       RowResults& results) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = ctx_.query_of(ctx_.group_row(r));
      results.needs_recompute[r] |=
          !results.has_row_max_ref[r] && ctx_.keys_begin(work, query) < ctx_.keys_end(work, query);
    }
  }
  __device__ __forceinline__ u32 recompute_rows_address(const WorkTile& work) const {
    return ctx_.info_address(work, offsetof(TileInfo, recompute_rows)) +
           4 * (4 * ctx_.group + ctx_.warp);
  }
  // Writes the warp's rows to recompute into the TileInfo, for the scheduler, and returns them.
  __device__ __forceinline__ u32 report_recompute_rows(const WorkTile& work,
                                                       const RowResults& results) const {
    const bool needs[2] = {results.exists[0] && results.needs_recompute[0],
                           results.exists[1] && results.needs_recompute[1]};
    if (!__any_sync(0xffffffffu, needs[0] || needs[1])) [[likely]]
      return 0;
    const u32 mine =
        (needs[0] ? 1u << ctx_.lane / 4 : 0) | (needs[1] ? 1u << (ctx_.lane / 4 + 8) : 0);
    const u32 all = __reduce_or_sync(0xffffffffu, mine);
    if (ctx_.lane == 0) store_shared(recompute_rows_address(work), all);
    return all;
  }
  __device__ __forceinline__ bool is_written(const RowResults& results, int r) const {
    return results.exists[r] && (results.rows >> (ctx_.group_row(r) & 15) & 1u) != 0;
  }

  // ---- splits
  __device__ __forceinline__ bool has_splits() const {
    return kTile.splits_keys && ctx_.p.splits.max_splits != 0;
  }
  // Of a row of the warpgroup, among the partial results.
  __device__ __forceinline__ std::int64_t partial_row(const WorkTile& work, const TileOrigin& at,
                                                      int row) const {
    const SplitArgs& x = ctx_.p.splits;
    const int split = split_of(work.k_block_min * kTile.keys, x.num_short);
    const std::int64_t head = std::int64_t{at.batch} * ctx_.p.tiles.tile_heads + at.head;
    return (head * x.max_splits + split) * x.rows + row;
  }
  // What the warpgroup has merged: 16 bytes of each thread for neighbouring columns of its two
  // rows, then the weights of its rows.
  __device__ __forceinline__ u32 merged_smem() const {
    return ctx_.smem + static_cast<u32>(kSmem.offset_merged + ctx_.group * merged_bytes(kTile));
  }
  __device__ __forceinline__ unsigned char* merged_workspace() const {
    return reinterpret_cast<unsigned char*>(ctx_.p.splits.out) +
           (std::int64_t{blockIdx.x} * kTile.warpgroups + ctx_.group) * merged_bytes(kTile);
  }
  static __device__ __forceinline__ int merged_offset(int j) {
    return 16 * (128 * j + (static_cast<int>(threadIdx.x) & 127));
  }
  static __device__ __forceinline__ int weight_offset(int row) {
    return kGroupRows * kDimV * 4 + 8 * row;
  }
  __device__ __forceinline__ void load_merged(int j, float (&x)[4]) const {
    Chunk c;
    if constexpr (merges_in_smem(kTile))
      c = load_chunk(merged_smem() + static_cast<u32>(merged_offset(j)));
    else
      c = *reinterpret_cast<const Chunk*>(merged_workspace() + merged_offset(j));
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = __uint_as_float(c.words[i]);
  }
  __device__ __forceinline__ void store_merged(int j, const O& o) const {
    Chunk c;
#pragma unroll
    for (int i = 0; i < 4; ++i) c.words[i] = __float_as_uint(o[4 * j + i]);
    if constexpr (merges_in_smem(kTile))
      store_chunk(merged_smem() + static_cast<u32>(merged_offset(j)), c);
    else
      *reinterpret_cast<Chunk*>(merged_workspace() + merged_offset(j)) = c;
  }
  __device__ __forceinline__ SplitWeight load_weight(int row) const {
    float2 x;
    if constexpr (merges_in_smem(kTile))
      x = load_shared2(merged_smem() + static_cast<u32>(weight_offset(row)));
    else
      x = *reinterpret_cast<const float2*>(merged_workspace() + weight_offset(row));
    return {x.x, x.y};
  }
  __device__ __forceinline__ void store_weight(int row, const SplitWeight& x) const {
    if constexpr (merges_in_smem(kTile))
      store_shared2(merged_smem() + static_cast<u32>(weight_offset(row)), x.reference, x.sum);
    else
      *reinterpret_cast<float2*>(merged_workspace() + weight_offset(row)) = {x.reference, x.sum};
  }
  // Whether a thread of the row says so.
  static __device__ __forceinline__ bool of_row(bool x) {
    const int mine = x ? 1 : 0;
    const int both = mine | __shfl_xor_sync(0xffffffffu, mine, 1);
    return (both | __shfl_xor_sync(0xffffffffu, both, 2)) != 0;
  }
  // In float. Rows to recompute are written as well: the same thread writes them again.
  __device__ __forceinline__ void store_partial(const WorkTile& work, RowResults& results,
                                                const O& o, bool is_recompute) {
    const TileOrigin at = ctx_.origin(work);
    const int columns = static_cast<int>(ctx_.p.sizes.head_dim_v), first = ctx_.lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool writes = is_written(results, r);
      float* to = ctx_.p.splits.out + partial_row(work, at, ctx_.group_row(r)) * columns + first;
      u32 zero = 0;  // as in pack_out(): the condition is that of tiles without splits
#pragma unroll
      for (int j = 0; j < kDimV / 8; ++j) {
        const float x = o[4 * j + 2 * r] * results.factor[r],
                    y = o[4 * j + 2 * r + 1] * results.factor[r];
        zero = Element::times_zero_plus(Element::pack(x, y), zero);
        if (writes && 8 * j < columns) *reinterpret_cast<float2*>(to + 8 * j) = {x, y};
      }
      results.needs_recompute[r] |= zero != 0;
    }
    if (!is_recompute) report_recompute_rows(work, results);
  }

  // ---- addresses
  __device__ __forceinline__ void write_lse(const WorkTile& work, const TileOrigin& at, int query,
                                            int head, float lse) const {
    const std::int64_t row =
        std::int64_t{ctx_.info(work, offsetof(TileInfo, row_q))} + at.query + query;
    store_lse(ctx_.p.rows.lse, at.batch, head, row, lse);
  }
  __device__ __forceinline__ Chunk* out_address(const WorkTile& work, const TileOrigin& at,
                                                int query, int head) const {
    const Operand& out = ctx_.p.out;
    const std::int64_t row =
        std::int64_t{ctx_.info(work, offsetof(TileInfo, row_q))} + at.query + query;
    const std::int64_t batch = ctx_.p.sizes.is_ragged != 0 ? 0 : at.batch;
    return reinterpret_cast<Chunk*>(static_cast<typename Element::Stored*>(out.data) +
                                    row_offset(out, batch, row, head));
  }

  // ---- stores
  __device__ __forceinline__ void store_rows(const WorkTile& work, RowResults& results, const O& o,
                                             bool is_recompute) {
    if constexpr (kTile.has_tma_store)
      store_by_tma(work, results, o, is_recompute);
    else
      store_from_registers(work, results, o, is_recompute);
  }
  // Two neighbours of O in the output dtype. `zero` becomes NaN if one is an infinity or NaN.
  static __device__ __forceinline__ u32 pack_out(const O& o, int j, int r, float factor,
                                                 u32& zero) {
    const u32 out = Element::pack(o[4 * j + 2 * r] * factor, o[4 * j + 2 * r + 1] * factor);
    zero = Element::times_zero_plus(out, zero);
    return out;
  }

  // Through shared memory by TMA. Rows to recompute are left out: TMA stores are not ordered, and
  // the second store must win.
  __device__ __forceinline__ void store_by_tma(const WorkTile& work, RowResults& results,
                                               const O& o, bool is_recompute) {
    u32 out[kDimV / 8][2];  // [j][row]: columns 8 j + 2 (lane % 4) and the next
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      u32 zero = 0;
#pragma unroll
      for (int j = 0; j < kDimV / 8; ++j) out[j][r] = pack_out(o, j, r, results.factor[r], zero);
      results.needs_recompute[r] |= zero != 0;
    }
    if (!is_recompute) results.rows &= ~report_recompute_rows(work, results);
    // A warp stages and stores its 16 rows independently of the other warps.
    const u32 from = ctx_.smem + kSmem.offset_o + ctx_.group * kSmem.o_group + ctx_.warp * 16 * 128;
    if (ctx_.lane == 0) cp_async_bulk_wait_group_read<0>();  // the store of the tile before
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kDimV / 8; j += 2) {
      const int row = ctx_.lane & 15, chunk = j % 8 + (ctx_.lane >> 4);
      const u32 fragment[4] = {out[j][0], out[j][1], out[j + 1][0], out[j + 1][1]};
      // `from` is a multiple of 2048: the pattern begins there.
      stmatrix_x4(
          from + (j / 8) * kGroupRows * 128 + swizzle128(static_cast<u32>(row * 128 + chunk * 16)),
          fragment);
    }
    const TileOrigin at = ctx_.origin(work);
    const int query = at.query + ctx_.group * ctx_.p.tiles.group_queries + ctx_.warp * 16;
    const bool is_whole = ctx_.p.sizes.is_ragged == 0 || query + 16 <= at.seqlen_q;
    if (ctx_.p.tiles.pack == 1 && results.rows == 0xffffu && is_whole) [[likely]] {
      fence_proxy_async();
      __syncwarp();
      if (ctx_.lane == 0 && query < at.seqlen_q) {
        const int row = ctx_.info(work, offsetof(TileInfo, row_q)) + query;
#pragma unroll
        for (int atom = 0; atom < num_swizzle_atoms(kDimV); ++atom)
          cp_async_bulk_tensor_store(&maps_.out, from + atom * kGroupRows * 128,
                                     atom * kSwizzleAtomCols, row, at.head,
                                     ctx_.p.sizes.is_ragged != 0 ? 0 : at.batch);
        cp_async_bulk_commit_group();
      }
    } else {
      __syncwarp();
      store_staged_rows(work, from, results.rows);
    }
  }

  // Row by row from shared memory, 16 bytes a lane: packed heads, the end of a ragged sequence, or
  // not all rows.
  __device__ __forceinline__ void store_staged_rows(const WorkTile& work, u32 from, u32 rows) {
    const int chunks = static_cast<int>(ctx_.p.sizes.head_dim_v) / 8;
    const TileOrigin at = ctx_.origin(work);
#pragma unroll 1
    for (int row = 0; row < 16; ++row) {
      const int group_row = ctx_.warp * 16 + row, query = ctx_.query_of(group_row);
      if ((rows >> row & 1u) == 0 || !ctx_.row_exists(at, group_row, query)) continue;
      Chunk* to = out_address(work, at, query, ctx_.head_of(at, group_row));
#pragma unroll 1
      for (int chunk = ctx_.lane; chunk < chunks; chunk += 32)
        to[chunk] = load_chunk(from + (chunk / 8) * kGroupRows * 128 +
                               swizzle128(static_cast<u32>(row * 128 + chunk % 8 * 16)));
    }
  }

  // From registers, 8 bytes a lane and 32, a sector of the cache, a row. Rows to recompute are
  // written as well: the same thread writes them again.
  __device__ __forceinline__ void store_from_registers(const WorkTile& work, RowResults& results,
                                                       const O& o, bool is_recompute) {
    const TileOrigin at = ctx_.origin(work);
    const int mine = ctx_.lane & 1, chunks = static_cast<int>(ctx_.p.sizes.head_dim_v) / 8;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = ctx_.group_row(r);
      const bool writes = is_written(results, r);
      // Even lanes write the even groups of eight columns, odd lanes the odd ones.
      auto* to = reinterpret_cast<HalfChunk*>(
                     out_address(work, at, ctx_.query_of(row), ctx_.head_of(at, row)) + mine) +
                 (ctx_.lane >> 1 & 1);
      u32 zero = 0;
#pragma unroll
      for (int j = 0; j < kDimV / 8; j += 2) {
        const u32 x = pack_out(o, j, r, results.factor[r], zero);
        const u32 y = pack_out(o, j + 1, r, results.factor[r], zero);
        const HalfChunk half = exchange_with_neighbour_lane(x, y, ctx_.lane);
        if (writes && j + mine < chunks) to[2 * j] = half;
      }
      results.needs_recompute[r] |= zero != 0;
    }
    if (!is_recompute) report_recompute_rows(work, results);
  }

  const TileContext<kTile> ctx_;
  const Maps& maps_;
};

}  // namespace headrace::cuda::sm90::fwd
