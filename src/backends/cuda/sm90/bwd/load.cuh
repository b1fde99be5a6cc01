// What the copy engine brings: K and V once, and Q, dO, lse and D of every block of queries. One of
// the computing threads asks for it, steps ahead: a copying warpgroup would need registers that the
// sums of dK and dV have.
#pragma once

#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/sm90/bwd/walk.cuh"
#include "backends/cuda/sm90/shared.cuh"

namespace headrace::cuda::sm90::bwd {

template <Tile kTile>
class Loader {
 public:
  __device__ __forceinline__ Loader(const Params& p, const Maps& maps, u32 smem,
                                    const KeyBlock& keys)
      : p_(p), maps_(maps), smem_(smem), keys_(keys) {}

  // Before the first step.
  __device__ __forceinline__ void start(const Walk<kTile>& walk) const {
    load_keys(maps_.k, kSmem.offset_k, kBarriers.k_full);
    load_q(0, walk);
    load_keys(maps_.v, kSmem.offset_v, kBarriers.v_full);
    load_dout(0, walk);
    load_q(1, walk);
    load_dout(1, walk);
  }
  // In step `step`: everyone is done with dQ of the step two before it.
  __device__ __forceinline__ void ahead_q(int step, const Walk<kTile>& walk) const {
    load_q(step + 2, walk);
  }
  // At its end: everyone is done with dV of the step before it.
  __device__ __forceinline__ void ahead_dout(int step, const Walk<kTile>& walk) const {
    load_dout(step + 2, walk);
  }

 private:
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr BarrierPlan kBarriers = barrier_plan();

  __device__ __forceinline__ u32 barrier(int i) const {
    return smem_ + kSmem.offset_barriers + 8 * i;
  }
  __device__ __forceinline__ int tensor_batch() const {
    return p_.rows.problem.is_ragged ? 0 : keys_.batch_idx;
  }

  __device__ __forceinline__ void load_keys(const TensorMap& map, int offset, int full) const {
    mbarrier_arrive_expect(barrier(full), kSmem.k);
#pragma unroll
    for (int s = 0; s < num_slabs(kTile); ++s)
      tma_load(smem_ + offset + s * kKeys * kRowBytes, &map, barrier(full), kEvictFirst,
               s * kSlabColumns, keys_.row_k + keys_.first_key, keys_.kv_head, tensor_batch());
  }

  __device__ __forceinline__ void load_q(int step, const Walk<kTile>& walk) const {
    const int i = Stage<kStagesQ>(step).index;
    load_queries(walk.at(step), maps_.q, p_.rows.lse, kBarriers.q_full + i,
                 kSmem.offset_q + i * kSmem.q, kSmem.offset_lse + i * kSmem.stat);
  }
  __device__ __forceinline__ void load_dout(int step, const Walk<kTile>& walk) const {
    const int i = Stage<kStagesDout>(step).index;
    load_queries(walk.at(step), maps_.dout, p_.rows.d, kBarriers.dout_full + i,
                 kSmem.offset_dout + i * kSmem.q, kSmem.offset_d + i * kSmem.stat);
  }

  __device__ __forceinline__ void load_queries(const Step& step, const TensorMap& map,
                                               const float* stats, int full, int to,
                                               int stat_to) const {
    if (!step.exists) return;
    const int head = keys_.kv_head * p_.group + step.head, query = step.block * kTile.queries;
    mbarrier_arrive_expect(barrier(full), kSmem.q + kSmem.stat);
#pragma unroll
    for (int s = 0; s < num_slabs(kTile); ++s)
      tma_load(smem_ + to + s * kTile.queries * kRowBytes, &map, barrier(full), kEvictLast,
               s * kSlabColumns, keys_.row_q + query, head, tensor_batch());
    const Problem& problem = p_.rows.problem;
    const std::int64_t row = first_padded_row(problem, keys_.batch_idx, keys_.row_q) + query;
    bulk_load(smem_ + stat_to, stats + padded_index(problem, head, row), kSmem.stat, barrier(full));
  }

  const Params& p_;
  const Maps& maps_;
  const u32 smem_;
  const KeyBlock& keys_;
};

}  // namespace headrace::cuda::sm90::bwd
