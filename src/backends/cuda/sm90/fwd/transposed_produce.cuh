// The warps of the transposed kernel that load: one K and Q, one V.
#pragma once

#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/sm90/fwd/load_stage.cuh"
#include "backends/cuda/sm90/fwd/tile_counter.cuh"
#include "backends/cuda/sm90/fwd/transposed_items.cuh"

namespace headrace::cuda::sm90::fwd {

template <Tile kTile, bool kIsV>
class SplitProducer {
  using B = TransposedBarriers<kTile>;
  static constexpr TransposedSmem kSmem = transposed_smem(kTile);
  static constexpr int kStages = kIsV ? kTile.v_stages : kTile.k_stages;
  static constexpr int kAtoms = num_swizzle_atoms(kTile.head_dim);

 public:
  __device__ __forceinline__ SplitProducer(const Params& p, const Maps& maps, u32 smem)
      : p_(p), maps_(maps), smem_(smem), pages_(p) {}

  __device__ __forceinline__ void run() {
    const ItemList list = item_list<kTile>(smem_);
    TileCounter counter(p_, static_cast<int>(threadIdx.x) & 31);
    const auto next = [&](int k) {
      if constexpr (kIsV) return list.get(k);
      int item = k == kMaxItems - 1 ? kNoItem : static_cast<int>(blockIdx.x);
      if (k > 0 && k < kMaxItems - 1)
        item = static_cast<int>(gridDim.x) +
               (p_.tile_counter != nullptr ? counter.next() : last_item_);
      last_item_ = item;
      if (is_first_lane()) list.add(k, item);
      return item;
    };
    for_each_item<kTile>(p_, smem_, false, next, [&](const SplitItem& item, u32, u32) {
      if (!item.has_keys()) return false;
      if (!kIsV) load_q(item);
      load_blocks(item);
      return false;
    });
    if (!kIsV && p_.tile_counter != nullptr) counter.close();
  }

 private:
  __device__ __forceinline__ u32 barrier(int i) const {
    return smem_ + static_cast<u32>(kSmem.offset_barriers + 8 * i);
  }
  static __device__ __forceinline__ bool is_first_lane() { return (threadIdx.x & 31) == 0; }

  __device__ __forceinline__ void load_q(const SplitItem& item) {
    if (is_first_lane()) {
      constexpr int kAtomBytes = kTile.transposed_rows * kSwizzleRowBytes;
      const int box_bytes = p_.tiles.group_queries * p_.tiles.pack * kSwizzleRowBytes;
      const u32 to = smem_ + static_cast<u32>(kSmem.offset_q + q_.stage * kAtoms * kAtomBytes);
      const u32 full = barrier(B::kQFull + q_.stage);
      mbarrier_wait(barrier(B::kQEmpty + q_.stage), q_.parity ^ 1);
      mbarrier_arrive_expect_tx(full, kAtoms * box_bytes);
#pragma unroll
      for (int s = 0; s < kAtoms; ++s)
        cp_async_bulk_tensor_load(to + s * kAtomBytes, &maps_.q, full, kEvictFirst,
                                  s * kSwizzleAtomCols, 0, item.row_q, item.head,
                                  p_.sizes.is_ragged != 0 ? 0 : item.batch);
    }
    q_.next();
  }
  // From right to left, each k-block from left to right.
  __device__ __forceinline__ void load_blocks(const SplitItem& item) {
    constexpr int kStagesOfBlock = kTile.keys / kStageKeys;
    for (int n = item.block_max - 1; n >= item.block_min; --n) {
#pragma unroll 1
      for (int i = 0; i < kStagesOfBlock; ++i, ring_.next())
        load_stage_of(item, n * kTile.keys + i * kStageKeys);
    }
  }
  // Boxes of box_keys x 64 columns, by a lane each: neighbouring lanes have neighbouring columns,
  // which the memory has in one place.
  __device__ __forceinline__ void load_stage_of(const SplitItem& item, int first_key) {
    const bool has_pages = p_.pages.block_table != nullptr;
    const int lane = static_cast<int>(threadIdx.x) & 31, atom = lane % kAtoms;
    const int kv_head = item.head / p_.tiles.kv_divisor;
    const u32 full = barrier((kIsV ? B::kVFull : B::kKFull) + ring_.stage);
    const u32 empty = barrier((kIsV ? B::kVEmpty : B::kKEmpty) + ring_.stage);
    const u32 to =
        smem_ + static_cast<u32>((kIsV ? kSmem.offset_v : kSmem.offset_k) +
                                 ring_.stage * kSmem.stage + atom * kStageKeys * kSwizzleRowBytes);
    bool is_empty = false;
#pragma unroll 1
    for (int i = lane / kAtoms * p_.box_keys; i < kStageKeys; i += 32 / kAtoms * p_.box_keys) {
      const int key = first_key + i;
      const int row = has_pages ? pages_.slot_of(key) : item.row_k + key;
      const int batch = has_pages ? pages_.page_of(item.batch, item.row_k, key, item.seqlen_k)
                                  : (p_.sizes.is_ragged != 0 ? 0 : item.batch);
      if (!is_empty) {
        mbarrier_wait(empty, ring_.parity ^ 1);
        // Boxes may complete before the arrival, without which the phase does not end.
        if (lane == 0) mbarrier_arrive_expect_tx(full, kAtoms * kStageKeys * kSwizzleRowBytes);
        is_empty = true;
      }
      cp_async_bulk_tensor_load(to + static_cast<u32>(i * kSwizzleRowBytes),
                                kIsV ? &maps_.v : &maps_.k, full, kEvictFirst,
                                atom * kSwizzleAtomCols, row, kv_head, batch);
    }
    __syncwarp();
  }

  const Params& p_;
  const Maps& maps_;
  const u32 smem_;
  KeyPages pages_;
  int last_item_ = 0;
  Ring<kStages> ring_;
  Ring<kTile.q_buffers> q_;
};

}  // namespace headrace::cuda::sm90::fwd
