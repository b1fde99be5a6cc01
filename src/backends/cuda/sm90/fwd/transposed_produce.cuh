// The warps of the transposed kernel that load: one K and Q, one V.
#pragma once

#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/sm90/fwd/load_stage.cuh"
#include "backends/cuda/sm90/fwd/tile_counter.cuh"
#include "backends/cuda/sm90/fwd/transposed_rows.cuh"

namespace headrace::cuda::sm90::fwd {

template <Tile kTile, class Element, bool kIsV>
class SplitProducer {
  using B = TransposedBarriers<kTile>;
  static constexpr TransposedSmem kSmem = transposed_smem(kTile);
  static constexpr int kStages = kIsV ? kTile.v_stages : kTile.k_stages;
  static constexpr int kAtoms = num_swizzle_atoms(kTile.head_dim);

 public:
  __device__ __forceinline__ SplitProducer(const Params& p, const Maps& maps, u32 smem)
      : p_(p), maps_(maps), smem_(smem), published_(smem), pages_(p) {}

  __device__ __forceinline__ void run() {
    if constexpr (kIsV)
      follow();
    else
      lead();
  }

 private:
  // K: takes items and publishes them, then once more those of which rows are computed again.
  __device__ __forceinline__ void lead() {
    SplitItem item{};
    SplitItems<kTile> items(p_, blockIdx.x == 0);
    TileCounter counter(p_, lane());
    int count = 0, number = static_cast<int>(blockIdx.x);
    const int grid = static_cast<int>(gridDim.x);
    while (items.find(number, item)) {
      if (item.has_keys())
        load_published({item, word(kSmem.offset_again, count), 0}, number, count++);
      else
        TransposedRows<kTile, Element>{p_, item}.store_empty(lane());
      if (count == kMaxItems) break;  // before it takes a number that other CTAs could have
      number = p_.tile_counter != nullptr ? counter.next() + grid : number + grid;
    }
    if (p_.tile_counter != nullptr) counter.close();
    published_.wait_for_all();
    for (int i = 0; i < count; ++i) {
      const u32 rows = load_shared(word(kSmem.offset_again, i));
      if (rows == 0) continue;
      number = static_cast<int>(load_shared(word(kSmem.offset_items, i)));
      items.find(number, item);
      load_published({item, word(kSmem.offset_again, i), rows}, number, i);
    }
    item.batch = kNoItem;
    published_.publish({item, 0, 0}, is_first_lane());
  }
  __device__ __forceinline__ void load_published(const PublishedItem& x, int number, int i) {
    if (is_first_lane()) store_shared(word(kSmem.offset_items, i), static_cast<u32>(number));
    published_.publish(x, is_first_lane());
    __syncwarp();
    load_q(x.item);
    load_blocks(x.item);
  }
  // V.
  __device__ __forceinline__ void follow() {
    for (;;) {
      const PublishedItem x = published_.read();
      __syncwarp();
      published_.release(x.loaded(), is_first_lane());
      if (x.item.batch == kNoItem) return;
      load_blocks(x.item);
    }
  }

  __device__ __forceinline__ u32 word(int offset, int i) const {
    return smem_ + static_cast<u32>(offset + 4 * i);
  }
  __device__ __forceinline__ u32 barrier(int i) const {
    return smem_ + static_cast<u32>(kSmem.offset_barriers + 8 * i);
  }
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) & 31; }
  static __device__ __forceinline__ bool is_first_lane() { return lane() == 0; }

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
  PublishedItems<kTile> published_;
  KeyPages pages_;
  Ring<kStages> ring_;
  Ring<kTile.q_buffers> q_;
};

}  // namespace headrace::cuda::sm90::fwd
