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
      compute_sums<kDv>(blocks);
      return;
    }
    if (role == kDk) {
      setmaxnreg_inc<kSpecializedRegisters.dk>();
      compute_sums<kDk>(blocks);
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
  template <Role kRole>
  static constexpr int kColumns = kRole == kDv ? kDimV : kDim;
  template <Role kRole>
  using Sums = float[kColumns<kRole> / 2];  // dV, dK
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

  // kDv: P^T from S^T, times rows of dO. kDk: dS^T from dP^T, times rows of Q.
  template <Role kRole>
  __device__ __forceinline__ void compute_sums(const BlockIterator<kTile>& blocks) {
    Sums<kRole> sums;
    Elements x;
    Packed frag;
    const int last = blocks.num_iterations() - 1;
    if (last < 0) {
      rows_.clear(sums);
      store<kRole>(sums);
      return;
    }
    QueryBlock now = blocks.first();
    kRole == kDv ? rows_.wait_k() : rows_.wait_v();
    issue_elements<kRole>(x, 0, now);
    wgmma_wait_group<0>();
    finish_elements<kRole>(x, frag, 0, now);
#pragma unroll 1
    for (int iteration = 0; iteration < last; ++iteration) {
      const QueryBlock next = blocks.after(now);
      issue_sums<kRole>(sums, frag, iteration, now);
      issue_elements<kRole>(x, iteration + 1, next);
      wgmma_wait_group<1>();
      finish_sums<kRole>(sums, frag, iteration);
      wgmma_wait_group<0>();
      finish_elements<kRole>(x, frag, iteration + 1, next);
      now = next;
    }
    issue_sums<kRole>(sums, frag, last, now);
    wgmma_wait_group<0>();
    finish_sums<kRole>(sums, frag, last);
    store<kRole>(sums);
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
  template <Role kRole>
  __device__ __forceinline__ void issue_elements(Elements& x, int iteration, const QueryBlock& at) {
    if constexpr (kRole == kDv) {
      rows_.wait_q(iteration, at);
      rows_.init_scores(x, iteration, at);
      rows_.template issue_scores<kDim>(x, kSmem.offset_k, rows_.q_address(iteration));
    } else {
      rows_.wait_dout(iteration, at);
      rows_.init_columns(x, rows_.d_address(iteration));
      rows_.template issue_scores<kDimV>(x, kSmem.offset_v, rows_.dout_address(iteration));
    }
  }
  template <Role kRole>
  __device__ __forceinline__ void finish_elements(Elements& x, Packed& frag, int iteration,
                                                  const QueryBlock& at) {
    if constexpr (kRole == kDv) {
      finish_s(x, frag, iteration, at);
    } else {
      finish_dp(x, iteration);
      rows_.pack(frag, x);
      wait_empty(kBarriers.ds_empty, StageDs(iteration));
      write_ds(frag, iteration);
      arrive(kBarriers.p_empty + StageDs(iteration).index);
    }
  }
  // dV += P^T dO, dK += dS^T Q, from a full stage, which finish_sums() releases.
  template <Role kRole>
  __device__ __forceinline__ void issue_sums(Sums<kRole>& sums, const Packed& frag, int iteration,
                                             const QueryBlock& at) const {
    kRole == kDv ? rows_.wait_dout(iteration, at) : rows_.wait_q(iteration, at);
    const u32 from = kRole == kDv ? rows_.dout_address(iteration) : rows_.q_address(iteration);
    wgmma_fence();
    Rows::template issue_product<kColumns<kRole>>(sums, frag, from, iteration);
    wgmma_commit_group();
  }
  template <Role kRole>
  __device__ __forceinline__ void finish_sums(Sums<kRole>& sums, Packed& frag, int iteration) {
    wgmma_wait_group<0>();
    warpgroup_fence_operand(sums);
    warpgroup_fence_operand(frag);
    arrive(kRole == kDv ? kBarriers.dout_empty + StageDout(iteration).index
                        : kBarriers.q_empty + StageQ(iteration).index);
  }
  template <Role kRole>
  __device__ __forceinline__ void store(const Sums<kRole>& sums) const {
    if constexpr (kRole == kDv) {
      rows_.store_dv(sums);
    } else {
      rows_.store_dk(sums);
    }
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
