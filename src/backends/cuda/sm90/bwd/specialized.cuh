// Specialized schedule: dK and dV of 64 keys fill the registers of a warpgroup each.
//
//   kProducer  loads K and V, and Q, dO, lse and D of every query block
//   kDv        S^T = K Q^T, P^T; dV += P^T dO
//   kDk        dP^T = V dO^T, dS^T with P from shared memory; dK += dS^T Q
//   kDq        dQ = dS K, added to the accumulator
//
// The products of one warpgroup run under the exponentials or dS of another. dV and dK are issued
// before the next S and dP, so that a stage of dO and of Q is released early: there are two of
// each. P^T and dS^T have the same register layout in kDv and kDk, so P goes through shared memory
// in register order.
#pragma once

#include "backends/cuda/sm90/bwd/key_rows.cuh"

namespace headrace::cuda::sm90::bwd {

enum Role : int { kProducer, kDv, kDk, kDq };

template <class Variant>
class Specialized {
  static constexpr Tile kTile = Variant::kTile;

 public:
  __device__ __forceinline__ Specialized(const Params& p, const Maps& maps, u32 smem,
                                         const KeyBlock& keys)
      : rows_(p, smem, keys, 0), loader_(p, maps, smem, keys) {}

  __device__ __forceinline__ void run(const BlockIterator<kTile>& blocks) {
    const int role = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 7, 0);
    if (role == kProducer) {
      setmaxnreg_dec<kSpecializedRegisters.producer>();
      if (rows_.warp == 0 && elect_sync()) produce(blocks);
      return;
    }
    if (role == kDv) {
      setmaxnreg_inc<kSpecializedRegisters.dv>();
      compute_dv(blocks);
      return;
    }
    if (role == kDk) {
      setmaxnreg_inc<kSpecializedRegisters.dk>();
      compute_dk(blocks);
      return;
    }
    setmaxnreg_dec<kSpecializedRegisters.dq>();
    compute_dq(blocks);
  }

 private:
  using Rows = KeyRows<Variant>;
  using Element = typename Rows::Element;
  using Elements = typename Rows::Elements;
  using Packed = typename Rows::Packed;
  using StageQ = typename Rows::StageQ;
  using StageDout = typename Rows::StageDout;
  using StageDs = typename Rows::StageDs;
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr BarrierPlan kBarriers = barrier_plan(kTile);
  static constexpr int kDim = kTile.head_dim, kDimV = kTile.head_dim_v;
  static constexpr int kQueries = kTile.queries, kAtomK = Rows::kAtomK;
  static constexpr float kPUnit = Rows::kPUnit;
  static_assert(kTile.keys == kGroupKeys && kTile.queries == 64);

  // ---- mbarriers
  template <class AnyStage>
  __device__ __forceinline__ void wait_full(int full, AnyStage stage) const {
    mbarrier_wait(rows_.barrier(full + stage.index), stage.parity);
  }
  template <class AnyStage>
  __device__ __forceinline__ void wait_empty(int empty, AnyStage stage) const {
    mbarrier_wait(rows_.barrier(empty + stage.index), stage.parity ^ 1);
  }
  // One arrival for each warp.
  __device__ __forceinline__ void arrive(int i) const {
    __syncwarp();
    if (rows_.lane == 0) mbarrier_arrive(rows_.barrier(i));
  }

  // ---- the roles
  __device__ __forceinline__ void produce(const BlockIterator<kTile>& blocks) const {
    if (blocks.num_iterations() == 0) return;  // no warpgroup waits for K
    loader_.load_k();
    QueryBlock now = blocks.first();
#pragma unroll 1
    for (int iteration = 0; iteration < blocks.num_iterations(); ++iteration) {
      wait_empty(kBarriers.q_empty, StageQ(iteration));
      loader_.load_q(iteration, now);
      if (iteration == 0) loader_.load_v();
      wait_empty(kBarriers.dout_empty, StageDout(iteration));
      loader_.load_dout(iteration, now);
      now = blocks.after(now);
    }
  }

  __device__ __forceinline__ void compute_dv(const BlockIterator<kTile>& blocks) {
    float dv[kDimV / 2];
    Elements s;
    Packed p_frag;
    const int last = blocks.num_iterations() - 1;
    if (last < 0) {
      rows_.clear(dv);
      rows_.store_dv(dv);
      return;
    }
    QueryBlock now = blocks.first();
    rows_.wait_k();
    rows_.wait_q(0, now);
    issue_s(s, 0, now);
    wgmma_wait_group<0>();
    finish_s(s, p_frag, 0, now);
#pragma unroll 1
    for (int iteration = 0; iteration < last; ++iteration) {
      const QueryBlock next = blocks.after(now);
      rows_.wait_dout(iteration, now);
      issue_sums<kDimV>(dv, p_frag, rows_.dout_address(iteration), iteration);
      rows_.wait_q(iteration + 1, next);
      issue_s(s, iteration + 1, next);
      wgmma_wait_group<1>();
      finish_sums(dv, p_frag, kBarriers.dout_empty + StageDout(iteration).index);
      wgmma_wait_group<0>();
      finish_s(s, p_frag, iteration + 1, next);
      now = next;
    }
    rows_.wait_dout(last, now);
    issue_sums<kDimV>(dv, p_frag, rows_.dout_address(last), last);
    wgmma_wait_group<0>();
    finish_sums(dv, p_frag, kBarriers.dout_empty + StageDout(last).index);
    rows_.store_dv(dv);
  }

  __device__ __forceinline__ void compute_dk(const BlockIterator<kTile>& blocks) {
    float dk[kDim / 2];
    Elements dp;
    Packed ds;
    const int last = blocks.num_iterations() - 1;
    if (last < 0) {
      rows_.clear(dk);
      rows_.store_dk(dk);
      return;
    }
    QueryBlock now = blocks.first();
    rows_.wait_v();
    rows_.wait_dout(0, now);
    issue_dp(dp, 0);
    wgmma_wait_group<0>();
    finish_dp(dp, 0);
    rows_.pack(ds, dp);
    write_ds(ds, 0);
    arrive(kBarriers.p_empty + StageDs(0).index);
#pragma unroll 1
    for (int iteration = 0; iteration < last; ++iteration) {
      const QueryBlock next = blocks.after(now);
      rows_.wait_q(iteration, now);
      issue_sums<kDim>(dk, ds, rows_.q_address(iteration), iteration);
      rows_.wait_dout(iteration + 1, next);
      issue_dp(dp, iteration + 1);
      wgmma_wait_group<1>();
      finish_sums(dk, ds, kBarriers.q_empty + StageQ(iteration).index);
      wgmma_wait_group<0>();
      finish_dp(dp, iteration + 1);
      rows_.pack(ds, dp);
      wait_empty(kBarriers.ds_empty, StageDs(iteration + 1));
      write_ds(ds, iteration + 1);
      arrive(kBarriers.p_empty + StageDs(iteration + 1).index);
      now = next;
    }
    rows_.wait_q(last, now);
    issue_sums<kDim>(dk, ds, rows_.q_address(last), last);
    wgmma_wait_group<0>();
    finish_sums(dk, ds, kBarriers.q_empty + StageQ(last).index);
    rows_.store_dk(dk);
  }

  __device__ __forceinline__ void compute_dq(const BlockIterator<kTile>& blocks) {
    if (blocks.num_iterations() == 0) return;
    float dq[4 * kDqGroups];
    rows_.wait_k();
    QueryBlock now = blocks.first();
#pragma unroll 1
    for (int iteration = 0; iteration < blocks.num_iterations(); ++iteration) {
      const u32 scales = rows_.dq_scales(now, 0);  // the parts of a block differ in columns
#pragma unroll 1
      for (int part = 0; part < dq_parts(kTile); ++part) {
        compute_dq(dq, iteration, part);
        rows_.reduce_dq(now, part, dq, scales);
      }
      now = blocks.after(now);
    }
  }

  // ---- their parts
  __device__ __forceinline__ void issue_s(Elements& s, int iteration, const QueryBlock& at) {
    rows_.init_scores(s, iteration, at);
    rows_.template issue_scores<kDim>(s, kSmem.offset_k, rows_.q_address(iteration));
  }
  __device__ __forceinline__ void issue_dp(Elements& dp, int iteration) {
    rows_.init_columns(dp, rows_.d_address(iteration));
    rows_.template issue_scores<kDimV>(dp, kSmem.offset_v, rows_.dout_address(iteration));
  }
  // dV += P^T dO, dK += dS^T Q: `from` is a full stage, which finish_sums() releases.
  template <int kColumns>
  static __device__ __forceinline__ void issue_sums(float (&sums)[kColumns / 2],
                                                    const Packed& p_frag, u32 from, int iteration) {
    wgmma_fence();
    Rows::template issue_product<kColumns>(sums, p_frag, from, iteration);
    wgmma_commit_group();
  }
  template <int kCount>
  __device__ __forceinline__ void finish_sums(float (&sums)[kCount], Packed& p_frag, int empty) {
    wgmma_wait_group<0>();
    warpgroup_fence_operand(sums);
    warpgroup_fence_operand(p_frag);
    arrive(empty);
  }
  // P for dV; for kDk the factor of (dP - D) in dS: P, or with a softcap P times its derivative.
  __device__ __forceinline__ void finish_s(Elements& s, Packed& p_frag, int iteration,
                                           const QueryBlock& at) {
    rows_.make_p(s, iteration, at);
    if (rows_.has_softcap()) {
      wait_empty(kBarriers.p_empty, StageDs(iteration));
      const u32 to = p_address(iteration);
#pragma unroll
      for (int i = 0; i < kQueries / 16; ++i) {
        rows_.pack(p_frag[i], s, i);
        rows_.multiply_by_softcap_gradient(s, s, iteration, 2 * i);
        Chunk p_times_gradient;
        rows_.pack(p_times_gradient.words, s, i);
        store_chunk(to + i * 2048, p_times_gradient);
      }
      arrive(kBarriers.q_empty + StageQ(iteration).index);
      arrive(kBarriers.p_full + StageDs(iteration).index);
    } else {
      arrive(kBarriers.q_empty + StageQ(iteration).index);
      rows_.pack(p_frag, s);
      wait_empty(kBarriers.p_empty, StageDs(iteration));
      store_p(p_frag, iteration);
    }
  }
  // For kDk; the stage is empty.
  __device__ __forceinline__ void store_p(const Packed& p_frag, int iteration) const {
    const u32 to = p_address(iteration);
#pragma unroll
    for (int i = 0; i < kQueries / 16; ++i)
      store_chunk(to + i * 2048, {p_frag[i][0], p_frag[i][1], p_frag[i][2], p_frag[i][3]});
    arrive(kBarriers.p_full + StageDs(iteration).index);
  }
  __device__ __forceinline__ u32 p_address(int iteration) const {
    return rows_.smem + kSmem.offset_p + StageDs(iteration).index * kSmem.p +
           (static_cast<int>(threadIdx.x) & 127) * 16;
  }

  // dP^T becomes dS^T, in float. The loads of P are consumed when dS has been written.
  __device__ __forceinline__ void finish_dp(Elements& dp, int iteration) {
    warpgroup_fence_operand(dp);
    arrive(kBarriers.dout_empty + StageDout(iteration).index);
    wait_full(kBarriers.p_full, StageDs(iteration));
#pragma unroll
    for (int i = 0; i < kQueries / 16; ++i) {
      const Chunk p_frag = load_chunk(p_address(iteration) + i * 2048);
      rows_.multiply_by_p(dp, 2 * i, [&](int j, int r) -> float2 {
        const float2 p = Element::unpack(p_frag.words[j % 2 * 2 + r]);
        return {p.x * kPUnit, p.y * kPUnit};
      });
    }
  }
  // For kDq; the stage is empty.
  __device__ __forceinline__ void write_ds(const Packed& ds, int iteration) const {
    const u32 place = rows_.ds_write_address(iteration);
#pragma unroll
    for (int i = 0; i < kQueries / 16; ++i)
      stmatrix_x4_trans(place + i * 16 * kSwizzleRowBytes, ds[i]);
    fence_proxy_async();
    arrive(kBarriers.ds_full + StageDs(iteration).index);
  }

  // 64 columns of dQ = dS K.
  __device__ __forceinline__ void compute_dq(float (&dq)[4 * kDqGroups], int iteration, int part) {
    using Dq = WgmmaM64K16<typename Element::Operand, kSwizzleAtomCols>;
    wait_full(kBarriers.ds_full, StageDs(iteration));
    wgmma_fence();
    const u64 a = wgmma_descriptor(rows_.ds_address(iteration), 16);
    const u64 b = wgmma_descriptor(rows_.smem + kSmem.offset_k + part * kAtomK, kAtomK);
#pragma unroll
    for (int i = 0; i < kTile.keys / 16; ++i)
      Dq::template ss<Major::mn>(dq, wgmma_descriptor_advance(a, i * 32),
                                 wgmma_descriptor_advance(b, i * 2048), i != 0);
    wgmma_commit_group();
    wgmma_wait_group<0>();
    warpgroup_fence_operand(dq);
    if (part + 1 == dq_parts(kTile)) arrive(kBarriers.ds_empty + StageDs(iteration).index);
  }

  const Rows rows_;
  const Loader<kTile> loader_;
};

}  // namespace headrace::cuda::sm90::bwd
