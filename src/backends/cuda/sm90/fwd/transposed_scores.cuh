// S of the k-blocks of a split, for the threads of a warpgroup.
#pragma once

#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/device/wgmma_few.cuh"
#include "backends/cuda/sm90/element.cuh"
#include "backends/cuda/sm90/fwd/transposed_items.cuh"

namespace headrace::cuda::sm90::fwd {

// The warpgroup computes them, of K and Q in shared memory.
template <Tile kTile, class Element>
class ComputedScores {
  using B = TransposedBarriers<kTile>;
  static constexpr TransposedSmem kSmem = transposed_smem(kTile);
  static constexpr int kDim = kTile.head_dim, kRows = kTile.transposed_rows;
  static constexpr int kKeyTiles = kTile.keys / 64, kRegisters = kRows / 2;
  static constexpr int kBarrierStages = stages_of_barrier(kTile);
  using Product = WgmmaM64Few<typename Element::Operand, kRows>;

 public:
  using Registers = float[kKeyTiles][kRegisters];

  __device__ __forceinline__ explicit ComputedScores(u32 smem) : smem_(smem) {}

  __device__ __forceinline__ void begin() const {
    mbarrier_wait(barrier(B::kQFull + q_.stage), q_.parity);
  }
  // Until the operands of the next k-block are there.
  __device__ __forceinline__ void wait() const {
    Ring<kTile.k_stages> ring = k_;
#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i, ring.next())
      if (i % kBarrierStages == 0)
        mbarrier_wait(barrier(B::kKFull + ring.stage / kBarrierStages), ring.parity);
  }
  __device__ __forceinline__ void issue(Registers& s) const {
    wgmma_fence();
    const u64 q = wgmma_descriptor(
        smem_ + static_cast<u32>(kSmem.offset_q + q_.stage * kDim * kRows * 2), 16);
    u64 k[kKeyTiles];
    Ring<kTile.k_stages> ring = k_;
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile, ring.next())
      k[tile] =
          wgmma_descriptor(smem_ + static_cast<u32>(kSmem.offset_k + ring.stage * kSmem.stage), 16);
#pragma unroll
    for (int atom = 0; atom < kDim / 64; ++atom)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int tile = 0; tile < kKeyTiles; ++tile)
          Product::template ss<Major::k, Major::k>(
              s[tile],
              wgmma_descriptor_advance(
                  k[tile], static_cast<u32>(i * 32 + atom * kStageKeys * kSwizzleRowBytes)),
              wgmma_descriptor_advance(q,
                                       static_cast<u32>(i * 32 + atom * kRows * kSwizzleRowBytes)),
              i != 0 || atom != 0);
    wgmma_commit_group();
  }
  // Beside kPending products that were issued later.
  template <int kPending>
  __device__ __forceinline__ void finish(Registers& s) const {
    wgmma_wait_group<kPending>();
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) warpgroup_fence_operand(s[tile]);
  }
  __device__ __forceinline__ void release() {
#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i, k_.next())
      if (i % kBarrierStages == 0 && threadIdx.x == 0)
        mbarrier_arrive(barrier(B::kKEmpty + k_.stage / kBarrierStages));
  }
  __device__ __forceinline__ void end() {
    if (threadIdx.x == 0) mbarrier_arrive(barrier(B::kQEmpty + q_.stage));
    q_.next();
  }

 private:
  __device__ __forceinline__ u32 barrier(int i) const {
    return smem_ + static_cast<u32>(kSmem.offset_barriers + 8 * i);
  }

  const u32 smem_;
  Ring<kTile.k_stages> k_;
  Ring<kTile.q_buffers> q_;
};

}  // namespace headrace::cuda::sm90::fwd
