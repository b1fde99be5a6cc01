// The copying threads: one brings Q and K of every tile into shared memory, one V, one a bias. Each
// is as far ahead of the consumers as its stages allow, whatever the others wait for.
#pragma once

#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/sm90/fwd/scheduler.cuh"

namespace headrace::cuda::sm90 {

// What copying threads share: the announcements that they read.
template <Tile kTile>
class Producer {
 protected:
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr BarrierPlan kBarriers = barrier_plan(kTile);

  __device__ Producer(const Params& p, const Maps& maps, u32 smem)
      : p_(p), maps_(maps), smem_(smem) {}

  __device__ u32 barrier(int i) const { return smem_ + kSmem.offset_barriers + 8 * i; }

  // The words of a tile's announcement.
  struct Words {
    u32 address;
    __device__ int operator[](int i) const {
      return static_cast<int>(load_shared(address + 4 * i));
    }
  };
  // copy(words, key tiles [last, first), from right to left) of every tile with keys. The tile is
  // reported when its copies are issued, which have consumed its words. The consumers wait for the
  // copies, so they are not done with the tile before. One thread paces the scheduler: its next
  // ticket is taken when the tile before is begun.
  template <bool kPacesScheduler, class Copy>
  __device__ void for_each_tile(Copy copy) {
    for (;; tile_info_.next()) {
      mbarrier_wait(barrier(kBarriers.tile_info_full + tile_info_.stage), tile_info_.parity);
      const Words words{
          static_cast<u32>(smem_ + kSmem.offset_tile_info + 4 * tile_info_.stage * kTileInfoWords)};
      const int code = words[kWordTile];
      if (kPacesScheduler && p_.tile_counter != nullptr)
        mbarrier_arrive(released_behind(static_cast<u32>(code), barrier(kBarriers.tile_info_read)));
      if (code == kEnd) return;
      const int first = words[kWordBlockMax], last = words[kWordBlockMin];
      if (code >= 0 && first > last) {
        griddep_wait();
        copy(words, first, last);
      }
      mbarrier_arrive(released_behind(static_cast<u32>(code ^ first ^ last),
                                      barrier(kBarriers.tile_done + tile_info_.stage)));
    }
  }

  // Boxes of `rows` rows, one for each slab of columns, when the stage is free.
  template <int kAtoms>
  __device__ __forceinline__ void load(u32 to, int rows, const TensorMap& map, u64 policy, int full,
                                       int empty, u32 parity, int column, int row, int head,
                                       int batch) {
    mbarrier_wait(barrier(empty), parity ^ 1);
    mbarrier_arrive_expect_tx(barrier(full), kAtoms * rows * 128);
#pragma unroll
    for (int s = 0; s < kAtoms; ++s)
      cp_async_bulk_tensor_load(to + s * rows * 128, &map, barrier(full), policy,
                                column + s * kSwizzleAtomCols, row, head, batch);
  }

  const Params& p_;
  const Maps& maps_;
  const u32 smem_;
  Ring<kTileInfoStages> tile_info_;
};

template <Tile kTile>
class QkProducer : Producer<kTile> {
 public:
  __device__ QkProducer(const Params& p, const Maps& maps, u32 smem) : Base(p, maps, smem) {}

  __device__ void run() {
    Base::template for_each_tile<true>([&](const auto& words, int first, int last) {
      const int row_q = words[kWordRowQ] + words[kWordQuery], head = words[kWordHead];
      const int row_k = words[kWordRowK], kv_head = words[kWordKvHead];
      const int batch = words[kWordTensorBatch];
      // A Q with one buffer waits for the last S of the tile before; its first K need not.
      constexpr bool kQWaits = kTile.q_buffers == 1 && !kTile.q_in_registers;
      if (!kQWaits) load_q(row_q, head, batch);
      load_k(row_k + (first - 1) * kTile.keys, kv_head, batch);
      if (kQWaits) load_q(row_q, head, batch);
      for (int n = first - 2; n >= last; --n) load_k(row_k + n * kTile.keys, kv_head, batch);
    });
  }

 private:
  using Base = Producer<kTile>;
  using Base::barrier;
  using Base::kBarriers;
  using Base::kSmem;
  using Base::maps_;
  using Base::p_;
  using Base::smem_;

  __device__ __forceinline__ void load_q(int row, int head, int batch) {
#pragma unroll 1
    for (int w = 0; w < kTile.warpgroups; ++w) {
      const int i = q_.stage * kTile.warpgroups + w;
      const u32 full = barrier(kBarriers.q_full + i);
      const u32 to = smem_ + kSmem.offset_q + i * kSmem.q_group;
      // A box has group_queries * pack rows, which may be less than 64.
      const int atom_bytes = p_.group_queries * p_.pack * 128;
      mbarrier_wait(barrier(kBarriers.q_empty + i), q_.parity ^ 1);
      mbarrier_arrive_expect_tx(full, num_swizzle_atoms(kTile.head_dim) * atom_bytes);
#pragma unroll
      for (int s = 0; s < num_swizzle_atoms(kTile.head_dim); ++s)
        cp_async_bulk_tensor_load(to + s * kGroupRows * 128, &maps_.q, full, kEvictFirst,
                                  s * kSwizzleAtomCols, 0, row + w * p_.group_queries, head, batch);
    }
    q_.next();
  }
  __device__ __forceinline__ void load_k(int row, int kv_head, int batch) {
    Base::template load<num_swizzle_atoms(kTile.head_dim)>(
        smem_ + kSmem.offset_k + k_.stage * kSmem.k_stage, kTile.keys, maps_.k, kEvictLast,
        kBarriers.k_full + k_.stage, kBarriers.k_empty + k_.stage, k_.parity, 0, row, kv_head,
        batch);
    k_.next();
  }

  Ring<kKStages> k_;
  Ring<kTile.q_buffers> q_;
};

template <Tile kTile>
class VProducer : Producer<kTile> {
 public:
  __device__ VProducer(const Params& p, const Maps& maps, u32 smem) : Base(p, maps, smem) {}

  __device__ void run() {
    Base::template for_each_tile<false>([&](const auto& words, int first, int last) {
      const int row = words[kWordRowK], kv_head = words[kWordKvHead],
                batch = words[kWordTensorBatch];
      for (int n = first - 1; n >= last; --n, v_.next())
        Base::template load<num_swizzle_atoms(kTile.head_dim_v)>(
            Base::smem_ + Base::kSmem.offset_v + v_.stage * Base::kSmem.v_stage, kTile.keys,
            Base::maps_.v, kEvictLast, Base::kBarriers.v_full + v_.stage,
            Base::kBarriers.v_empty + v_.stage, v_.parity, 0, row + n * kTile.keys, kv_head, batch);
    });
  }

 private:
  using Base = Producer<kTile>;
  Ring<kTile.v_stages> v_;
};

// The bias of a step, for each warpgroup as soon as it has read the one before.
template <Tile kTile>
class BiasProducer : Producer<kTile> {
 public:
  __device__ BiasProducer(const Params& p, const Maps& maps, u32 smem) : Base(p, maps, smem) {}

  __device__ void run() {
    const ScoreOperand& bias = Base::p_.args.bias;
    Base::template for_each_tile<false>([&](const auto& words, int first, int last) {
      // Exact scores of a tile that is computed again read for themselves.
      if ((words[kWordTile] & kRecompute) != 0 || Base::p_.has_tma_bias == 0) return;
      const int row = words[kWordRowQ] + words[kWordQuery];
      const int head = bias.stride_head != 0 ? words[kWordHead] : 0;
      const int batch = bias.stride_batch != 0 ? words[kWordBatch] : 0;
      for (int n = first - 1; n >= last; --n, parity_ ^= 1)
        for (int group = 0; group < kTile.warpgroups; ++group) load(n, group, row, head, batch);
    });
  }

 private:
  using Base = Producer<kTile>;

  __device__ __forceinline__ void load(int n, int group, int row, int head, int batch) {
    Base::template load<num_swizzle_atoms(kTile.keys)>(
        Base::smem_ + Base::kSmem.offset_bias + group * Base::kSmem.bias_group, kGroupRows,
        Base::maps_.bias, kEvictNormal, Base::kBarriers.bias_full + group,
        Base::kBarriers.bias_empty + group, parity_, n * kTile.keys, row + group * kGroupRows, head,
        batch);
  }

  u32 parity_ = 0;
};

}  // namespace headrace::cuda::sm90
