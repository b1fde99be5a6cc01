// Narrow tiles: a warpgroup computes all products for 64 of the CTA's 128 keys.
//
// Everything is transposed: a warpgroup computes S^T = K Q^T and dP^T = V dO^T, so that P^T and
// dS^T come out of the tensor cores in the registers where dV = P^T dO and dK = dS^T Q want them.
// Only dS goes through shared memory, for dQ = dS K, which takes the keys of both warpgroups.
//
// The products of neighbouring steps overlap, so that the tensor cores have work while exponentials
// and dS are computed:
//   S(i + 1), dV(i), dK(i)   run under the exponentials of S(i + 1)
//   dP(i + 1), dQ(i)         run under dS(i + 1)
// That takes 250 registers a thread, so no warpgroup is there to copy: a thread of each warpgroup
// does beside its work, one Q, one dO.
#pragma once

#include "backends/cuda/sm90/bwd/key_rows.cuh"

namespace headrace::cuda::sm90::bwd {

template <class Variant>
class Narrow : KeyRows<Variant> {
  static constexpr Tile kTile = Variant::kTile;

 public:
  __device__ __forceinline__ Narrow(const Params& p, const Maps& maps, u32 smem,
                                    const KeyBlock& keys)
      : Base(p, smem, keys, __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 7, 0)),
        loader_(p, maps, smem, keys) {}

  __device__ __forceinline__ void run(const Walk<kTile>& walk) {
    const int last = walk.num_steps() - 1;
    if (last >= 0) {
      Step now = walk.first(), before = now;
      begin(walk, now);
#pragma unroll 1
      for (int step = 0; step < last; ++step) {
        const Step next = walk.after(now);
        compute(step, before, now, next, walk);
        before = now;
        now = next;
      }
      end(last, before, now);
    } else {
      clear(dk_);
      clear(dv_);
    }
    store_dv(dv_);
    store_dk(dk_);
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
  using Base::group_;
  using Base::has_softcap;
  using Base::kDim;
  using Base::kQueries;
  using Base::kSlabK;
  using Base::kSlabQ;
  using Base::kSmem;
  using Base::make_p;
  using Base::multiply_by_p;
  using Base::multiply_by_slopes;
  using Base::not_hoisted;
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
  using typename Base::Element;
  using typename Base::Elements;
  using typename Base::Packed;
  using Dq = WgmmaM64K16<typename Element::Operand, kSwizzleAtomCols>;
  static_assert(kTile.keys == 2 * kGroupKeys && dq_parts(kTile) == 2);
  static_assert(kDim == kTile.head_dim_v);

  // ---- steps
  __device__ __forceinline__ void begin(const Walk<kTile>& walk, const Step& first) {
    const Step second = walk.after(first);
    if (threadIdx.x == 0) {
      loader_.load_k();
      loader_.load_q(0, first);
      loader_.load_v();
      loader_.load_dout(0, first);
      if (walk.has(second)) {
        loader_.load_q(1, second);
        loader_.load_dout(1, second);
      }
    }
    __syncwarp();
    take_k();
    take_q(0, first);
    begin_scores(s_, 0, first);
    start_s(0);
    wgmma_wait_group<0>();
    make_p(s_, 0, first);
    take_v();
    take_dout(0, first);
    start_dp(0);
    wgmma_wait_group<0>();
    make_ds(0);
    announce_ds(0);
    begin_s(1, second, walk);
    clear(dq_);  // the first step sends what adds nothing: a branch there costs 2 % at head_dim 64
    scales_ = 0;
  }

  // What is left of step `step`, and the first half of the one after it.
  __device__ __forceinline__ void compute(int step, const Step& before, const Step& now,
                                          const Step& next, const Walk<kTile>& walk) {
    const Step after_next = walk.after(next);
    start_s(step + 1);
    start_dv_dk(step);
    // Long before the fence of dS, which waits until the numbers have arrived.
    send_dq(before, group_, dq_, scales_, step > 0 ? kFixedMagic : 0.0f);
    // Everyone is done with dK of the step two before this one.
    if (threadIdx.x == 0 && walk.has(after_next)) loader_.load_q(step + 2, after_next);
    __syncwarp();
    wgmma_wait_group<1>();
    make_p(s_, step + 1, next);
    take_dout(step + 1, next);  // its branches also keep the exponentials before the next wait
    end_dv_dk();
    start_dp(step + 1);
    start_dq(step);
    scales_ = dq_scales(now, group_);
    // Everyone is done with dV of the step before this one.
    if (threadIdx.x == 128 && walk.has(after_next)) loader_.load_dout(step + 2, after_next);
    __syncwarp();
    wgmma_wait_group<1>();
    make_ds(step + 1);
    begin_s(step + 2, after_next, walk);
    end_dq();
    announce_ds(step + 1);
  }

  __device__ __forceinline__ void end(int last, const Step& before, const Step& now) {
    start_dv_dk(last);
    if (last > 0) send_dq(before, group_, dq_, scales_);
    end_dv_dk();
    start_dq(last);
    scales_ = dq_scales(now, group_);
    end_dq();
    send_dq(now, group_, dq_, scales_);
  }

  // ---- products
  // As soon as P before it is no longer needed.
  __device__ __forceinline__ void begin_s(int step, const Step& at, const Walk<kTile>& walk) {
    if (!walk.has(at)) return;
    take_q(step, at);
    begin_scores(s_, step, at);
  }
  __device__ __forceinline__ void start_s(int step) {
    start_scores<kDim>(s_, kSmem.offset_k, q_address(step));
  }
  __device__ __forceinline__ void start_dp(int step) {
    begin_columns(dp_, d_address(step));
    start_scores<kDim>(dp_, kSmem.offset_v, dout_address(step));
  }
  __device__ __forceinline__ void start_dv_dk(int step) {
    wgmma_fence();
    add_product<kDim>(dv_, weights_, dout_address(step), step);
    add_product<kDim>(dk_, ds_, q_address(step), step);
    wgmma_commit_group();
  }
  __device__ __forceinline__ void end_dv_dk() {
    wgmma_wait_group<0>();
    warpgroup_fence_operand(dv_);
    warpgroup_fence_operand(dk_);
    warpgroup_fence_operand(weights_);
    warpgroup_fence_operand(ds_);
  }
  // dQ = dS K: a part for each warpgroup, other rows or other columns.
  __device__ __forceinline__ void start_dq(int step) {
    constexpr bool kSplitsRows = num_swizzle_atoms(kDim) == 1;
    bar_sync(ds_barrier(step, group_ ^ 1), 256);
    wgmma_fence();
    const u32 row = kSplitsRows ? group_ * 64 * kSwizzleRowBytes : 0;
    const u32 slab = kSplitsRows ? 0 : group_ * kSlabK;
    const u64 a = wgmma_descriptor(ds_address(step) + row, 16);
    const u64 b = wgmma_descriptor(not_hoisted(smem_ + kSmem.offset_k + slab), kSlabK);
#pragma unroll
    for (int i = 0; i < kTile.keys / 16; ++i)
      Dq::template ss<Major::mn>(dq_, wgmma_descriptor_advance(a, i % 4 * 32 + i / 4 * kSlabQ),
                                 wgmma_descriptor_advance(b, i * 2048), i != 0);
    wgmma_commit_group();
  }
  __device__ __forceinline__ void end_dq() {
    wgmma_wait_group<0>();
    warpgroup_fence_operand(dq_);
  }

  // ---- elements
  // P and dS for the next products, dS also for dQ.
  __device__ __forceinline__ void make_ds(int step) {
    warpgroup_fence_operand(dp_);
    const u32 place = ds_place(step);
#pragma unroll
    for (int i = 0; i < kQueries / 16; ++i) {
      if (has_softcap()) multiply_by_slopes(dp_, s_, step, 2 * i);
      multiply_by_p(dp_, 2 * i, [&](int j, int r) -> float2 {
        return {s_[4 * j + 2 * r], s_[4 * j + 2 * r + 1]};
      });
      pack(weights_[i], s_, i);
      pack(ds_[i], dp_, i);
      stmatrix_x4_trans(place + i * 16 * kSwizzleRowBytes, ds_[i]);
    }
    fence_proxy_async();
  }
  // Named barriers. A warpgroup can announce dS of a step before the other has waited for the one
  // before, so each stage has its own.
  static __device__ __forceinline__ int ds_barrier(int step, int group) {
    constexpr int kFirst = 1;
    return kFirst + Stage<kStagesDs>(step).index * 2 + group;
  }
  // dS is there, and this warpgroup's dQ has read the one before.
  __device__ __forceinline__ void announce_ds(int step) {
    bar_arrive(ds_barrier(step, group_), 256);
  }

  const Loader<kTile> loader_;
  Elements s_, dp_;
  Packed weights_, ds_;
  float dk_[kDim / 2], dv_[kDim / 2], dq_[4 * kDqGroups];
  u32 scales_;  // of dq_
};

}  // namespace headrace::cuda::sm90::bwd
