// The producer warp: items for the CTA, their query rows, and K and V by TMA.
#pragma once

#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/sm90/decode/merge.cuh"

namespace headrace::cuda::sm90::decode {

// Shared memory of a kernel: addresses of barriers and blocks.
template <int kDim, int kRows>
struct Smem {
  static constexpr SmemPlan kPlan = smem_plan(kDim, kRows);
  u32 base;  // a multiple of 1024

  __device__ u32 block(int stage, int warp) const {
    return base + static_cast<u32>((stage * kConsumerWarps + warp) * kPlan.block);
  }
  __device__ u32 full(int stage, int warp) const { return ring(kPlan.full, stage, warp); }
  __device__ u32 empty(int stage, int warp) const { return ring(kPlan.empty, stage, warp); }
  __device__ u32 q(int slot) const {
    return base + static_cast<u32>(kPlan.q + slot * kRows * kPlan.q_pitch);
  }
  __device__ u32 item(int slot) const { return base + static_cast<u32>(kPlan.items + 4 * slot); }
  __device__ u32 item_full(int slot) const { return word(kPlan.item_full, slot); }
  __device__ u32 item_empty(int slot) const { return word(kPlan.item_empty, slot); }
  __device__ u32 written(int slot) const { return word(kPlan.written, slot); }
  __device__ u32 opened() const { return word(kPlan.opened, 0); }

 private:
  __device__ u32 word(int offset, int i) const { return base + static_cast<u32>(offset + 8 * i); }
  __device__ u32 ring(int offset, int stage, int warp) const {
    return word(offset, stage * kConsumerWarps + warp);
  }
};

// An item's place in shared memory: items take turns.
struct ItemSlot {
  int slot = 0;
  u32 parity = 0;
  __device__ __forceinline__ void next() {
    slot ^= 1;
    parity ^= slot == 0 ? 1u : 0u;
  }
};

// Whether any row sees a key of the block.
__device__ __forceinline__ bool is_visible_block(const Params& p, int first_key) {
  return first_key < p.work.end_key && first_key + kBlockKeys > p.work.first_key;
}

// Where a key lies: axes slot and page of the tensor maps.
struct KeyCoord {
  int slot, page;
};
__device__ __forceinline__ KeyCoord key_coord(const Item& item, int key) {
  return {key, item.batch_idx};
}

template <class V>
class Producer {
  static constexpr int kDim = V::kDim, kRows = V::kRows;

 public:
  __device__ Producer(const Params& p, const Maps& maps, Smem<kDim, kRows> smem, int lane)
      : p_(p), maps_(maps), smem_(smem), lane_(lane) {}

  __device__ void run() {
    for (int id = static_cast<int>(blockIdx.x); id < p_.work.num_items; id = next_item(id)) {
      const Item item = item_of(p_, id);
      announce(id);
      load_queries(item);
      if constexpr (V::kKind == ItemKind::split)
        load_split(item);
      else
        load_run(item);
      __syncwarp();
      slot_.next();
    }
    announce(-1);
  }

 private:
  __device__ __forceinline__ int next_item(int id) {
    if (p_.work.num_items <= gridDim.x) return id + static_cast<int>(gridDim.x);
    int next = 0;
    if (lane_ == 0) {
      mbarrier_wait(smem_.opened(), 0);
      next = static_cast<int>(gridDim.x) + atomicAdd(&p_.counters->next_item, 1);
    }
    return __shfl_sync(0xffffffffu, next, 0);
  }

  __device__ __forceinline__ void announce(int id) {
    mbarrier_wait(smem_.item_empty(slot_.slot), slot_.parity ^ 1);
    if (lane_ == 0) {
      store_shared(smem_.item(slot_.slot), static_cast<u32>(id));
      const u32 bytes = id < 0 ? 0 : static_cast<u32>(p_.rows * p_.problem.head_dim * 2);
      mbarrier_arrive_expect_tx(smem_.item_full(slot_.slot), bytes);
    }
    __syncwarp();
  }

  __device__ __forceinline__ void load_queries(const Item& item) {
    if (lane_ >= p_.rows) return;
    const int q_idx = lane_ / p_.group, head = item.kv_head * p_.group + lane_ - q_idx * p_.group;
    const auto* q = static_cast<const typename V::Element::Stored*>(p_.args.q.data) +
                    row_offset(p_.args.q, item.batch_idx, q_idx, head);
    cp_async_bulk_load(
        smem_.q(slot_.slot) + static_cast<u32>(lane_ * smem_plan(kDim, kRows).q_pitch), q,
        static_cast<u32>(p_.problem.head_dim * 2), smem_.item_full(slot_.slot));
  }

  // Lane i feeds the ring of consumer warp i: its splits of the run's groups.
  __device__ __forceinline__ void load_run(const Item& item) {
    if (lane_ >= kConsumerWarps) return;
    const int first = item.first * p_.work.run_groups * kGroupKeys + lane_ * kSplitKeys;
    for (int group = 0; group < p_.work.run_groups; ++group)
      for (int block = 0; block < kSplitBlocks; ++block) {
        const int key = first + group * kGroupKeys + block * kBlockKeys;
        if (!is_visible_block(p_, key)) continue;
        load_block(maps_.k, p_.boxes_k, item, key);
        load_block(maps_.v, p_.boxes_v, item, key);
      }
  }
  // All warps read all blocks: those of K lie in the rings of the first warps, those of V behind.
  __device__ __forceinline__ void load_split(const Item& item) {
    if (lane_ >= 2 * kSplitBlocks) return;
    const int key = item.first * kSplitKeys + lane_ % kSplitBlocks * kBlockKeys;
    const bool is_v = lane_ >= kSplitBlocks;
    if (is_visible_block(p_, key)) {
      load_block(is_v ? maps_.v : maps_.k, is_v ? p_.boxes_v : p_.boxes_k, item, key);
    } else {
      wait_for_space();
      mbarrier_arrive(smem_.full(ring_.stage, lane_));
      ring_.next();
    }
  }

  __device__ __forceinline__ void wait_for_space() const {
    mbarrier_wait(smem_.empty(ring_.stage, lane_), ring_.parity ^ 1);
  }
  // Slots beyond the tensor arrive as zeros; the bytes of the whole box count.
  __device__ __forceinline__ void load_block(const TensorMap& map, int boxes, const Item& item,
                                             int key) {
    const KeyCoord at = key_coord(item, key);
    const u32 full = smem_.full(ring_.stage, lane_), to = smem_.block(ring_.stage, lane_);
    wait_for_space();
    mbarrier_arrive_expect_tx(full, smem_plan(kDim, kRows).block);
    for (int box = 0; box < boxes; ++box)
      cp_async_bulk_tensor_load(to + static_cast<u32>(box * kBlockKeys * kSwizzleRowBytes), &map,
                                full, kEvictNormal, box * kSwizzleAtomCols, at.slot, 0,
                                item.kv_head, at.page);
    ring_.next();
  }

  const Params& p_;
  const Maps& maps_;
  const Smem<kDim, kRows> smem_;
  const int lane_;
  ItemSlot slot_;
  Ring<smem_plan(kDim, kRows).stages> ring_;  // the lane's
};

}  // namespace headrace::cuda::sm90::decode
