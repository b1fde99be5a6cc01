// Attention forward for Hopper: a persistent, warp-specialized kernel, from top to bottom:
// consumers (main loop, splits, transition between tiles, recompute), kernel, launch.
//
// Warpgroup 0 has the scheduler warp and one thread each that loads Q and K, V, a bias by TMA. The
// next one to three warpgroups are consumers: S = Q K^T, online softmax and O += P V for 64 query
// rows each. With dropout one more warpgroup draws the masks. They synchronize by mbarriers:
//
//   scheduler  tile_info_full -> producers, consumers   ring of TileInfos
//   producers  q, k, v_full -> consumers, q, k, v_empty -> producers
//   consumers, producers  tile_done -> scheduler        with the rows to recompute
#pragma once

#include <cstddef>

#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/device/wgmma.cuh"
#include "backends/cuda/sm90/fwd/dropout_masks.cuh"
#include "backends/cuda/sm90/fwd/epilogue.cuh"
#include "backends/cuda/sm90/fwd/kernels.h"
#include "backends/cuda/sm90/fwd/produce.cuh"
#include "backends/cuda/sm90/fwd/scheduler.cuh"
#include "backends/cuda/sm90/fwd/scores.cuh"
#include "backends/cuda/sm90/fwd/softmax.cuh"

namespace headrace::cuda::sm90::fwd {

// ---- consumers: one to three warpgroups

template <Tile kTile, class Element, ScoreMod kScoreMod>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Params& p, const Maps& maps, u32 smem, int group)
      : ctx_(p, smem, group), scores_(ctx_), epilogue_(ctx_, maps) {}

  __device__ __forceinline__ void run() {
    if constexpr (kTile.pingpong)
      if (ctx_.group == kTile.warpgroups - 1) pingpong_arrive();
    for (WorkTile work = next_tile(); work.tile != kEnd;) {
      if (work.tile == kFlush) {
        finish_flush(work);
        work = next_tile();
      } else if (!work.has_keys()) {
        epilogue_.store_empty(work);
        work = next_tile();
      } else if (!kIsGeneral && work.is_recompute()) {
        if constexpr (kTile.merges_splits)
          recompute_splits(work);
        else
          recompute_tile(work);
        work = next_tile();
      } else {
        compute_tiles(work);
      }
    }
    if (ctx_.lane == 0) cp_async_bulk_wait_group_read<0>();
  }

 private:
  using TileScores = Scores<kTile, Element, kScoreMod>;
  using RowSoftmax = typename TileScores::RowSoftmax;
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr BarrierPlan kBarriers = barrier_plan(kTile);
  static constexpr bool kIsGeneral = TileScores::kIsGeneral;
  static constexpr bool kHasExactScores = TileScores::kHasExactScores;
  static constexpr int kDim = kTile.head_dim, kDimV = kTile.head_dim_v, kKeys = kTile.keys;
  static constexpr int kQFragments = kTile.q_in_registers ? kDim / 16 : kTile.q_fragments;
  static constexpr int kPingpongBarrier = 1 + 3;  // named barriers; zero_v_tail has 1 to 3
  static_assert(!(kIsGeneral && kTile.overlaps_tiles), "a recomputed tile has no next one");
  using Precise = PreciseSoftmax<kKeys, Element::kPreciseLog2Scale>;
  using QK = WgmmaM64K16<typename Element::Operand, kKeys>;
  using PV = WgmmaM64K16<typename Element::Operand, kDimV>;

  // Where few rows have tiles, and with V of fewer columns, ptxas may leave a load of the TileInfo
  // in flight that only other tiles wait for.
  __device__ __forceinline__ void finish_flush(WorkTile work) const {
    if constexpr (kTile.splits_keys || kDimV < kDim)
      work.slot =
          static_cast<int>(released_behind(work.loaded_words(), static_cast<u32>(work.slot)));
    ctx_.arrive_tile_done(work);
  }

  // ---- a tile

  // This tile and all that overlap with it; `work` is then the next tile.
  __device__ __forceinline__ void compute_tiles(WorkTile& work) {
    prologue(work);
    WorkTile next;
    if constexpr (kTile.overlaps_tiles) next = next_tile();
    for (;;) {
      if constexpr (kTile.merges_splits) {
        iterate_splits(work);
      } else {
        for (int n = work.k_block_max - 2; n >= work.k_block_min; --n) iterate(work, n);
      }
      if constexpr (!kTile.overlaps_tiles) break;
      if (!next.can_overlap()) break;
      transition(work, next);
    }
    // Epilogue: the last P V, beside it the row sums and the lse; then O.
    issue_pv();
    if constexpr (kTile.merges_splits) {
      SplitResults split = epilogue_.finish_split(state_of(softmax_));
      finish_pv();
      store_splits(work, split);
    } else {
      const bool is_recompute = kIsGeneral && work.is_recompute();
      const RowResults results = epilogue_.finish_rows(
          work, is_recompute ? state_of(precise_) : state_of(softmax_), is_recompute);
      finish_pv();
      epilogue_.store(work, results, o_, is_recompute);
    }
    work = kTile.overlaps_tiles ? next : next_tile();
  }

  // The first k-block of a tile, with nothing beside it.
  __device__ __forceinline__ void prologue(const WorkTile& work) {
    const int n = work.k_block_max - 1;
    scores_.load_rows(work);
    // Wait for Q and K, issue S.
    wait_q();
    scores_.init_s(s_, work, n, work.is_recompute());
    issue_first_s();
    scores_.release_bias(work.is_recompute());
    scores_.prefetch_bias(work, n);
    // Wait for S, release K. Softmax.
    wgmma_wait_group<0>();
    finish_s(work, n);
    if constexpr (!kHasExactScores) scores_.make_scores(s_, work, n);
    first_p(work, n);
    scores_.apply_dropout(s_, n);
    pack_p();
    scale_d_ = 0;
    zero_v_tail(work, n);
  }
  __device__ __forceinline__ void first_p(const WorkTile& work, int n) {
    if (work.is_recompute()) [[unlikely]] {
      if constexpr (kHasExactScores) scores_.make_exact_scores(s_, work, n);
      float factor[2];  // unused: there is no O yet
      precise_.init();
      precise_.update(s_, scores_.exact_to_log2(), factor);
    } else {
      if constexpr (kHasExactScores) scores_.make_scores(s_, work, n);
      scores_.first_softmax(softmax_, s_, work, n);
    }
  }

  // S of k-block n is multiplied beside P V of k-block n + 1: the softmax runs under that product.
  __device__ __forceinline__ void iterate(const WorkTile& work, int n) {
    float factor[2];
    scores_.init_s(s_, work, n, false);
    // Wait for K, issue S; wait for V, issue O += P V. Release the bias that S started with.
    pingpong_wait();
    issue_s();
    issue_pv();
    pingpong_arrive();
    scores_.release_bias(false);
    scores_.prefetch_bias(work, n);
    // Wait for S, release K. Softmax under P V.
    wgmma_wait_group<1>();
    finish_s(work, n);
    if constexpr (kIsGeneral) scores_.make_scores(s_, work, n);
    const bool moves = online_softmax(work, n, factor);
    if constexpr (!TileScores::kIsLazy) softmax_.pin_exponentials();  // lazy updates branch anyway
    scores_.apply_dropout(s_, n);
    // Wait for P V, release V.
    finish_pv();
    if (moves) [[unlikely]]
      rescale(o_, factor);
    pack_p();
  }
  // General kernels recompute a tile by the same code, because there is so much of it. If true, O
  // must be multiplied by `factor`.
  __device__ __forceinline__ bool online_softmax(const WorkTile& work, int n, float (&factor)[2]) {
    if (kIsGeneral && work.is_recompute()) {
      precise_.update(s_, scores_.exact_to_log2(), factor);
      return true;
    }
    return scores_.online_softmax(softmax_, s_, work, n, factor);
  }

  // The k-blocks of a tile that merges its splits, without the first and the last P V.
  __device__ __forceinline__ void iterate_splits(const WorkTile& work) {
    for (int n = work.k_block_max - 2;;) {
      const int begin = max(first_block_of_split(kTile, n + 1), work.k_block_min);
      for (; n >= begin; --n) iterate(work, n);
      if (n < work.k_block_min) return;
      begin_split(work, n--);
    }
  }
  // An iteration in which k-block n is the first of a split, and k-block n + 1 the last of another.
  __device__ __forceinline__ void begin_split(const WorkTile& work, int n) {
    pingpong_wait();
    issue_s();
    issue_pv();
    pingpong_arrive();
    SplitResults split = epilogue_.finish_split(state_of(softmax_));
    wgmma_wait_group<1>();
    finish_s(work, n);
    scores_.make_scores(s_, work, n);
    scores_.first_softmax(softmax_, s_, work, n);
    softmax_.pin_exponentials();
    finish_pv();
    pack_p();
    scale_d_ = 0;
    merge_split(split, is_first_split(work, n + 1), false);
  }
  static __device__ __forceinline__ bool is_first_split(const WorkTile& work, int n) {
    return n >= first_block_of_split(kTile, work.k_block_max - 1);
  }
  __device__ __forceinline__ void merge_split(SplitResults& split, bool is_first, bool is_last) {
    epilogue_.normalise(split, o_);
    epilogue_.mark_overflows(split);
    epilogue_.merge(split, o_, {true, true}, is_first, is_last);
  }
  // Behind the last P V of a tile.
  __device__ __forceinline__ void store_splits(const WorkTile& work, SplitResults& split) {
    merge_split(split, is_first_split(work, work.k_block_min), true);
    epilogue_.store_merged_rows(work, split, o_, false);
  }

  // The last P V of a tile beside the first S and softmax of the next.
  __device__ __forceinline__ void transition(WorkTile& work, WorkTile& next) {
    const int n = next.k_block_max - 1;
    // Wait for the next Q and K, issue S of the next tile; wait for V, issue O += P V of this one.
    wait_q();
    scores_.load_rows(next);
    scores_.init_s(s_, next, n, false);
    pingpong_wait();
    issue_first_s();
    scores_.release_bias(false);
    issue_pv();
    pingpong_arrive();
    // Row sums and lse of this tile; wait for S, release K; softmax of the next tile. All under P
    // V.
    [[maybe_unused]] RowResults results;
    [[maybe_unused]] SplitResults split;
    if constexpr (kTile.merges_splits)
      split = epilogue_.finish_split(state_of(softmax_));
    else
      results = epilogue_.finish_rows(work, state_of(softmax_), false);
    wgmma_wait_group<1>();
    finish_s(next, n);
    scores_.make_scores(s_, next, n);
    scores_.first_softmax(softmax_, s_, next, n);
    softmax_.pin_exponentials();
    scores_.apply_dropout(s_, n);
    const WorkTile after = next_tile();
    // Wait for P V, release V: behind what next_tile() loaded, which is not V, but check_sass.py
    // cannot know.
    wait_pv();
    release(kBarriers.v_empty, v_, after.loaded_words());
    pack_p();
    scale_d_ = 0;
    // Store O of this tile.
    if constexpr (kTile.merges_splits)
      store_splits(work, split);
    else
      epilogue_.store(work, results, o_, false);
    zero_v_tail(next, n);
    work = next;
    next = after;
  }

  // A tile with rows that the first pass could not represent, without overlap.
  __device__ __forceinline__ void recompute_tile(const WorkTile& work) {
    prologue(work);
    float factor[2];
    for (int n = work.k_block_max - 2; n >= work.k_block_min; --n) {
      // O += P V, then S, each waited for.
      issue_pv();
      finish_pv();
      scores_.init_s(s_, work, n, true);
      issue_s();
      wgmma_wait_group<0>();
      finish_s(work, n);
      scores_.make_exact_scores(s_, work, n);
      precise_.update(s_, scores_.exact_to_log2(), factor);
      rescale(o_, factor);
      scores_.apply_dropout(s_, n);
      pack_p();
    }
    issue_pv();
    const RowResults results = epilogue_.finish_rows(work, state_of(precise_), true);
    finish_pv();
    epilogue_.store(work, results, o_, true);
  }

  // The same for a tile that merges its splits: each is computed as before and, for the rows that
  // overflow in it, once more.
  __device__ __forceinline__ void recompute_splits(const WorkTile& work) {
    wait_q();
    SplitResults split;
    for (int end = work.k_block_max; end > work.k_block_min;) {
      const int begin = max(first_block_of_split(kTile, end - 1), work.k_block_min);
      recompute_blocks(work, end, begin, [&](int n, float(&factor)[2]) {
        if (n != end - 1) return scores_.online_softmax(softmax_, s_, work, n, factor);
        scores_.make_scores(s_, work, n);
        scores_.first_softmax(softmax_, s_, work, n);
        return false;
      });
      split = epilogue_.finish_split(state_of(softmax_));
      epilogue_.normalise(split, o_);
      const bool is_again[2] = {split.overflows[0], split.overflows[1]};
      epilogue_.merge(split, o_, {!is_again[0], !is_again[1]}, end == work.k_block_max, false);
      precise_.init();
      recompute_blocks(work, end, begin, [&](int n, float(&factor)[2]) {
        scores_.make_exact_scores(s_, work, n);
        precise_.update(s_, scores_.exact_to_log2(), factor);
        return n != end - 1;
      });
      split = epilogue_.finish_split(state_of(precise_));
      epilogue_.normalise(split, o_);
      epilogue_.merge(split, o_, is_again, false, begin == work.k_block_min);
      end = begin;
    }
    release_q();
    epilogue_.store_merged_rows(work, split, o_, true);
  }
  // O of k-blocks [begin, end). make_p(n, factor): S becomes P; whether O must be multiplied.
  template <class MakeP>
  __device__ __forceinline__ void recompute_blocks(const WorkTile& work, int end, int begin,
                                                   MakeP make_p) {
    for (int n = end - 1; n >= begin; --n) {
      issue_s();
      wgmma_wait_group<0>();
      warpgroup_fence_operand(s_);
      release(kBarriers.k_empty, k_);
      float factor[2];
      if (make_p(n, factor)) rescale(o_, factor);
      pack_p();
      scale_d_ = n == end - 1 ? 0 : 1;
      if (n == work.k_block_max - 1) zero_v_tail(work, n);
      issue_pv();
      finish_pv();
    }
  }

  // ---- its parts

  __device__ __forceinline__ WorkTile next_tile() {
    WorkTile work{};
    work.slot = tile_info_.stage;
    mbarrier_wait(ctx_.barrier(kBarriers.tile_info_full + work.slot), tile_info_.parity);
    tile_info_.next();
    const auto uniform = [&](std::size_t offset) {
      return __shfl_sync(0xffffffffu, ctx_.info(work, offset), 0);
    };
    // unmasked_end is loaded first: loads return in order, so a wait for `tile` covers it too.
    work.unmasked_end = uniform(offsetof(TileInfo, unmasked_end));
    work.tile = uniform(offsetof(TileInfo, tile));
    if (work.tile < 0) return work;
    work.k_block_max = uniform(offsetof(TileInfo, k_block_max));
    work.k_block_min = uniform(offsetof(TileInfo, k_block_min));
    work.unmasked_begin = uniform(offsetof(TileInfo, unmasked_begin));
    return work;
  }

  // The products of an iteration are issued by one warpgroup at a time, so that its softmax runs
  // beside the products of another. A named barrier has the 128 threads that wait and the 128 that
  // arrive. Only an S that is issued beside a P V takes part; all warpgroups have equally many.
  __device__ __forceinline__ void pingpong_wait() {
    if constexpr (kTile.pingpong) bar_sync(kPingpongBarrier + ctx_.group, 256);
  }
  __device__ __forceinline__ void pingpong_arrive() {
    if constexpr (kTile.pingpong)
      bar_arrive(kPingpongBarrier + (ctx_.group + 1 == kTile.warpgroups ? 0 : ctx_.group + 1), 256);
  }

  __device__ __forceinline__ void wait_q() {
    q_barrier_ = q_stage_.stage * kTile.warpgroups + ctx_.group;
    q_address_ = ctx_.smem + kSmem.offset_q + q_barrier_ * kSmem.q_group;
    mbarrier_wait(ctx_.barrier(kBarriers.q_full + q_barrier_), q_stage_.parity);
    q_stage_.next();
    const int row = ctx_.warp * 16 + (ctx_.lane & 15);
#pragma unroll
    for (int i = 0; i < kQFragments; ++i) {
      const int chunk = 2 * (i % 4) + (ctx_.lane >> 4);
      ldmatrix_x4(q_[i], q_address_ + (i / 4) * kGroupRows * 128 +
                             swizzle128(static_cast<u32>(row * 128 + chunk * 16)));
    }
  }
  __device__ __forceinline__ void release_q() {
    __syncwarp();
    if (ctx_.lane == 0) mbarrier_arrive(ctx_.barrier(kBarriers.q_empty + q_barrier_));
  }

  // Wait for K, issue S = Q K^T.
  __device__ __forceinline__ void issue_s() {
    mbarrier_wait(ctx_.barrier(kBarriers.k_full + k_.stage), k_.parity);
    wgmma_fence();
    const u64 k = wgmma_descriptor(ctx_.smem + kSmem.offset_k + k_.stage * kSmem.k_stage, 16);
    [[maybe_unused]] const u64 q = wgmma_descriptor(q_address_, 16);
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      const u64 k_i = wgmma_descriptor_advance(k, (i % 4) * 32 + (i / 4) * kKeys * 128);
      if (i < kQFragments) {
        QK::template rs<Major::k>(s_, q_[i], k_i, TileScores::kHasBias || i != 0);
      } else {
        QK::template ss<Major::k>(
            s_, wgmma_descriptor_advance(q, (i % 4) * 32 + (i / 4) * kGroupRows * 128), k_i,
            TileScores::kHasBias || i != 0);
      }
    }
    wgmma_commit_group();
  }
  // The first S of a tile. Its wgmmas have consumed the fragments of Q when they are issued, so Q
  // is released behind them, not behind the ldmatrix.
  __device__ __forceinline__ void issue_first_s() {
    issue_s();
    if constexpr (kTile.q_in_registers) release_q();
  }
  // S is complete: release K, and behind the last S of the tile a Q in shared memory.
  __device__ __forceinline__ void finish_s(const WorkTile& work, int n) {
    warpgroup_fence_operand(s_);
    release(kBarriers.k_empty, k_);
    if constexpr (!kTile.q_in_registers)
      if (n == work.k_block_min) release_q();
  }

  // Wait for V, issue O += P V.
  __device__ __forceinline__ void issue_pv() {
    mbarrier_wait(ctx_.barrier(kBarriers.v_full + v_.stage), v_.parity);
    // Without this fence ptxas adds its own (C7519).
    wgmma_fence();
    const u64 v =
        wgmma_descriptor(ctx_.smem + kSmem.offset_v + v_.stage * kSmem.v_stage, kKeys * 128);
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i)
      PV::template rs<Major::mn>(o_, p_frag_[i], wgmma_descriptor_advance(v, i * 2048),
                                 i == 0 ? scale_d_ : 1);
    wgmma_commit_group();
    scale_d_ = 1;
  }
  __device__ __forceinline__ void wait_pv() {
    wgmma_wait_group<0>();
    warpgroup_fence_operand(o_);
    warpgroup_fence_operand(p_frag_);
  }
  __device__ __forceinline__ void finish_pv() {
    wait_pv();
    release(kBarriers.v_empty, v_);
  }

  // Release a stage that was read by wgmmas that have completed. `loaded`: values of other loads
  // from shared memory that are in flight.
  template <int kStages>
  __device__ __forceinline__ void release(int empty_0, Ring<kStages>& ring) {
    if ((threadIdx.x & 127) == 0) mbarrier_arrive(ctx_.barrier(empty_0 + ring.stage));
    ring.next();
  }
  template <int kStages>
  __device__ __forceinline__ void release(int empty_0, Ring<kStages>& ring, u32 loaded) {
    const u32 empty = released_behind(loaded, ctx_.barrier(empty_0 + ring.stage));
    if ((threadIdx.x & 127) == 0) mbarrier_arrive(empty);
    ring.next();
  }

  __device__ __forceinline__ void pack_p() {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i)
      p_frag_[i / 4][i % 4] = Element::pack(s_[2 * i], s_[2 * i + 1]);
    scores_.drop_packed(p_frag_);
  }

  // Rows of V beyond the end of a sequence may belong to another, or be unused slots of a page:
  // zeros, because 0 * NaN is NaN.
  __device__ __forceinline__ void zero_v_tail(const WorkTile& work, int n) {
    if (ctx_.p.has_device_lengths == 0) [[likely]]
      return;
    const int rows = ctx_.info(work, offsetof(TileInfo, seqlen_k)) - n * kKeys;
    if (rows >= kKeys) [[likely]]
      return;
    mbarrier_wait(ctx_.barrier(kBarriers.v_full + v_.stage), v_.parity);
    zero_rows<num_swizzle_atoms(kDimV), kKeys>(
        ctx_.smem + kSmem.offset_v + v_.stage * kSmem.v_stage, rows);
    fence_proxy_async();
    bar_sync(1 + ctx_.group, 128);
  }

  __device__ __forceinline__ SoftmaxState state_of(const RowSoftmax& x) const {
    return {{x.row_max_ref[0], x.row_max_ref[1]}, {x.sum[0], x.sum[1]}, {-INFINITY, -INFINITY}};
  }
  __device__ __forceinline__ SoftmaxState state_of(const Precise& x) const {
    const float c = scores_.exact_to_log2(), natural = scores_.exact_to_natural();
    return {{x.row_max_ref(0, c), x.row_max_ref(1, c)},
            {x.sum[0], x.sum[1]},
            {x.max[0] * natural, x.max[1] * natural}};
  }

  const TileContext<kTile> ctx_;
  TileScores scores_;
  Epilogue<kTile, Element, kScoreMod> epilogue_;
  Ring<kTileInfoStages> tile_info_;
  Ring<kTile.k_stages> k_;
  Ring<kTile.v_stages> v_;
  Ring<kTile.q_buffers> q_stage_;  // of the next Q
  int q_barrier_ = 0;              // of the current Q
  u32 q_address_ = 0;
  int scale_d_ = 0;     // of the next P V: 0 overwrites O
  float s_[kKeys / 2];  // S, then P
  float o_[kDimV / 2];
  u32 p_frag_[kKeys / 16][4];
  u32 q_[kQFragments > 0 ? kQFragments : 1][4];
  RowSoftmax softmax_;
  Precise precise_;
};

// ---- the kernel

template <Tile kTile>
__device__ __forceinline__ void init_barriers(u32 smem, bool has_pages) {
  constexpr BarrierPlan b = barrier_plan(kTile);
  const auto init = [&](int first, int count, u32 arrivals) {
    for (int i = first; i < first + count; ++i)
      mbarrier_init(smem + smem_plan(kTile).offset_barriers + 8 * i, arrivals);
  };
  constexpr int kQ = kTile.q_buffers * kTile.warpgroups;
  init(b.q_full, kQ, 1);
  init(b.q_empty, kQ, 4);
  init(b.k_full, kTile.k_stages, 1);
  init(b.k_empty, kTile.k_stages, kTile.warpgroups);
  init(b.v_full, kTile.v_stages, 1);
  init(b.v_empty, kTile.v_stages, kTile.warpgroups);
  init(b.tile_info_read, 1, 1);
  init(b.tile_info_full, kTileInfoStages, 1);
  init(b.tile_done, kTileInfoStages,
       2 + 4 * kTile.warpgroups + (kTile.has_tma_bias ? 1 : 0) +
           (kTile.has_mask_warpgroup ? 4 : 0) +
           (has_pages && has_two_producers_of_k(kTile) ? 1 : 0));
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

// The compiled variant, as a type: nvcc 13.0 cannot name a kernel whose template parameter is a
// value of a class.
template <Tile kTileOfVariant, class ElementOfVariant, ScoreMod kScoreModOfVariant>
struct Variant {
  static constexpr Tile kTile = kTileOfVariant;
  using Element = ElementOfVariant;
  static constexpr ScoreMod kScoreMod = kScoreModOfVariant;
};

template <class Variant>
__global__ void __launch_bounds__(threads_of(Variant::kTile), Variant::kTile.ctas)
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
    init_barriers<kTile>(smem, params.pages.block_table != nullptr);
  }
  __syncthreads();
  griddep_launch_dependents();
  if constexpr (kTile.has_mask_warpgroup) {
    if (group > kTile.warpgroups) {
      setmaxnreg_dec<mask_registers(kTile)>();
      DropoutMaskProducer<kTile>(params, smem).run();
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
    Scheduler<kTile, reads_pages(kTile, Variant::kScoreMod)>(params, smem,
                                                             static_cast<int>(threadIdx.x) & 31)
        .run();
    return;
  }
  if constexpr (reads_pages(kTile, Variant::kScoreMod)) {
    if (params.pages.block_table != nullptr && !(kTile.has_tma_bias && warp == 3)) {
      constexpr bool kHasTwo = has_two_producers_of_k(kTile);
      if (warp == 0)
        QkProducer<kTile, true, kHasTwo ? Columns::first : Columns::all>(params, maps, smem).run();
      if (warp == 2) VProducer<kTile, true>{params, maps, smem}.run();
      if constexpr (kHasTwo)
        if (warp == 3) QkProducer<kTile, true, Columns::second>(params, maps, smem).run();
      return;
    }
  }
  if (elect_sync()) {
    if (warp == 0) QkProducer<kTile, false>(params, maps, smem).run();
    if (warp == 2) VProducer<kTile, false>{params, maps, smem}.run();
    if constexpr (kTile.has_tma_bias)
      if (warp == 3) BiasProducer<kTile>{params, maps, smem}.run();
  }
#endif
}

template <class Variant>
constexpr KernelImage<Params, Maps> image_of(const char* name) {
  constexpr Tile kTile = Variant::kTile;
  static_assert(smem_bytes(kTile) <= kSmemLimitSm90 && shares_registers(kTile));
  return {name, forward<Variant>, threads_of(kTile), smem_bytes(kTile)};
}

// Both dtypes of a tile.
template <Tile kTile, ScoreMod kScoreMod>
constexpr Kernels kernels_of(const char* name_bf16, const char* name_f16) {
  return {image_of<Variant<kTile, Bf16Element, kScoreMod>>(name_bf16),
          image_of<Variant<kTile, F16Element, kScoreMod>>(name_f16)};
}

}  // namespace headrace::cuda::sm90::fwd
