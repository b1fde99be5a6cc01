// The consumers: S = Q K^T, softmax, O += P V for 64 rows a warpgroup.
#pragma once

#include "backends/cuda/device/wgmma.cuh"
#include "backends/cuda/sm90/fwd/tile_scores.cuh"

namespace headrace::cuda::sm90 {

template <Tile kTile, class Element, Scores kScores>
class Consumer : TileScores<kTile, Element, kScores> {
 public:
  __device__ __forceinline__ Consumer(const Params& p, const Maps& maps, u32 smem, int group)
      : Base(p, maps, smem, group) {}

  __device__ __forceinline__ void run() {
    if constexpr (kTile.takes_turns)
      if (group_ == kTile.warpgroups - 1) pass_turn();
    for (Work work = next_work(); work.code != kEnd;) {
      if (work.code == kDrain) {
        report(work);
        work = next_work();
      } else if (!work.has_keys()) {
        write_empty(work);
        report(work);
        work = next_work();
      } else if (!kIsGeneral && work.is_redo()) {
        compute_again(work);
        work = next_work();
      } else {
        compute(work);
      }
    }
    if (lane_ == 0) cp_async_bulk_wait_group_read<0>();
  }

 private:
  using Base = TileScores<kTile, Element, kScores>;
  using Base::barrier;
  using Base::begin_with_bias;
  using Base::cap_;
  using Base::drop;
  using Base::end_rows;
  using Base::exact_to_log2;
  using Base::fetch_bias;
  using Base::find_score_rows;
  using Base::group_;
  using Base::kBarriers;
  using Base::kHasExactScores;
  using Base::kIsBiased;
  using Base::kIsCapped;
  using Base::kIsDropped;
  using Base::kIsGeneral;
  using Base::kIsSloped;
  using Base::kKeys;
  using Base::kSmem;
  using Base::lane_;
  using Base::make_exact_scores;
  using Base::make_scores;
  using Base::masks_;
  using Base::p_;
  using Base::release_bias;
  using Base::report;
  using Base::s_;
  using Base::sees_;
  using Base::sloped_;
  using Base::smem_;
  using Base::store;
  using Base::to_log2_;
  using Base::warp_;
  using Base::with_slopes;
  using Base::word;
  using Base::write_empty;
  using typename Base::Ends;

  static constexpr int kDim = kTile.head_dim, kDimV = kTile.head_dim_v;
  static constexpr int kQSteps = kTile.q_in_registers ? kDim / 16 : kTile.q_steps_in_registers;
  // Where products take long enough, the maxima of conditional steps are free, and hostile scores
  // cost nothing: head_dim 256 loses 0.3 % with usual ones. 128 would lose 6 %, V of 128 columns
  // with head_dim 192 lost 5 %.
  static constexpr bool kIsLazy =
      Element::kHasFloatRange && (kScores != Scores::plain || kDimV <= 128);
  static constexpr int kTurnBarrier = 1 + 3;  // named barriers: clear_tail_of_v has 1 to 3
  static_assert(!(kIsGeneral && kTile.is_flat), "a tile that is computed again has no next one");
  using RowSoftmax = Softmax<kKeys, Element::kLift, Element::kGrowth>;
  using Precise = PreciseSoftmax<kKeys, Element::kPreciseLift>;
  using QK = WgmmaM64K16<typename Element::Operand, kKeys>;
  using PV = WgmmaM64K16<typename Element::Operand, kDimV>;

  // ---- the schedule
  __device__ __forceinline__ Work next_work() {
    Work work{};
    work.slot = entry_.stage;
    mbarrier_wait(barrier(kBarriers.entry_full + work.slot), entry_.parity);
    entry_.next();
    const auto uniform = [&](int i) { return __shfl_sync(0xffffffffu, word(work, i), 0); };
    // full_end is loaded first: loads return in order, so a wait for the code covers it too.
    work.full_end = uniform(kWordFullEnd);
    work.code = uniform(kWordCode);
    if (work.code < 0) return work;
    work.first = uniform(kWordFirst);
    work.last = uniform(kWordLast);
    work.full_begin = uniform(kWordFullBegin);
    return work;
  }

  // ---- the steps of a tile
  __device__ __forceinline__ void take_q() {
    q_barrier_ = q_stage_.stage * kTile.warpgroups + group_;
    q_address_ = smem_ + kSmem.offset_q + q_barrier_ * kSmem.q_group;
    mbarrier_wait(barrier(kBarriers.q_full + q_barrier_), q_stage_.parity);
    q_stage_.next();
    const int row = warp_ * 16 + (lane_ & 15);
#pragma unroll
    for (int i = 0; i < kQSteps; ++i) {
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
  __device__ __forceinline__ void take_turn() {
    if constexpr (kTile.takes_turns) bar_sync(kTurnBarrier + group_, 256);
  }
  __device__ __forceinline__ void pass_turn() {
    if constexpr (kTile.takes_turns)
      bar_arrive(kTurnBarrier + (group_ + 1 == kTile.warpgroups ? 0 : group_ + 1), 256);
  }
  __device__ __forceinline__ void start_s() {
    mbarrier_wait(barrier(kBarriers.k_full + k_.stage), k_.parity);
    wgmma_fence();
    const u64 k = wgmma_descriptor(smem_ + kSmem.offset_k + k_.stage * kSmem.k_stage, 16);
    [[maybe_unused]] const u64 q = wgmma_descriptor(q_address_, 16);
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      const u64 k_i = wgmma_descriptor_advance(k, (i % 4) * 32 + (i / 4) * kKeys * 128);
      if (i < kQSteps) {
        QK::template rs<Major::k>(s_, q_[i], k_i, kIsBiased || i != 0);
      } else {
        QK::template ss<Major::k>(
            s_, wgmma_descriptor_advance(q, (i % 4) * 32 + (i / 4) * kGroupRows * 128), k_i,
            kIsBiased || i != 0);
      }
    }
    wgmma_commit_group();
  }
  // The first S of a tile. Its products have consumed the fragments of Q when they are issued.
  __device__ __forceinline__ void start_first_s() {
    start_s();
    if constexpr (kTile.q_in_registers) release_q();
  }
  __device__ __forceinline__ void end_s(const Work& work, int n) {
    warpgroup_fence_operand(s_);
    release(kBarriers.k_empty, k_);
    if constexpr (!kTile.q_in_registers)
      if (n == work.last) release_q();
  }
  __device__ __forceinline__ void start_pv() {
    mbarrier_wait(barrier(kBarriers.v_full + v_.stage), v_.parity);
    wgmma_fence();
    const u64 v = wgmma_descriptor(smem_ + kSmem.offset_v + v_.stage * kSmem.v_stage, kKeys * 128);
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i)
      PV::template rs<Major::mn>(o_, weights_[i], wgmma_descriptor_advance(v, i * 2048),
                                 i == 0 ? adds_ : 1);
    wgmma_commit_group();
    adds_ = 1;
  }
  __device__ __forceinline__ void settle_pv() {
    wgmma_wait_group<0>();
    warpgroup_fence_operand(o_);
    warpgroup_fence_operand(weights_);
  }
  __device__ __forceinline__ void end_pv() {
    settle_pv();
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
      weights_[i / 4][i % 4] = Element::pack(s_[2 * i], s_[2 * i + 1]);
    if constexpr (kIsDropped) {
#pragma unroll
      for (int i = 0; i < kKeys / 4; i += i % 16 == 7 ? 9 : 1) {
        u32 first, second;
        expand_bits(masks_[i / 16], i % 8, first, second);
        weights_[i / 4][i % 4] &= ~first;
        weights_[i / 4 + 2][i % 4] &= ~second;
      }
    }
  }
  template <int kCount>
  static __device__ __forceinline__ void rescale(float (&x)[kCount], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] *= factor[i / 2 % 2];
  }

  // V beyond the end of a ragged sequence belongs to another: zeros keep its NaNs out.
  __device__ __forceinline__ void clear_tail_of_v(const Work& work, int n) {
    if (!p_.problem.is_ragged) [[likely]]
      return;
    const int rows = word(work, kWordKeys) - n * kKeys;
    if (rows >= kKeys) [[likely]]
      return;
    mbarrier_wait(barrier(kBarriers.v_full + v_.stage), v_.parity);
    const u32 v = smem_ + kSmem.offset_v + v_.stage * kSmem.v_stage;
    const int thread = static_cast<int>(threadIdx.x) & 127;
#pragma unroll 1
    for (int i = rows * 8 + thread; i < kKeys * 8; i += 128)
#pragma unroll
      for (int slab = 0; slab < num_swizzle_atoms(kDimV); ++slab)
        asm volatile(
            "st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(v + slab * kKeys * 128 + i * 16),
            "r"(0)
            : "memory");
    fence_proxy_async();
    bar_sync(1 + group_, 128);
  }

  // ---- tiles
  // `factor` is what O must be multiplied by, where the result is true. General kernels compute a
  // tile again by the same code, of which there is much.
  __device__ __forceinline__ bool softmax_step(const Work& work, int n, bool is_masked,
                                               float (&factor)[2]) {
    if (kIsGeneral && work.is_redo()) {
      precise_.step(s_, to_log2_, factor);
      return true;
    }
    if constexpr (kIsSloped) {
      return sloped_step(n, is_masked, factor);
    } else if constexpr (kIsCapped) {
      const bool is_any = scale_for_cap(cap_, s_);
      if (is_masked || __any_sync(0xffffffffu, is_any)) [[unlikely]]
        return step_of(Capped<true>{cap_, sees_}, is_masked, factor);
      return step_of(Capped<false>{cap_, sees_}, false, factor);
    } else {
      if constexpr (!kIsLazy) return softmax_.conditional_step(s_, Scaled{to_log2_}, factor);
      if (is_masked) [[unlikely]]
        softmax_.adopt(s_, Scaled{to_log2_});
      if (!softmax_.lazy_step(s_, Scaled{to_log2_}, factor)) [[likely]]
        return false;
      rescale(s_, factor);
      return true;
    }
  }
  template <class Score>
  __device__ __forceinline__ bool step_of(Score score, bool is_masked, float (&factor)[2]) {
    if constexpr (!kIsLazy) return softmax_.conditional_step(s_, score, factor);
    if (is_masked) [[unlikely]]
      softmax_.adopt(s_, score);
    if (!softmax_.lazy_step(s_, score, factor)) [[likely]]
      return false;
    rescale(s_, factor);
    return true;
  }
  __device__ __forceinline__ bool sloped_step(int n, bool is_masked, float (&factor)[2]) {
    if constexpr (!kIsLazy) {
      add_slopes(n);
      return softmax_.conditional_step(s_, Scaled{1.0f}, factor);
    }
    if (is_masked) [[unlikely]]
      softmax_.adopt(s_, SlopedTop{to_log2_, sloped_});
    const bool moves =
        with_slopes(n, [&](const auto& slopes) { return softmax_.lazy_step(s_, slopes, factor); });
    if (!moves) [[likely]]
      return false;
    rescale(s_, factor);
    return true;
  }
  __device__ __forceinline__ void add_slopes(int n) {
    with_slopes(n, [&](const auto& slopes) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) s_[i] = slopes.value(s_[i], i);
    });
  }
  __device__ __forceinline__ void softmax_first(int n) {
    if constexpr (kIsSloped) {
      if constexpr (kIsLazy) {
        with_slopes(n, [&](const auto& slopes) {
          softmax_.first(s_, SlopedTop{to_log2_, sloped_}, slopes);
        });
      } else {
        add_slopes(n);
        softmax_.first(s_, Scaled{1.0f}, Scaled{1.0f});
      }
    } else if constexpr (kIsCapped) {
      scale_for_cap(cap_, s_);
      const Capped<true> score{cap_, sees_};
      softmax_.first(s_, score, score);
    } else {
      const Scaled score{to_log2_};
      softmax_.first(s_, score, score);
    }
  }
  __device__ __forceinline__ void first_weights(const Work& work, int n) {
    if (work.is_redo()) [[unlikely]] {
      if constexpr (kHasExactScores) make_exact_scores(work, n);
      float factor[2];  // there is no O yet
      precise_.start();
      precise_.step(s_, exact_to_log2(), factor);
    } else {
      if constexpr (kHasExactScores) make_scores(work, n);
      softmax_first(n);
    }
  }

  // The first step of a tile where nothing runs beside it.
  __device__ __forceinline__ void begin(const Work& work) {
    find_score_rows(work);
    take_q();
    begin_with_bias(work, work.first - 1, work.is_redo());
    start_first_s();
    release_bias(work.is_redo());
    fetch_bias(work, work.first - 1);
    wgmma_wait_group<0>();
    end_s(work, work.first - 1);
    if constexpr (!kHasExactScores) make_scores(work, work.first - 1);
    first_weights(work, work.first - 1);
    drop(work.first - 1);
    pack();
    adds_ = 0;
    clear_tail_of_v(work, work.first - 1);
  }

  // S of step n is multiplied while P V of step n + 1 is: the softmax runs under the product.
  __device__ __forceinline__ void step(const Work& work, int n) {
    float factor[2];
    begin_with_bias(work, n, false);
    take_turn();
    start_s();
    start_pv();
    pass_turn();
    release_bias(false);
    fetch_bias(work, n);
    wgmma_wait_group<1>();
    end_s(work, n);
    const bool is_masked = make_scores(work, n);
    const bool moves = softmax_step(work, n, is_masked, factor);
    if constexpr (!kIsLazy) softmax_.need_weights();  // a lazy step asks for them
    drop(n);
    end_pv();
    if (moves) [[unlikely]]
      rescale(o_, factor);
    pack();
  }

  // This tile and all that follow without a stop; `work` is then the first that does not.
  __device__ __forceinline__ void compute(Work& work) {
    begin(work);
    Work next;
    if constexpr (kTile.is_flat) next = next_work();
    for (;;) {
      for (int n = work.first - 2; n >= work.last; --n) step(work, n);
      if constexpr (!kTile.is_flat) break;
      if (!next.is_plain()) break;
      take_q();
      find_score_rows(next);
      begin_with_bias(next, next.first - 1, false);
      take_turn();
      start_first_s();
      release_bias(false);
      start_pv();
      pass_turn();
      const Ends ends = end_rows(work, sums_of(softmax_), false);
      wgmma_wait_group<1>();
      end_s(next, next.first - 1);
      make_scores(next, next.first - 1);
      softmax_first(next.first - 1);
      softmax_.need_weights();
      drop(next.first - 1);
      const Work after = next_work();
      settle_pv();
      // next_work() did not load from V, but the check cannot tell.
      release(kBarriers.v_empty, v_, after.words());
      pack();
      adds_ = 0;
      store(work, ends, o_, false);
      clear_tail_of_v(next, next.first - 1);
      work = next;
      next = after;
    }
    start_pv();
    const bool is_redo = kIsGeneral && work.is_redo();
    const Ends ends = end_rows(work, is_redo ? sums_of(precise_) : sums_of(softmax_), is_redo);
    end_pv();
    store(work, ends, o_, is_redo);
    work = kTile.is_flat ? next : next_work();
  }

  // A tile with bad rows, step by step.
  __device__ __forceinline__ void compute_again(const Work& work) {
    begin(work);
    float factor[2];
    for (int n = work.first - 2; n >= work.last; --n) {
      start_pv();
      end_pv();
      begin_with_bias(work, n, true);
      start_s();
      wgmma_wait_group<0>();
      end_s(work, n);
      make_exact_scores(work, n);
      precise_.step(s_, exact_to_log2(), factor);
      rescale(o_, factor);
      drop(n);
      pack();
    }
    start_pv();
    const Ends ends = end_rows(work, sums_of(precise_), true);
    end_pv();
    store(work, ends, o_, true);
  }

  // ---- results
  __device__ __forceinline__ typename Base::RowSums sums_of(const RowSoftmax& x) const {
    return {{x.reference[0], x.reference[1]}, {x.sum[0], x.sum[1]}, {-INFINITY, -INFINITY}};
  }
  __device__ __forceinline__ typename Base::RowSums sums_of(const Precise& x) const {
    const float c = exact_to_log2();
    const float to_score = kIsCapped                       ? kLn2
                           : kHasExactScores || kIsGeneral ? 1.0f
                                                           : p_.score_params.scale;
    return {{x.reference(0, c), x.reference(1, c)},
            {x.sum[0], x.sum[1]},
            {x.maximum[0] * to_score, x.maximum[1] * to_score}};
  }

  Ring<kEntries> entry_;
  Ring<kKStages> k_;
  Ring<kTile.v_stages> v_;
  Ring<kTile.q_buffers> q_stage_;  // of the next Q
  int q_barrier_ = 0;              // of the Q in use
  u32 q_address_ = 0;
  int adds_ = 0;  // 0: the next product starts a new O
  float o_[kDimV / 2];
  u32 weights_[kKeys / 16][4];
  u32 q_[kQSteps > 0 ? kQSteps : 1][4];
  RowSoftmax softmax_;
  Precise precise_;
};

}  // namespace headrace::cuda::sm90
