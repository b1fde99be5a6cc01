// The consumers: S = Q K^T, softmax, O += P V for 64 rows a warpgroup.
#pragma once

#include "backends/cuda/device/wgmma.cuh"
#include "backends/cuda/sm90/fwd/tile_scores.cuh"

namespace headrace::cuda::sm90 {

template <Tile kTile, class Element, ScoreMod kScoreMod>
class Consumer : TileScores<kTile, Element, kScoreMod> {
 public:
  __device__ __forceinline__ Consumer(const Params& p, const Maps& maps, u32 smem, int group)
      : Base(p, maps, smem, group) {}

  __device__ __forceinline__ void run() {
    if constexpr (kTile.pingpong)
      if (group_ == kTile.warpgroups - 1) pingpong_arrive();
    for (WorkTile work = next_tile(); work.code != kEnd;) {
      if (work.code == kFlush) {
        arrive_tile_done(work);
        work = next_tile();
      } else if (!work.has_keys()) {
        write_empty(work);
        arrive_tile_done(work);
        work = next_tile();
      } else if (!kIsGeneral && work.is_recompute()) {
        recompute_tile(work);
        work = next_tile();
      } else {
        compute_tiles(work);
      }
    }
    if (lane_ == 0) cp_async_bulk_wait_group_read<0>();
  }

 private:
  using Base = TileScores<kTile, Element, kScoreMod>;
  using Base::alibi_;
  using Base::apply_dropout_masks;
  using Base::arrive_tile_done;
  using Base::barrier;
  using Base::dropout_masks_;
  using Base::exact_to_log2;
  using Base::finish_rows;
  using Base::group_;
  using Base::init_with_bias;
  using Base::kBarriers;
  using Base::kHasAlibi;
  using Base::kHasBias;
  using Base::kHasDropout;
  using Base::kHasExactScores;
  using Base::kHasSoftcap;
  using Base::kIsGeneral;
  using Base::kKeys;
  using Base::kSmem;
  using Base::lane_;
  using Base::load_score_rows;
  using Base::make_exact_scores;
  using Base::make_scores;
  using Base::p_;
  using Base::prefetch_bias;
  using Base::release_bias;
  using Base::s_;
  using Base::scale_log2_;
  using Base::smem_;
  using Base::softcap_;
  using Base::store;
  using Base::visible_;
  using Base::warp_;
  using Base::with_alibi;
  using Base::word;
  using Base::write_empty;
  using typename Base::RowResults;

  static constexpr int kDim = kTile.head_dim, kDimV = kTile.head_dim_v;
  static constexpr int kQFragments = kTile.q_in_registers ? kDim / 16 : kTile.q_fragments;
  // Where products take long enough, the maxima of conditional steps are free, and hostile scores
  // cost nothing: head_dim 256 loses 0.3 % with usual ones. 128 would lose 6 %, V of 128 columns
  // with head_dim 192 lost 5 %.
  static constexpr bool kIsLazy =
      Element::kHasFloatRange && (kScoreMod != ScoreMod::plain || kDimV <= 128);
  static constexpr int kPingpongBarrier = 1 + 3;  // named barriers: clear_tail_of_v has 1 to 3
  static_assert(!(kIsGeneral && kTile.overlaps_tiles),
                "a tile that is computed again has no next one");
  using RowSoftmax = Softmax<kKeys, Element::kLog2Scale, Element::kRescaleThreshold>;
  using Precise = PreciseSoftmax<kKeys, Element::kPreciseLog2Scale>;
  using QK = WgmmaM64K16<typename Element::Operand, kKeys>;
  using PV = WgmmaM64K16<typename Element::Operand, kDimV>;

  // ---- the schedule
  __device__ __forceinline__ WorkTile next_tile() {
    WorkTile work{};
    work.slot = tile_info_.stage;
    mbarrier_wait(barrier(kBarriers.tile_info_full + work.slot), tile_info_.parity);
    tile_info_.next();
    const auto uniform = [&](int i) { return __shfl_sync(0xffffffffu, word(work, i), 0); };
    // full_end is loaded first: loads return in order, so a wait for the code covers it too.
    work.unmasked_end = uniform(kWordUnmaskedEnd);
    work.code = uniform(kWordTile);
    if (work.code < 0) return work;
    work.block_max = uniform(kWordBlockMax);
    work.block_min = uniform(kWordBlockMin);
    work.unmasked_begin = uniform(kWordUnmaskedBegin);
    return work;
  }

  // ---- the steps of a tile
  __device__ __forceinline__ void wait_q() {
    q_barrier_ = q_stage_.stage * kTile.warpgroups + group_;
    q_address_ = smem_ + kSmem.offset_q + q_barrier_ * kSmem.q_group;
    mbarrier_wait(barrier(kBarriers.q_full + q_barrier_), q_stage_.parity);
    q_stage_.next();
    const int row = warp_ * 16 + (lane_ & 15);
#pragma unroll
    for (int i = 0; i < kQFragments; ++i) {
      const int chunk = 2 * (i % 4) + (lane_ >> 4);
      ldmatrix_x4(q_[i], q_address_ + (i / 4) * kGroupRows * 128 +
                             swizzle128(static_cast<u32>(row * 128 + chunk * 16)));
    }
  }
  __device__ __forceinline__ void release_q() {
    __syncwarp();
    if (lane_ == 0) mbarrier_arrive(barrier(kBarriers.q_empty + q_barrier_));
  }
  // The products of a step are issued in turn, so that one warpgroup's softmax runs beside
  // another's products. Each barrier is of the 128 threads that take a turn and the 128 that pass
  // it on. Only steps beside a P V do so; all warpgroups have as many.
  __device__ __forceinline__ void pingpong_wait() {
    if constexpr (kTile.pingpong) bar_sync(kPingpongBarrier + group_, 256);
  }
  __device__ __forceinline__ void pingpong_arrive() {
    if constexpr (kTile.pingpong)
      bar_arrive(kPingpongBarrier + (group_ + 1 == kTile.warpgroups ? 0 : group_ + 1), 256);
  }
  __device__ __forceinline__ void issue_s() {
    mbarrier_wait(barrier(kBarriers.k_full + k_.stage), k_.parity);
    wgmma_fence();
    const u64 k = wgmma_descriptor(smem_ + kSmem.offset_k + k_.stage * kSmem.k_stage, 16);
    [[maybe_unused]] const u64 q = wgmma_descriptor(q_address_, 16);
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      const u64 k_i = wgmma_descriptor_advance(k, (i % 4) * 32 + (i / 4) * kKeys * 128);
      if (i < kQFragments) {
        QK::template rs<Major::k>(s_, q_[i], k_i, kHasBias || i != 0);
      } else {
        QK::template ss<Major::k>(
            s_, wgmma_descriptor_advance(q, (i % 4) * 32 + (i / 4) * kGroupRows * 128), k_i,
            kHasBias || i != 0);
      }
    }
    wgmma_commit_group();
  }
  // The first S of a tile. Its products have consumed the fragments of Q when they are issued.
  __device__ __forceinline__ void issue_first_s() {
    issue_s();
    if constexpr (kTile.q_in_registers) release_q();
  }
  __device__ __forceinline__ void finish_s(const WorkTile& work, int n) {
    warpgroup_fence_operand(s_);
    release(kBarriers.k_empty, k_);
    if constexpr (!kTile.q_in_registers)
      if (n == work.block_min) release_q();
  }
  __device__ __forceinline__ void issue_pv() {
    mbarrier_wait(barrier(kBarriers.v_full + v_.stage), v_.parity);
    wgmma_fence();
    const u64 v = wgmma_descriptor(smem_ + kSmem.offset_v + v_.stage * kSmem.v_stage, kKeys * 128);
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
  // A stage whose readers were products that have ended. `loaded`: what is in flight besides.
  template <int kStages>
  __device__ __forceinline__ void release(int empty_0, Ring<kStages>& ring) {
    if ((threadIdx.x & 127) == 0) mbarrier_arrive(barrier(empty_0 + ring.stage));
    ring.next();
  }
  template <int kStages>
  __device__ __forceinline__ void release(int empty_0, Ring<kStages>& ring, u32 loaded) {
    const u32 empty = released_behind(loaded, barrier(empty_0 + ring.stage));
    if ((threadIdx.x & 127) == 0) mbarrier_arrive(empty);
    ring.next();
  }
  __device__ __forceinline__ void pack() {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i)
      p_frag_[i / 4][i % 4] = Element::pack(s_[2 * i], s_[2 * i + 1]);
    if constexpr (kHasDropout) {
#pragma unroll
      for (int i = 0; i < kKeys / 4; i += i % 16 == 7 ? 9 : 1) {
        u32 first, second;
        expand_bits(dropout_masks_[i / 16], i % 8, first, second);
        p_frag_[i / 4][i % 4] &= ~first;
        p_frag_[i / 4 + 2][i % 4] &= ~second;
      }
    }
  }
  template <int kCount>
  static __device__ __forceinline__ void rescale(float (&x)[kCount], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] *= factor[i / 2 % 2];
  }

  // V beyond the end of a ragged sequence belongs to another: zeros keep its NaNs out.
  __device__ __forceinline__ void zero_v_tail(const WorkTile& work, int n) {
    if (!p_.problem.is_ragged) [[likely]]
      return;
    const int rows = word(work, kWordSeqlenK) - n * kKeys;
    if (rows >= kKeys) [[likely]]
      return;
    mbarrier_wait(barrier(kBarriers.v_full + v_.stage), v_.parity);
    const u32 v = smem_ + kSmem.offset_v + v_.stage * kSmem.v_stage;
    const int thread = static_cast<int>(threadIdx.x) & 127;
#pragma unroll 1
    for (int i = rows * 8 + thread; i < kKeys * 8; i += 128)
#pragma unroll
      for (int atom = 0; atom < num_swizzle_atoms(kDimV); ++atom)
        asm volatile(
            "st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(v + atom * kKeys * 128 + i * 16),
            "r"(0)
            : "memory");
    fence_proxy_async();
    bar_sync(1 + group_, 128);
  }

  // ---- tiles
  // `factor` is what O must be multiplied by, where the result is true. General kernels compute a
  // tile again by the same code, of which there is much.
  __device__ __forceinline__ bool online_softmax(const WorkTile& work, int n, bool is_masked,
                                                 float (&factor)[2]) {
    if (kIsGeneral && work.is_recompute()) {
      precise_.update(s_, scale_log2_, factor);
      return true;
    }
    if constexpr (kHasAlibi) {
      return alibi_update(n, is_masked, factor);
    } else if constexpr (kHasSoftcap) {
      const bool is_large = scale_for_softcap(softcap_, s_);
      if (is_masked || __any_sync(0xffffffffu, is_large)) [[unlikely]]
        return update_of(SoftcapScores<true>{softcap_, visible_}, is_masked, factor);
      return update_of(SoftcapScores<false>{softcap_, visible_}, false, factor);
    } else {
      if constexpr (!kIsLazy)
        return softmax_.conditional_update(s_, ScaledScores{scale_log2_}, factor);
      if (is_masked) [[unlikely]]
        softmax_.init_max(s_, ScaledScores{scale_log2_});
      if (!softmax_.lazy_update(s_, ScaledScores{scale_log2_}, factor)) [[likely]]
        return false;
      rescale(s_, factor);
      return true;
    }
  }
  template <class Score>
  __device__ __forceinline__ bool update_of(Score score, bool is_masked, float (&factor)[2]) {
    if constexpr (!kIsLazy) return softmax_.conditional_update(s_, score, factor);
    if (is_masked) [[unlikely]]
      softmax_.init_max(s_, score);
    if (!softmax_.lazy_update(s_, score, factor)) [[likely]]
      return false;
    rescale(s_, factor);
    return true;
  }
  __device__ __forceinline__ bool alibi_update(int n, bool is_masked, float (&factor)[2]) {
    if constexpr (!kIsLazy) {
      add_alibi(n);
      return softmax_.conditional_update(s_, ScaledScores{1.0f}, factor);
    }
    if (is_masked) [[unlikely]]
      softmax_.init_max(s_, AlibiMax{scale_log2_, alibi_});
    const bool moves =
        with_alibi(n, [&](const auto& slopes) { return softmax_.lazy_update(s_, slopes, factor); });
    if (!moves) [[likely]]
      return false;
    rescale(s_, factor);
    return true;
  }
  __device__ __forceinline__ void add_alibi(int n) {
    with_alibi(n, [&](const auto& slopes) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) s_[i] = slopes.value(s_[i], i);
    });
  }
  __device__ __forceinline__ void first_softmax(int n) {
    if constexpr (kHasAlibi) {
      if constexpr (kIsLazy) {
        with_alibi(n, [&](const auto& slopes) {
          softmax_.first_block(s_, AlibiMax{scale_log2_, alibi_}, slopes);
        });
      } else {
        add_alibi(n);
        softmax_.first_block(s_, ScaledScores{1.0f}, ScaledScores{1.0f});
      }
    } else if constexpr (kHasSoftcap) {
      scale_for_softcap(softcap_, s_);
      const SoftcapScores<true> score{softcap_, visible_};
      softmax_.first_block(s_, score, score);
    } else {
      const ScaledScores score{scale_log2_};
      softmax_.first_block(s_, score, score);
    }
  }
  __device__ __forceinline__ void first_p(const WorkTile& work, int n) {
    if (work.is_recompute()) [[unlikely]] {
      if constexpr (kHasExactScores) make_exact_scores(work, n);
      float factor[2];  // there is no O yet
      precise_.init();
      precise_.update(s_, exact_to_log2(), factor);
    } else {
      if constexpr (kHasExactScores) make_scores(work, n);
      first_softmax(n);
    }
  }

  // The first step of a tile where nothing runs beside it.
  __device__ __forceinline__ void prologue(const WorkTile& work) {
    load_score_rows(work);
    wait_q();
    init_with_bias(work, work.block_max - 1, work.is_recompute());
    issue_first_s();
    release_bias(work.is_recompute());
    prefetch_bias(work, work.block_max - 1);
    wgmma_wait_group<0>();
    finish_s(work, work.block_max - 1);
    if constexpr (!kHasExactScores) make_scores(work, work.block_max - 1);
    first_p(work, work.block_max - 1);
    apply_dropout_masks(work.block_max - 1);
    pack();
    scale_d_ = 0;
    zero_v_tail(work, work.block_max - 1);
  }

  // S of step n is multiplied while P V of step n + 1 is: the softmax runs under the product.
  __device__ __forceinline__ void compute_block(const WorkTile& work, int n) {
    float factor[2];
    init_with_bias(work, n, false);
    pingpong_wait();
    issue_s();
    issue_pv();
    pingpong_arrive();
    release_bias(false);
    prefetch_bias(work, n);
    wgmma_wait_group<1>();
    finish_s(work, n);
    const bool is_masked = make_scores(work, n);
    const bool moves = online_softmax(work, n, is_masked, factor);
    if constexpr (!kIsLazy) softmax_.pin_exponentials();  // a lazy step asks for them
    apply_dropout_masks(n);
    finish_pv();
    if (moves) [[unlikely]]
      rescale(o_, factor);
    pack();
  }

  // This tile and all that follow without a stop; `work` is then the first that does not.
  __device__ __forceinline__ void compute_tiles(WorkTile& work) {
    prologue(work);
    WorkTile next;
    if constexpr (kTile.overlaps_tiles) next = next_tile();
    for (;;) {
      for (int n = work.block_max - 2; n >= work.block_min; --n) compute_block(work, n);
      if constexpr (!kTile.overlaps_tiles) break;
      if (!next.can_overlap()) break;
      wait_q();
      load_score_rows(next);
      init_with_bias(next, next.block_max - 1, false);
      pingpong_wait();
      issue_first_s();
      release_bias(false);
      issue_pv();
      pingpong_arrive();
      const RowResults results = finish_rows(work, softmax_state(softmax_), false);
      wgmma_wait_group<1>();
      finish_s(next, next.block_max - 1);
      make_scores(next, next.block_max - 1);
      first_softmax(next.block_max - 1);
      softmax_.pin_exponentials();
      apply_dropout_masks(next.block_max - 1);
      const WorkTile after = next_tile();
      wait_pv();
      // next_work() did not load from V, but the check cannot tell.
      release(kBarriers.v_empty, v_, after.loaded_words());
      pack();
      scale_d_ = 0;
      store(work, results, o_, false);
      zero_v_tail(next, next.block_max - 1);
      work = next;
      next = after;
    }
    issue_pv();
    const bool is_recompute = kIsGeneral && work.is_recompute();
    const RowResults results = finish_rows(
        work, is_recompute ? softmax_state(precise_) : softmax_state(softmax_), is_recompute);
    finish_pv();
    store(work, results, o_, is_recompute);
    work = kTile.overlaps_tiles ? next : next_tile();
  }

  // A tile with bad rows, step by step.
  __device__ __forceinline__ void recompute_tile(const WorkTile& work) {
    prologue(work);
    float factor[2];
    for (int n = work.block_max - 2; n >= work.block_min; --n) {
      issue_pv();
      finish_pv();
      init_with_bias(work, n, true);
      issue_s();
      wgmma_wait_group<0>();
      finish_s(work, n);
      make_exact_scores(work, n);
      precise_.update(s_, exact_to_log2(), factor);
      rescale(o_, factor);
      apply_dropout_masks(n);
      pack();
    }
    issue_pv();
    const RowResults results = finish_rows(work, softmax_state(precise_), true);
    finish_pv();
    store(work, results, o_, true);
  }

  // ---- results
  __device__ __forceinline__ typename Base::SoftmaxState softmax_state(const RowSoftmax& x) const {
    return {{x.row_max_ref[0], x.row_max_ref[1]}, {x.sum[0], x.sum[1]}, {-INFINITY, -INFINITY}};
  }
  __device__ __forceinline__ typename Base::SoftmaxState softmax_state(const Precise& x) const {
    const float c = exact_to_log2();
    const float to_score = kHasSoftcap                     ? kLn2
                           : kHasExactScores || kIsGeneral ? 1.0f
                                                           : p_.score_params.scale;
    return {{x.row_max_ref(0, c), x.row_max_ref(1, c)},
            {x.sum[0], x.sum[1]},
            {x.maximum[0] * to_score, x.maximum[1] * to_score}};
  }

  Ring<kTileInfoStages> tile_info_;
  Ring<kKStages> k_;
  Ring<kTile.v_stages> v_;
  Ring<kTile.q_buffers> q_stage_;  // of the next Q
  int q_barrier_ = 0;              // of the Q in use
  u32 q_address_ = 0;
  int scale_d_ = 0;  // 0: the next product starts a new O
  float o_[kDimV / 2];
  u32 p_frag_[kKeys / 16][4];
  u32 q_[kQFragments > 0 ? kQFragments : 1][4];
  RowSoftmax softmax_;
  Precise precise_;
};

}  // namespace headrace::cuda::sm90
