// Cooperative schedule: each of two warpgroups computes all products for 64 of the CTA's 128 keys.
//
// S^T = K Q^T and dP^T = V dO^T are computed transposed, so that the accumulators of P^T and dS^T
// are the A fragments of dV = P^T dO and dK = dS^T Q. Only dS goes through shared memory, for dQ =
// dS K, which sums over the keys of both warpgroups.
//
// The products of neighbouring iterations overlap, so that the tensor cores have work during the
// exponentials and dS:
//   S(i + 1), dV(i), dK(i)   run under the exponentials of S(i + 1)
//   dP(i + 1), dQ(i)         run under dS(i + 1)
// That takes 250 registers a thread, which leaves none for a producer warpgroup: a thread of one
// warpgroup loads Q, a thread of the other dO.
#pragma once

#include "backends/cuda/sm90/bwd/key_rows.cuh"

namespace headrace::cuda::sm90::bwd {

template <class Variant>
class Cooperative {
  static constexpr Tile kTile = Variant::kTile;

 public:
  __device__ __forceinline__ Cooperative(const Params& p, const Maps& maps, u32 smem,
                                         const KeyBlock& keys)
      : rows_(p, smem, keys, __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 7, 0)),
        loader_(p, maps, smem, keys) {}

  __device__ __forceinline__ void run(const BlockIterator<kTile>& blocks) {
    const int last = blocks.num_iterations() - 1;
    if (last >= 0) {
      QueryBlock now = blocks.first(), before = now;
      begin(blocks, now);
#pragma unroll 1
      for (int iteration = 0; iteration < last; ++iteration) {
        const QueryBlock next = blocks.after(now);
        compute(iteration, before, now, next, blocks);
        before = now;
        now = next;
      }
      end(last, before, now);
    } else {
      rows_.clear(dk_);
      rows_.clear(dv_);
    }
    rows_.store_dv(dv_);
    rows_.store_dk(dk_);
  }

 private:
  using Rows = KeyRows<Variant>;
  using Element = typename Rows::Element;
  using Elements = typename Rows::Elements;
  using Packed = typename Rows::Packed;
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr int kDim = kTile.head_dim, kQueries = kTile.queries;
  static constexpr int kAtomQ = Rows::kAtomQ, kAtomK = Rows::kAtomK;
  using Dq = WgmmaM64K16<typename Element::Operand, kSwizzleAtomCols>;
  static_assert(kTile.keys == 2 * kGroupKeys && dq_parts(kTile) == 2);
  static_assert(kDim == kTile.head_dim_v);

  // ---- iterations
  __device__ __forceinline__ void begin(const BlockIterator<kTile>& blocks,
                                        const QueryBlock& first) {
    const QueryBlock second = blocks.after(first);
    if (threadIdx.x == 0) {
      loader_.load_k();
      loader_.load_q(0, first);
      loader_.load_v();
      loader_.load_dout(0, first);
      if (blocks.has(second)) {
        loader_.load_q(1, second);
        loader_.load_dout(1, second);
      }
    }
    __syncwarp();
    rows_.wait_k();
    rows_.wait_q(0, first);
    rows_.init_scores(s_, 0, first);
    issue_s(0);
    wgmma_wait_group<0>();
    rows_.make_p(s_, 0, first);
    rows_.wait_v();
    rows_.wait_dout(0, first);
    issue_dp(0);
    wgmma_wait_group<0>();
    make_ds(0);
    arrive_ds(0);
    init_s(1, second, blocks);
    rows_.clear(dq_);  // the first reduce_dq() adds zeros: a branch there costs 2 % at head_dim 64
    scales_ = 0;
  }

  // The second half of an iteration, and the first half of the next.
  __device__ __forceinline__ void compute(int iteration, const QueryBlock& before,
                                          const QueryBlock& now, const QueryBlock& next,
                                          const BlockIterator<kTile>& blocks) {
    const QueryBlock after_next = blocks.after(next);
    issue_s(iteration + 1);
    issue_dv_dk(iteration);
    // Long before the fence of dS, which waits until these additions have arrived.
    rows_.reduce_dq(before, rows_.group, dq_, scales_, iteration > 0 ? kFixedMagic : 0.0f);
    // Both warpgroups are done with dK of the iteration two before this one.
    if (threadIdx.x == 0 && blocks.has(after_next)) loader_.load_q(iteration + 2, after_next);
    __syncwarp();
    wgmma_wait_group<1>();
    rows_.make_p(s_, iteration + 1, next);
    rows_.wait_dout(iteration + 1, next);  // its branches also keep nvcc from moving the
                                           // exponentials behind the next wait
    finish_dv_dk();
    issue_dp(iteration + 1);
    issue_dq(iteration);
    scales_ = rows_.dq_scales(now, rows_.group);
    // Both warpgroups are done with dV of the iteration before this one.
    if (threadIdx.x == 128 && blocks.has(after_next)) loader_.load_dout(iteration + 2, after_next);
    __syncwarp();
    wgmma_wait_group<1>();
    make_ds(iteration + 1);
    init_s(iteration + 2, after_next, blocks);
    finish_dq();
    arrive_ds(iteration + 1);
  }

  __device__ __forceinline__ void end(int last, const QueryBlock& before, const QueryBlock& now) {
    issue_dv_dk(last);
    if (last > 0) rows_.reduce_dq(before, rows_.group, dq_, scales_);
    finish_dv_dk();
    issue_dq(last);
    scales_ = rows_.dq_scales(now, rows_.group);
    finish_dq();
    rows_.reduce_dq(now, rows_.group, dq_, scales_);
  }

  // ---- products
  // As soon as the P before it is consumed.
  __device__ __forceinline__ void init_s(int iteration, const QueryBlock& at,
                                         const BlockIterator<kTile>& blocks) {
    if (!blocks.has(at)) return;
    rows_.wait_q(iteration, at);
    rows_.init_scores(s_, iteration, at);
  }
  __device__ __forceinline__ void issue_s(int iteration) {
    rows_.template issue_scores<kDim>(s_, kSmem.offset_k, rows_.q_address(iteration));
  }
  __device__ __forceinline__ void issue_dp(int iteration) {
    rows_.init_columns(dp_, rows_.d_address(iteration));
    rows_.template issue_scores<kDim>(dp_, kSmem.offset_v, rows_.dout_address(iteration));
  }
  __device__ __forceinline__ void issue_dv_dk(int iteration) {
    wgmma_fence();
    rows_.template issue_product<kDim>(dv_, p_frag_, rows_.dout_address(iteration), iteration);
    rows_.template issue_product<kDim>(dk_, ds_, rows_.q_address(iteration), iteration);
    wgmma_commit_group();
  }
  __device__ __forceinline__ void finish_dv_dk() {
    wgmma_wait_group<0>();
    warpgroup_fence_operand(dv_);
    warpgroup_fence_operand(dk_);
    warpgroup_fence_operand(p_frag_);
    warpgroup_fence_operand(ds_);
  }
  // dQ = dS K: each warpgroup computes one part, half of the rows or of the columns.
  __device__ __forceinline__ void issue_dq(int iteration) {
    constexpr bool kSplitsRows = num_swizzle_atoms(kDim) == 1;
    bar_sync(ds_barrier(iteration, rows_.group ^ 1), 256);
    wgmma_fence();
    const u32 row = kSplitsRows ? rows_.group * 64 * kSwizzleRowBytes : 0;
    const u32 atom = kSplitsRows ? 0 : rows_.group * kAtomK;
    const u64 a = wgmma_descriptor(rows_.ds_address(iteration) + row, 16);
    const u64 b = wgmma_descriptor(rows_.not_hoisted(rows_.smem + kSmem.offset_k + atom), kAtomK);
#pragma unroll
    for (int i = 0; i < kTile.keys / 16; ++i)
      Dq::template ss<Major::mn>(dq_, wgmma_descriptor_advance(a, i % 4 * 32 + i / 4 * kAtomQ),
                                 wgmma_descriptor_advance(b, i * 2048), i != 0);
    wgmma_commit_group();
  }
  __device__ __forceinline__ void finish_dq() {
    wgmma_wait_group<0>();
    warpgroup_fence_operand(dq_);
  }

  // ---- elements
  // P and dS as fragments for dV and dK; dS also into shared memory, for dQ.
  __device__ __forceinline__ void make_ds(int iteration) {
    warpgroup_fence_operand(dp_);
    const u32 place = rows_.ds_write_address(iteration);
#pragma unroll
    for (int i = 0; i < kQueries / 16; ++i) {
      if (rows_.has_softcap()) rows_.multiply_by_softcap_gradient(dp_, s_, iteration, 2 * i);
      rows_.multiply_by_p(dp_, 2 * i, [&](int j, int r) -> float2 {
        return {s_[4 * j + 2 * r], s_[4 * j + 2 * r + 1]};
      });
      rows_.pack(p_frag_[i], s_, i);
      rows_.pack(ds_[i], dp_, i);
      stmatrix_x4_trans(place + i * 16 * kSwizzleRowBytes, ds_[i]);
    }
    fence_proxy_async();
  }
  // Named barriers. A warpgroup can arrive for an iteration before the other has waited for the one
  // before, so each stage has its own.
  static __device__ __forceinline__ int ds_barrier(int iteration, int group) {
    constexpr int kFirst = 1;
    return kFirst + Stage<kStagesDs>(iteration).index * 2 + group;
  }
  // dS is written, and this warpgroup's dQ has read the dS before it.
  __device__ __forceinline__ void arrive_ds(int iteration) {
    bar_arrive(ds_barrier(iteration, rows_.group), 256);
  }

  const Rows rows_;
  const Loader<kTile> loader_;
  Elements s_, dp_;
  Packed p_frag_, ds_;
  float dk_[kDim / 2], dv_[kDim / 2], dq_[4 * kDqGroups];
  u32 scales_;  // of dq_
};

}  // namespace headrace::cuda::sm90::bwd
