// The producer warps: items for the CTA, their query rows, and K and V by TMA.
#pragma once

#include "backends/cuda/sm90/decode/batch.cuh"
#include "backends/cuda/sm90/decode/counters.cuh"
#include "backends/cuda/sm90/decode/fragments.cuh"

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
  __device__ u32 item(int slot) const {
    return base + static_cast<u32>(kPlan.items + kItemBytes * slot);
  }
  __device__ u32 batch() const { return base + static_cast<u32>(kPlan.batch); }
  __device__ u32 id(int slot) const { return base + static_cast<u32>(kPlan.ids + 4 * slot); }
  __device__ u32 run_log2() const { return base + static_cast<u32>(kPlan.run_log2); }
  __device__ u32 announced(int slot) const { return word(kPlan.announced, slot); }
  __device__ u32 item_full(int slot) const { return word(kPlan.item_full, slot); }
  __device__ u32 item_empty(int slot) const { return word(kPlan.item_empty, slot); }
  __device__ u32 written(int slot) const { return word(kPlan.written, slot); }
  __device__ u32 opened() const { return word(kPlan.opened, 0); }
  __device__ u32 merge_pairs() const { return base + static_cast<u32>(kPlan.merge_pairs); }

 private:
  __device__ u32 word(int offset, int i) const { return base + static_cast<u32>(offset + 8 * i); }
  __device__ u32 ring(int offset, int stage, int warp) const {
    return word(offset, stage * kConsumerWarps + warp);
  }
};

// The slot of an item in shared memory: items alternate between two.
struct ItemSlot {
  int slot = 0;
  u32 parity = 0;
  __device__ __forceinline__ void next() {
    slot ^= 1;
    parity ^= slot == 0 ? 1u : 0u;
  }
};

// The split of a group that a warp has: in every other item that of a warp in the other half, so
// that short heads, which have few splits, keep all warps busy.
__device__ __forceinline__ int split_of(int warp, int slot) {
  return warp ^ slot * (kConsumerWarps / 2);
}

// Where keys lie: axes page and slot of the tensor maps.
class KeyPlace {
 public:
  __device__ explicit KeyPlace(const Params& p) : p_(p), table_(p.pages) {}

  // An entry of the table as it is: a comparison here would wait for it.
  __device__ __forceinline__ int page(const Item& item, int key) const {
    if (table_.block_table == nullptr) return p_.used_keys.has_ragged_keys ? 0 : item.batch_idx;
    return table_.page_of(item.batch_idx, item.row_k, key);
  }
  // A page that is about to be used. TMA fills zeros for one that does not exist.
  __device__ __forceinline__ void check(const Item& item, int page) {
    if (table_.block_table != nullptr &&
        static_cast<unsigned>(page) >= static_cast<unsigned>(table_.num_pages))
      bad_entry_ = item.batch_idx;
  }
  __device__ __forceinline__ int slot(const Item& item, int key) const {
    if (table_.block_table == nullptr) return item.row_k + key;
    return key - table_.by_page_size.divide(key) * table_.page_size;
  }
  __device__ void report() const {
    if (bad_entry_ >= 0)
      report_length_error(p_.lengths.error_word, LengthError::block_table, bad_entry_);
  }

 private:
  const Params& p_;
  const PageTable& table_;
  int bad_entry_ = -1;  // a sequence with such a page
};

// Loads blocks of 16 keys by TMA. Dims 64 and up lie kHalf bytes behind the others; boxes of all
// columns put them right behind.
inline constexpr int kHalfOfBlock = kBlockKeys * kSwizzleRowBytes;
template <int kDim, int kHalf = kHalfOfBlock>
class BlockLoader {
 public:
  __device__ BlockLoader(const Params& p, const Maps& maps, u64 policy)
      : p_(p), maps_(maps), policy_(policy), place_(p) {}

  __device__ bool has_small_boxes() const { return p_.box_keys < kBlockKeys; }
  __device__ int page(const Item& item, int key) const { return place_.page(item, key); }
  __device__ void report() const { place_.report(); }

  // K or V of a block in one page. `full` completes when it has arrived. Slots beyond the tensor
  // arrive as zeros; the bytes of the whole box count.
  __device__ __forceinline__ void load(bool is_v, const Item& item, int key, int page, u32 to,
                                       u32 full) {
    const TensorMap& map = is_v ? maps_.v : maps_.k;
    place_.check(item, page);
    mbarrier_arrive_expect_tx(full, kBytes);
    const int slot = place_.slot(item, key);
    load_box(map, full, to, 0, slot, item.kv_head, page);
    const bool has_whole_boxes = kHalf == kHalfOfBlock && (is_v ? p_.has_whole_v : p_.has_whole_k);
    if (kDim > kSwizzleAtomCols && !has_whole_boxes)
      load_box(map, full, to + kHalf, 1, slot, item.kv_head, page);
  }
  // For page sizes that are not a multiple of 16: a block may span several pages. Keys beyond the
  // sequence have no page and arrive as zeros.
  __device__ __forceinline__ void load_small_boxes(bool is_v, const Item& item, int first_key,
                                                   u32 to, u32 full) {
    const TensorMap& map = is_v ? maps_.v : maps_.k;
    mbarrier_arrive_expect_tx(full, kBytes);
#pragma unroll 1
    for (int i = 0; i < kBlockKeys; i += p_.box_keys) {
      const int key = first_key + i;
      const bool is_read = key < item.end_key;
      const int page = is_read ? place_.page(item, key) : p_.pages.num_pages;
      if (is_read) place_.check(item, page);
#pragma unroll 1
      for (int half = 0; half < kDim / kSwizzleAtomCols; ++half)
        load_box(map, full, to + static_cast<u32>(half * kHalf + i * kSwizzleRowBytes), half,
                 place_.slot(item, key), item.kv_head, page);
    }
  }

 private:
  static constexpr u32 kBytes = kBlockKeys * kDim * 2;
  __device__ __forceinline__ void load_box(const TensorMap& map, u32 full, u32 to, int box,
                                           int slot, int kv_head, int page) const {
    cp_async_bulk_tensor_load(to, &map, full, policy_, box * kSwizzleAtomCols, slot, 0, kv_head,
                              page);
  }

  const Params& p_;
  const Maps& maps_;
  const u64 policy_;  // of L2
  KeyPlace place_;
};

// Whether a consumer warp goes through the code of a block, or through that of merging.
__device__ __forceinline__ bool rehearses_a_block(int warp) { return warp >= kConsumerWarps / 2; }
// The rehearsal is an item before the first one. Nothing is loaded for it, and nothing of it is
// stored: the consumers go through their code, which comes from memory, while the batch is counted
// and the first keys are on their way. It takes the first item slot, and two stages of the rings
// of those that go through a block.
// By the thread that has initialised the barriers of slot 0, before the CTA's barrier: the second
// producer warp waits for the next announcement of that slot.
template <class Smem>
__device__ __forceinline__ void announce_rehearsal(const Params& p, const Smem& smem) {
  store_item(smem.item(0), {.first = 0,
                            .end = 1,
                            .seqlen_q = static_cast<int>(p.sizes.seqlen_q),
                            .seqlen_k = kOpen,
                            .left = -kOpen,
                            .right = kOpen,
                            .num_groups = 1,
                            .num_items = 1,
                            .slot = Item::kRehearsal});
  mbarrier_arrive(smem.announced(0));
  mbarrier_arrive(smem.item_full(0));
  mbarrier_arrive(smem.item_empty(0));  // for the second producer warp
}

// The first producer warp takes items from the counter and announces them; the other one reads the
// item's number from shared memory. Each loads K and V for its share of the consumer warps, one
// lane for each consumer warp.
template <class V>
class Producer {
  static constexpr int kDim = V::kDim, kRows = V::kRows;
  static constexpr SmemPlan kPlan = smem_plan(kDim, kRows);

 public:
  __device__ Producer(const Params& p, const Maps& maps, Smem<kDim, kRows> smem, const Batch& batch,
                      int producer, int lane)
      : p_(p),
        smem_(smem),
        batch_(batch),
        is_first_(producer == 0),
        lane_(lane),
        warp_(producer * kFedWarps + lane),
        blocks_(p, maps, batch.policy<kDim>()) {
    slot_.next();
    if (rehearses_a_block(warp_)) ring_.next(), ring_.next();
  }

  // The first item of a CTA is blockIdx.x and needs no counter. The next item is taken before the
  // last loads of the current one are issued, which hides the latency of the atomic. Taken earlier,
  // the last items would go to CTAs that still have work. Of an item of several groups the last
  // block waits until the next one is found, announced, and its first page numbers asked for.
  __device__ void run() {
    // The second warp knows the number of the first item.
    if (is_first_ && lane_ == 0) {
      mbarrier_arrive(smem_.announced(slot_.slot));
      store_shared(smem_.run_log2(), static_cast<u32>(batch_.run_log2()));
    }
    Item item{.batch_idx = -1, .first = 0, .end = 0};
    SplitPages pages;  // of the first split, then of the last
    ItemSlot at;       // of the item
    for (int id = static_cast<int>(blockIdx.x);; id = next_item(id)) {
      const Item next = find(id);
      if (is_first_) announce(next);
      SplitPages next_pages;
      read_first_pages(next, next_pages);
      const bool is_later = item.batch_idx >= 0;
      if (is_later) {
        if (lane_ < kFedWarps) load_last_block(item, pages, at);
        __syncwarp();
        if (!is_first_ && lane_ == 0) mbarrier_arrive(smem_.item_empty(at.slot));
      }
      if (next.batch_idx < 0) break;
      item = next;
      pages = next_pages;
      at = slot_;
      if (lane_ < kFedWarps) load_run(item, pages, is_later);
      if (!is_later) take_item();
      __syncwarp();
      slot_.next();
    }
    blocks_.report();
  }

 private:
  struct SplitPages {
    int of_block[kSplitBlocks];
  };

  // batch_idx -1 behind the last one.
  __device__ __forceinline__ Item find(int id) const {
    if (id >= batch_.num_items()) return {.batch_idx = -1};
    return batch_.find(id, lane_);
  }
  __device__ __forceinline__ bool takes_items() const {
    return is_first_ && batch_.num_items() > static_cast<int>(gridDim.x);
  }
  __device__ __forceinline__ void take_item() {
    if (lane_ != 0 || !takes_items()) return;
    mbarrier_wait(smem_.opened(), 0);
    taken_ = counters_of(p_).take_next();
  }
  // The item behind `id`, of slot_. Its number is overwritten when the second warp has arrived at
  // item_empty of the item before it, behind reading it.
  __device__ __forceinline__ int next_item(int id) const {
    if (!is_first_) {
      mbarrier_wait(smem_.announced(slot_.slot), slot_.parity);
      return static_cast<int>(load_shared(smem_.id(slot_.slot)));
    }
    const int next = takes_items() ? __shfl_sync(0xffffffffu, taken_, 0) : id;
    if (lane_ == 0) {
      store_shared(smem_.id(slot_.slot), static_cast<u32>(static_cast<int>(gridDim.x) + next));
      mbarrier_arrive(smem_.announced(slot_.slot));
    }
    return static_cast<int>(gridDim.x) + next;
  }

  // Stores the item of slot_ for the other warps and loads its queries.
  __device__ __forceinline__ void announce(const Item& item) const {
    mbarrier_wait(smem_.item_empty(slot_.slot), slot_.parity ^ 1);
    const int rows = item.batch_idx < 0 ? 0 : item.rows(p_);
    if (lane_ == 0) {
      store_item(smem_.item(slot_.slot), item);
      mbarrier_arrive_expect_tx(smem_.item_full(slot_.slot),
                                static_cast<u32>(rows * p_.sizes.head_dim * 2));
    }
    __syncwarp();
    if (lane_ < rows) load_query(item);
  }
  __device__ __forceinline__ void load_query(const Item& item) const {
    const int q_idx = p_.by_group.divide(lane_),
              head = item.kv_head * p_.group + lane_ - q_idx * p_.group;
    const auto* q = static_cast<const typename V::Element::Stored*>(p_.q.data) +
                    row_offset(p_.q, item.batch_idx, item.row_q + q_idx, head);
    cp_async_bulk_load(smem_.q(slot_.slot) + static_cast<u32>(lane_ * kPlan.q_pitch), q,
                       static_cast<u32>(p_.sizes.head_dim * 2), smem_.item_full(slot_.slot));
  }

  // The first key of the lane's splits of an item.
  __device__ __forceinline__ int first_key(const Item& item, const ItemSlot& at) const {
    return item.first * kGroupKeys + split_of(warp_, at.slot) * kSplitKeys;
  }
  __device__ __forceinline__ void read_first_pages(const Item& item, SplitPages& pages) const {
    if (item.batch_idx >= 0 && lane_ < kFedWarps && !blocks_.has_small_boxes())
      read_pages(item, first_key(item, slot_), pages);
  }

  // A lane loads the splits of a consumer warp, one of each group of the run, into the warp's ring,
  // but for the last block of several groups. The page numbers of a split are read while the split
  // before it is loaded; `pages` become those of the last split.
  __device__ __forceinline__ void load_run(const Item& item, SplitPages& pages, bool takes) {
    const int first = first_key(item, slot_), num_groups = item.end - item.first;
    if (blocks_.has_small_boxes()) {
      if (takes) take_item();
#pragma unroll 1
      for (int i = 0; i < num_groups * kSplitBlocks; ++i) {
        const int key = first + i / kSplitBlocks * kGroupKeys + i % kSplitBlocks * kBlockKeys;
        if (!item.sees_block(key)) continue;
        for (const bool is_v : {false, true}) {
          wait_for_space();
          blocks_.load_small_boxes(is_v, item, key, block(), full());
          ring_.next();
        }
      }
      return;
    }
#pragma unroll 1
    for (int group = 0;; ++group) {
      const int split = first + group * kGroupKeys;
      const bool is_last = group + 1 == num_groups;
      SplitPages next;
      if (!is_last)
        read_pages(item, split + kGroupKeys, next);
      else if (takes)
        take_item();
#pragma unroll
      for (int i = 0; i < kSplitBlocks - 1; ++i)
        load_block(item, split + i * kBlockKeys, pages.of_block[i]);
      if (is_last && num_groups > 1) return;
      load_block(item, split + (kSplitBlocks - 1) * kBlockKeys, pages.of_block[kSplitBlocks - 1]);
      if (is_last) return;
      pages = next;
    }
  }
  __device__ __forceinline__ void load_last_block(const Item& item, const SplitPages& pages,
                                                  const ItemSlot& at) {
    const int num_groups = item.end - item.first;
    if (num_groups == 1 || blocks_.has_small_boxes()) return;
    const int split = first_key(item, at) + (num_groups - 1) * kGroupKeys;
    load_block(item, split + (kSplitBlocks - 1) * kBlockKeys, pages.of_block[kSplitBlocks - 1]);
  }
  // K and V of a block that a row sees.
  __device__ __forceinline__ void load_block(const Item& item, int key, int page) {
    if (!item.sees_block(key)) return;
#pragma unroll
    for (int is_v = 0; is_v < 2; ++is_v) {
      wait_for_space();
      blocks_.load(is_v != 0, item, key, page, block(), full());
      ring_.next();
    }
  }
  // The page numbers of a split's blocks. Entries for blocks that no row sees are not read.
  __device__ __forceinline__ void read_pages(const Item& item, int first_key,
                                             SplitPages& pages) const {
#pragma unroll
    for (int i = 0; i < kSplitBlocks; ++i) {
      const int key = first_key + i * kBlockKeys;
      pages.of_block[i] = item.sees_block(key) ? blocks_.page(item, key) : 0;
    }
  }
  __device__ __forceinline__ void wait_for_space() const {
    mbarrier_wait(smem_.empty(ring_.stage, warp_), ring_.parity ^ 1);
  }
  __device__ __forceinline__ u32 block() const { return smem_.block(ring_.stage, warp_); }
  __device__ __forceinline__ u32 full() const { return smem_.full(ring_.stage, warp_); }

  const Params& p_;
  const Smem<kDim, kRows> smem_;
  const Batch& batch_;
  const bool is_first_;  // of the producer warps
  const int lane_;
  const int warp_;  // that the lane feeds
  int taken_ = 0;   // lane 0's
  BlockLoader<kDim> blocks_;
  ItemSlot slot_;
  Ring<kPlan.stages> ring_;  // the lane's
};

}  // namespace headrace::cuda::sm90::decode
