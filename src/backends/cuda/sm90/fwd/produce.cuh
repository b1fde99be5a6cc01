// The copying thread: brings Q, K and V of every tile into shared memory.
#pragma once

#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/sm90/fwd/schedule.cuh"

namespace headrace::cuda::sm90 {

template <Tile kTile>
class Producer {
 public:
  __device__ Producer(const Params& p, const Maps& maps, u32 smem)
      : p_(p), maps_(maps), smem_(smem) {}

  // K and V have rings of their own; stage and parity run on from tile to tile. What the first step
  // of the next tile needs is fetched before the last V of this one.
  __device__ void run() {
    Work work = next_work();
    wait_for_callers_kernels(p_);
    while (work.code != kEnd) {
      load_first(work, nullptr);
      for (;;) {
        for (int n = work.first - 2; n >= work.last; --n) {
          load_k(work, n);
          load_v(work, n + 1);
        }
        // What follows a tile that is computed again may only be known when that is finished.
        const bool is_last_v_first = !kTile.is_flat || (work.code & kRedo) != 0;
        if (is_last_v_first) load_last_v(work);
        const Work next = next_work();
        if (next.code >= 0)
          load_first(next, is_last_v_first ? nullptr : &work);
        else if (!is_last_v_first)
          load_last_v(work);
        work = next;
        if (next.code < 0) break;
      }
      if (work.code == kDrain) work = next_work();
    }
  }

 private:
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr BarrierPlan kBarriers = barrier_plan(kTile);

  struct Work {
    int code = 0, first = 0, last = 0;  // key tiles [last, first), from right to left
    int row_q = 0, row_k = 0;           // first rows, counted in the tensor
    int head = 0, batch = 0;
    __device__ bool has_keys() const { return first > last; }
  };

  __device__ u32 barrier(int i) const { return smem_ + kSmem.offset_barriers + 8 * i; }

  __device__ Work next_work() {
    const int slot = entry_.stage;
    mbarrier_wait(barrier(kBarriers.entry_full + slot), entry_.parity);
    entry_.next();
    const auto word = [&](int i) {
      return static_cast<int>(
          load_shared(smem_ + kSmem.offset_entries + 4 * (slot * kEntryWords + i)));
    };
    Work work{.code = word(kWordCode)};
    if (work.code >= 0) {
      work.first = word(kWordFirst);
      work.last = word(kWordLast);
      work.row_q = word(kWordRowQ) + word(kWordQuery);
      work.row_k = word(kWordRowK);
      work.head = word(kWordHead);
      work.batch = p_.problem.is_ragged ? 0 : word(kWordBatch);
    }
    if (p_.counter != nullptr) mbarrier_arrive(barrier(kBarriers.entry_read));
    // Tiles without keys are finished without this thread: it reports that it has read them.
    mbarrier_arrive(barrier(kBarriers.tile_done + slot));
    return work;
  }

  // `before`: the tile whose last V is still to be brought. A Q with one buffer comes after it: it
  // waits for the last S of that tile.
  __device__ void load_first(const Work& work, const Work* before) {
    constexpr bool kQWaits = kTile.q_buffers == 1 && !kTile.q_in_registers;
    if (work.has_keys()) {
      if (!kQWaits) load_q(work);
      load_k(work, work.first - 1);
    }
    if (before != nullptr) load_last_v(*before);
    if (kQWaits && work.has_keys()) load_q(work);
  }
  __device__ void load_last_v(const Work& work) {
    if (work.has_keys()) load_v(work, work.last);
  }

  __device__ void load_q(const Work& work) {
#pragma unroll 1
    for (int w = 0; w < kTile.warpgroups; ++w) {
      const int i = q_.stage * kTile.warpgroups + w;
      const u32 full = barrier(kBarriers.q_full + i);
      const u32 to = smem_ + kSmem.offset_q + i * kSmem.q_group;
      // A box has group_queries * pack rows, which may be less than 64.
      const int slab_bytes = p_.group_queries * p_.pack * 128;
      mbarrier_wait(barrier(kBarriers.q_empty + i), q_.parity ^ 1);
      mbarrier_arrive_expect(full, num_slabs(kTile.head_dim) * slab_bytes);
#pragma unroll
      for (int s = 0; s < num_slabs(kTile.head_dim); ++s)
        tma_load(to + s * kGroupRows * 128, &maps_.q, full, kEvictFirst, s * kSlabColumns, 0,
                 work.row_q + w * p_.group_queries, work.head, work.batch);
    }
    q_.next();
  }

  __device__ void load_k(const Work& work, int n) {
    load_stage<num_slabs(kTile.head_dim)>(maps_.k, work, n, kBarriers.k_full, kBarriers.k_empty,
                                          kSmem.offset_k, kSmem.k_stage, k_);
  }
  __device__ void load_v(const Work& work, int n) {
    load_stage<num_slabs(kTile.head_dim_v)>(maps_.v, work, n, kBarriers.v_full, kBarriers.v_empty,
                                            kSmem.offset_v, kSmem.v_stage, v_);
  }

  template <int kSlabs>
  __device__ __forceinline__ void load_stage(const TensorMap& map, const Work& work, int n,
                                             int full_0, int empty_0, int offset, int stage_bytes,
                                             Ring<kStages>& ring) {
    const u32 full = barrier(full_0 + ring.stage);
    const u32 to = smem_ + offset + ring.stage * stage_bytes;
    mbarrier_wait(barrier(empty_0 + ring.stage), ring.parity ^ 1);
    mbarrier_arrive_expect(full, stage_bytes);
#pragma unroll
    for (int s = 0; s < kSlabs; ++s)
      tma_load(to + s * kTile.keys * 128, &map, full, kEvictLast, s * kSlabColumns,
               work.row_k + n * kTile.keys, work.head / p_.kv_divisor, work.batch);
    ring.next();
  }

  const Params& p_;
  const Maps& maps_;
  const u32 smem_;
  Ring<kEntries> entry_;
  Ring<kStages> k_, v_;
  Ring<kTile.q_buffers> q_;
};

// Brings the bias of a warpgroup, step by step: as soon as the one before has been read, however
// far the other warpgroup is.
template <Tile kTile>
class BiasProducer {
 public:
  __device__ BiasProducer(const Params& p, const Maps& maps, u32 smem, int group)
      : p_(p), maps_(maps), smem_(smem), group_(group) {}

  __device__ void run() {
    Ring<kEntries> entry;
    for (;; entry.next()) {
      mbarrier_wait(barrier(kBarriers.entry_full + entry.stage), entry.parity);
      const auto word = [&](int i) {
        return static_cast<int>(
            load_shared(smem_ + kSmem.offset_entries + 4 * (entry.stage * kEntryWords + i)));
      };
      const int code = word(kWordCode);
      if (code == kEnd) return;
      const int first = word(kWordFirst), last = word(kWordLast);
      const int row = word(kWordRowQ) + word(kWordQuery) + group_ * kGroupRows;
      const int head = p_.args.bias.stride_head != 0 ? word(kWordHead) : 0;
      const int batch = p_.args.bias.stride_batch != 0 ? word(kWordBatch) : 0;
      mbarrier_arrive(barrier(kBarriers.tile_done + entry.stage));
      // Exact scores of a tile that is computed again read for themselves.
      if (code < 0 || (code & kRedo) != 0 || p_.has_bias_boxes == 0) continue;
      for (int n = first - 1; n >= last; --n) load(n, row, head, batch);
    }
  }

 private:
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr BarrierPlan kBarriers = barrier_plan(kTile);

  __device__ u32 barrier(int i) const { return smem_ + kSmem.offset_barriers + 8 * i; }
  __device__ void load(int n, int row, int head, int batch) {
    const u32 full = barrier(kBarriers.bias_full + group_);
    mbarrier_wait(barrier(kBarriers.bias_empty + group_), parity_ ^ 1);
    mbarrier_arrive_expect(full, kSmem.bias_group);
#pragma unroll
    for (int s = 0; s < num_slabs(kTile.keys); ++s)
      tma_load(smem_ + kSmem.offset_bias + group_ * kSmem.bias_group + s * kGroupRows * 128,
               &maps_.bias, full, kEvictNormal, n * kTile.keys + s * kSlabColumns, row, head,
               batch);
    parity_ ^= 1;
  }

  const Params& p_;
  const Maps& maps_;
  const u32 smem_;
  const int group_;
  u32 parity_ = 0;
};

}  // namespace headrace::cuda::sm90
