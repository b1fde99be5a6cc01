// Wide tiles: dK and dV of 64 keys fill the registers of a warpgroup each.
//
//   copying   brings K and V, and Q, dO, lse and D of every step
//   value     S^T = K Q^T, P^T; dV += P^T dO
//   key       dP^T = V dO^T, dS^T with P from shared memory; dK += dS^T Q
//   query     dQ = dS K, added to the sums
//
// The products of one run under the exponentials or dS of the other. dV and dK come before the next
// S and dP, so that a stage of dO and of Q is free early: there are two of each. P^T and dS^T have
// the same places in the registers of value and key, so P is handed over in their order.
#pragma once

#include "backends/cuda/sm90/bwd/key_rows.cuh"

namespace headrace::cuda::sm90::bwd {

enum WideRole : int { kCopying, kValue, kKey, kQuery };

template <class Variant>
class Wide : KeyRows<Variant> {
  static constexpr Tile kTile = Variant::kTile;

 public:
  __device__ __forceinline__ Wide(const Params& p, const Maps& maps, u32 smem, const KeyBlock& keys)
      : Base(p, smem, keys, 0), loader_(p, maps, smem, keys) {}

  __device__ __forceinline__ void run(const Walk<kTile>& walk) {
    const int role = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 7, 0);
    if (role == kCopying) {
      setmaxnreg_dec<kWideRegisters.copying>();
      if (warp_ == 0 && elect_sync()) copy(walk);
      return;
    }
    if (role == kValue) {
      setmaxnreg_inc<kWideRegisters.value>();
      compute_dv(walk);
      return;
    }
    if (role == kKey) {
      setmaxnreg_inc<kWideRegisters.key>();
      compute_dk(walk);
      return;
    }
    setmaxnreg_dec<kWideRegisters.query>();
    compute_dq(walk);
  }

 private:
  using Base = KeyRows<Variant>;
  using Base::add_product;
  using Base::barrier;
  using Base::begin_columns;
  using Base::begin_scores;
  using Base::clear;
  using Base::d_address;
  using Base::dout_address;
  using Base::dq_scales;
  using Base::ds_address;
  using Base::ds_place;
  using Base::has_softcap;
  using Base::kBarriers;
  using Base::kDim;
  using Base::kDimV;
  using Base::kQueries;
  using Base::kSlabK;
  using Base::kSmem;
  using Base::kWeightUnit;
  using Base::lane_;
  using Base::make_p;
  using Base::multiply_by_p;
  using Base::multiply_by_slopes;
  using Base::pack;
  using Base::q_address;
  using Base::send_dq;
  using Base::smem_;
  using Base::start_scores;
  using Base::store_dk;
  using Base::store_dv;
  using Base::take_dout;
  using Base::take_k;
  using Base::take_q;
  using Base::take_v;
  using Base::warp_;
  using typename Base::Element;
  using typename Base::Elements;
  using typename Base::Packed;
  using typename Base::StageDout;
  using typename Base::StageDs;
  using typename Base::StageQ;
  static_assert(kTile.keys == kGroupKeys && kTile.queries == 64);

  // ---- waiting for each other
  template <class AnyStage>
  __device__ __forceinline__ void wait_full(int full, AnyStage stage) const {
    mbarrier_wait(barrier(full + stage.index), stage.parity);
  }
  template <class AnyStage>
  __device__ __forceinline__ void wait_empty(int empty, AnyStage stage) const {
    mbarrier_wait(barrier(empty + stage.index), stage.parity ^ 1);
  }
  // Each warp arrives.
  __device__ __forceinline__ void arrive(int i) const {
    __syncwarp();
    if (lane_ == 0) mbarrier_arrive(barrier(i));
  }

  // ---- the roles
  __device__ __forceinline__ void copy(const Walk<kTile>& walk) const {
    if (walk.num_steps() == 0) return;  // nobody would wait for K
    loader_.load_k();
    Step now = walk.first();
#pragma unroll 1
    for (int step = 0; step < walk.num_steps(); ++step) {
      wait_empty(kBarriers.q_empty, StageQ(step));
      loader_.load_q(step, now);
      if (step == 0) loader_.load_v();
      wait_empty(kBarriers.dout_empty, StageDout(step));
      loader_.load_dout(step, now);
      now = walk.after(now);
    }
  }

  __device__ __forceinline__ void compute_dv(const Walk<kTile>& walk) {
    float dv[kDimV / 2];
    Elements s;
    Packed weights;
    const int last = walk.num_steps() - 1;
    if (last < 0) {
      clear(dv);
      store_dv(dv);
      return;
    }
    Step now = walk.first();
    take_k();
    take_q(0, now);
    start_s(s, 0, now);
    wgmma_wait_group<0>();
    end_s(s, weights, 0, now);
#pragma unroll 1
    for (int step = 0; step < last; ++step) {
      const Step next = walk.after(now);
      take_dout(step, now);
      start_sums<kDimV>(dv, weights, dout_address(step), step);
      take_q(step + 1, next);
      start_s(s, step + 1, next);
      wgmma_wait_group<1>();
      end_sums(dv, weights, kBarriers.dout_empty + StageDout(step).index);
      wgmma_wait_group<0>();
      end_s(s, weights, step + 1, next);
      now = next;
    }
    take_dout(last, now);
    start_sums<kDimV>(dv, weights, dout_address(last), last);
    wgmma_wait_group<0>();
    end_sums(dv, weights, kBarriers.dout_empty + StageDout(last).index);
    store_dv(dv);
  }

  __device__ __forceinline__ void compute_dk(const Walk<kTile>& walk) {
    float dk[kDim / 2];
    Elements dp;
    Packed ds;
    const int last = walk.num_steps() - 1;
    if (last < 0) {
      clear(dk);
      store_dk(dk);
      return;
    }
    Step now = walk.first();
    take_v();
    take_dout(0, now);
    start_dp(dp, 0);
    wgmma_wait_group<0>();
    end_dp(dp, 0);
    pack(ds, dp);
    write_ds(ds, 0);
    arrive(kBarriers.p_empty + StageDs(0).index);
#pragma unroll 1
    for (int step = 0; step < last; ++step) {
      const Step next = walk.after(now);
      take_q(step, now);
      start_sums<kDim>(dk, ds, q_address(step), step);
      take_dout(step + 1, next);
      start_dp(dp, step + 1);
      wgmma_wait_group<1>();
      end_sums(dk, ds, kBarriers.q_empty + StageQ(step).index);
      wgmma_wait_group<0>();
      end_dp(dp, step + 1);
      pack(ds, dp);
      wait_empty(kBarriers.ds_empty, StageDs(step + 1));
      write_ds(ds, step + 1);
      arrive(kBarriers.p_empty + StageDs(step + 1).index);
      now = next;
    }
    take_q(last, now);
    start_sums<kDim>(dk, ds, q_address(last), last);
    wgmma_wait_group<0>();
    end_sums(dk, ds, kBarriers.q_empty + StageQ(last).index);
    store_dk(dk);
  }

  __device__ __forceinline__ void compute_dq(const Walk<kTile>& walk) {
    if (walk.num_steps() == 0) return;
    float dq[4 * kDqGroups];
    take_k();
    Step now = walk.first();
#pragma unroll 1
    for (int step = 0; step < walk.num_steps(); ++step) {
      const u32 scales = dq_scales(now, 0);  // parts of a step differ in columns
#pragma unroll 1
      for (int part = 0; part < dq_parts(kTile); ++part) {
        compute_dq(dq, step, part);
        send_dq(now, part, dq, scales);
      }
      now = walk.after(now);
    }
  }

  // ---- their steps
  __device__ __forceinline__ void start_s(Elements& s, int step, const Step& at) {
    begin_scores(s, step, at);
    start_scores<kDim>(s, kSmem.offset_k, q_address(step));
  }
  __device__ __forceinline__ void start_dp(Elements& dp, int step) {
    begin_columns(dp, d_address(step));
    start_scores<kDimV>(dp, kSmem.offset_v, dout_address(step));
  }
  // dV += P^T dO, dK += dS^T Q: `from` is a stage that has come, which `empty` frees.
  template <int kColumns>
  static __device__ __forceinline__ void start_sums(float (&sums)[kColumns / 2],
                                                    const Packed& weights, u32 from, int step) {
    wgmma_fence();
    add_product<kColumns>(sums, weights, from, step);
    wgmma_commit_group();
  }
  template <int kCount>
  __device__ __forceinline__ void end_sums(float (&sums)[kCount], Packed& weights, int empty) {
    wgmma_wait_group<0>();
    warpgroup_fence_operand(sums);
    warpgroup_fence_operand(weights);
    arrive(empty);
  }
  // P for dV; for the warpgroup of dK what dS is (dP - D) times: P, or with a softcap P and its
  // slope.
  __device__ __forceinline__ void end_s(Elements& s, Packed& weights, int step, const Step& at) {
    make_p(s, step, at);
    if (has_softcap()) {
      wait_empty(kBarriers.p_empty, StageDs(step));
      const u32 to = p_address(step);
#pragma unroll
      for (int i = 0; i < kQueries / 16; ++i) {
        pack(weights[i], s, i);
        multiply_by_slopes(s, s, step, 2 * i);
        Chunk sloped;
        pack(sloped.words, s, i);
        store_chunk(to + i * 2048, sloped);
      }
      arrive(kBarriers.q_empty + StageQ(step).index);
      arrive(kBarriers.p_full + StageDs(step).index);
    } else {
      arrive(kBarriers.q_empty + StageQ(step).index);
      pack(weights, s);
      wait_empty(kBarriers.p_empty, StageDs(step));
      hand_over(weights, step);
    }
  }
  // The stage is empty.
  __device__ __forceinline__ void hand_over(const Packed& weights, int step) const {
    const u32 to = p_address(step);
#pragma unroll
    for (int i = 0; i < kQueries / 16; ++i)
      store_chunk(to + i * 2048, {weights[i][0], weights[i][1], weights[i][2], weights[i][3]});
    arrive(kBarriers.p_full + StageDs(step).index);
  }
  __device__ __forceinline__ u32 p_address(int step) const {
    return smem_ + kSmem.offset_p + StageDs(step).index * kSmem.p +
           (static_cast<int>(threadIdx.x) & 127) * 16;
  }

  // dP^T becomes dS^T, in float. What it loads of P is consumed when dS has been written.
  __device__ __forceinline__ void end_dp(Elements& dp, int step) {
    warpgroup_fence_operand(dp);
    arrive(kBarriers.dout_empty + StageDout(step).index);
    wait_full(kBarriers.p_full, StageDs(step));
#pragma unroll
    for (int i = 0; i < kQueries / 16; ++i) {
      const Chunk weights = load_chunk(p_address(step) + i * 2048);
      multiply_by_p(dp, 2 * i, [&](int j, int r) -> float2 {
        const float2 p = Element::unpack(weights.words[j % 2 * 2 + r]);
        return {p.x * kWeightUnit, p.y * kWeightUnit};
      });
    }
  }
  // For the warpgroup of dQ; the stage is empty.
  __device__ __forceinline__ void write_ds(const Packed& ds, int step) const {
    const u32 place = ds_place(step);
#pragma unroll
    for (int i = 0; i < kQueries / 16; ++i)
      stmatrix_x4_trans(place + i * 16 * kSwizzleRowBytes, ds[i]);
    fence_proxy_async();
    arrive(kBarriers.ds_full + StageDs(step).index);
  }

  // 64 columns of dQ = dS K.
  __device__ __forceinline__ void compute_dq(float (&dq)[4 * kDqGroups], int step, int part) {
    using Dq = WgmmaM64K16<typename Element::Operand, kSwizzleAtomCols>;
    wait_full(kBarriers.ds_full, StageDs(step));
    wgmma_fence();
    const u64 a = wgmma_descriptor(ds_address(step), 16);
    const u64 b = wgmma_descriptor(smem_ + kSmem.offset_k + part * kSlabK, kSlabK);
#pragma unroll
    for (int i = 0; i < kTile.keys / 16; ++i)
      Dq::template ss<Major::mn>(dq, wgmma_descriptor_advance(a, i * 32),
                                 wgmma_descriptor_advance(b, i * 2048), i != 0);
    wgmma_commit_group();
    wgmma_wait_group<0>();
    warpgroup_fence_operand(dq);
    if (part + 1 == dq_parts(kTile)) arrive(kBarriers.ds_empty + StageDs(step).index);
  }

  const Loader<kTile> loader_;
};

}  // namespace headrace::cuda::sm90::bwd
