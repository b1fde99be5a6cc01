// TMA loads: K and V once, and Q, dO, lse and D of every query block. Issued by one thread.
#pragma once

#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/sm90/bwd/block_iterator.cuh"
#include "backends/cuda/sm90/shared.cuh"

namespace headrace::cuda::sm90::bwd {

template <Tile kTile>
class Loader {
 public:
  using StageQ = Stage<stages_q(kTile)>;
  using StageDout = Stage<stages_dout(kTile)>;

  __device__ __forceinline__ Loader(const Params& p, const Maps& maps, u32 smem,
                                    const KeyBlock& keys)
      : p_(p), maps_(maps), smem_(smem), keys_(keys) {}

  __device__ __forceinline__ void load_k() const {
    load_keys<num_swizzle_atoms(kTile.head_dim)>(maps_.k, kSmem.offset_k, kBarriers.k_full);
  }
  __device__ __forceinline__ void load_v() const {
    load_keys<num_swizzle_atoms(kTile.head_dim_v)>(maps_.v, kSmem.offset_v, kBarriers.v_full);
  }
  // Q and lse of an iteration, into its stage, which is empty.
  __device__ __forceinline__ void load_q(int iteration, const QueryBlock& at) const {
    const int i = StageQ(iteration).index;
    load_queries<num_swizzle_atoms(kTile.head_dim)>(at, maps_.q, p_.rows.lse, kBarriers.q_full + i,
                                                    kSmem.offset_q + i * kSmem.q,
                                                    kSmem.offset_lse + i * kSmem.stat);
  }
  // dO and D, as above.
  __device__ __forceinline__ void load_dout(int iteration, const QueryBlock& at) const {
    const int i = StageDout(iteration).index;
    load_queries<num_swizzle_atoms(kTile.head_dim_v)>(
        at, maps_.dout, p_.rows.delta, kBarriers.dout_full + i, kSmem.offset_dout + i * kSmem.dout,
        kSmem.offset_d + i * kSmem.stat);
  }

 private:
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr BarrierPlan kBarriers = barrier_plan(kTile);

  __device__ __forceinline__ u32 barrier(int i) const {
    return smem_ + kSmem.offset_barriers + 8 * i;
  }
  __device__ __forceinline__ int tensor_batch() const {
    return p_.blocks.sizes.is_ragged ? 0 : keys_.batch_idx;
  }

  template <int kAtoms>
  __device__ __forceinline__ void load_keys(const TensorMap& map, int offset, int full) const {
    constexpr int kAtom = kTile.keys * kSwizzleRowBytes;
    mbarrier_arrive_expect_tx(barrier(full), kAtoms * kAtom);
#pragma unroll
    for (int s = 0; s < kAtoms; ++s)
      cp_async_bulk_tensor_load(smem_ + offset + s * kAtom, &map, barrier(full), kEvictFirst,
                                s * kSwizzleAtomCols, keys_.row_k + keys_.first_key, keys_.kv_head,
                                tensor_batch());
  }

  template <int kAtoms>
  __device__ __forceinline__ void load_queries(const QueryBlock& at, const TensorMap& map,
                                               const float* stats, int full, int to,
                                               int stat_to) const {
    constexpr int kAtom = kTile.queries * kSwizzleRowBytes;
    mbarrier_arrive_expect_tx(barrier(full), kAtoms * kAtom + kSmem.stat);
#pragma unroll
    for (int s = 0; s < kAtoms; ++s)
      cp_async_bulk_tensor_load(smem_ + to + s * kAtom, &map, barrier(full), kEvictLast,
                                s * kSwizzleAtomCols, keys_.row_q + at.block * kTile.queries,
                                keys_.kv_head * p_.blocks.group + at.head, tensor_batch());
    cp_async_bulk_load(smem_ + stat_to, stats + std::int64_t{at.padded} * kTile.queries, kSmem.stat,
                       barrier(full));
  }

  const Params& p_;
  const Maps& maps_;
  const u32 smem_;
  const KeyBlock& keys_;
};

}  // namespace headrace::cuda::sm90::bwd
