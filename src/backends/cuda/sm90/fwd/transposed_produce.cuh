// The warps of the transposed kernel that load: one or two K, the first of them Q, as many V.
#pragma once

#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/sm90/fwd/load_stage.cuh"
#include "backends/cuda/sm90/fwd/tile_counter.cuh"
#include "backends/cuda/sm90/fwd/transposed_rows.cuh"

namespace headrace::cuda::sm90::fwd {

// The pages of an item, for the lanes of a warp. Up to 128 entries of the block table are read
// before the first stage: one wait for the memory, not one for each k-block.
template <Tile kTile>
class SplitPages {
 public:
  __device__ __forceinline__ explicit SplitPages(const Params& p) : p_(p), pages_(p) {}

  __device__ __forceinline__ void read_entries(const SplitItem& item, int lane) {
    const Divisor by_page_size = p_.pages.by_page_size;
    first_ = by_page_size.divide(item.block_min * kTile.keys);
    const int last = by_page_size.divide(min(item.block_max * kTile.keys, item.seqlen_k) - 1);
    has_all_ = last - first_ < 128;
    if (!has_all_) return;
    const std::int32_t* const row =
        p_.pages.block_table + (item.batch * p_.pages.stride_batch + item.row_k);
#pragma unroll
    for (int i = 0; i < 4; ++i) entries_[i] = row[min(first_ + 32 * i + lane, last)];
  }
  // All lanes call it, with a key of the item each.
  __device__ __forceinline__ int page_of(const SplitItem& item, int key) {
    if (!has_all_) return page_of_box(item, key);
    const int i = p_.pages.by_page_size.divide(min(key, item.seqlen_k - 1)) - first_;
    int page = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int of_j = __shfl_sync(0xffffffffu, entries_[j], i & 31);
      if (i >> 5 == j) page = of_j;
    }
    return key < item.seqlen_k ? pages_.checked(page, item.batch) : p_.pages.num_pages;
  }
  // The same by a lane alone.
  __device__ __forceinline__ int page_of_box(const SplitItem& item, int key) {
    return pages_.page_of(item.batch, item.row_k, key, item.seqlen_k);
  }
  __device__ __forceinline__ int slot_of(int key) const { return pages_.slot_of(key); }

 private:
  const Params& p_;
  KeyPages pages_;
  int first_ = 0;
  bool has_all_ = false;
  std::int32_t entries_[4] = {};
};

// A warp that loads kAtoms swizzle atoms of stages of K or V: boxes of box_keys x 64 columns, by a
// lane each. Neighbouring lanes have neighbouring columns, which the memory has in one place.
template <Tile kTile, int kAtoms>
class StageLoader {
 public:
  __device__ __forceinline__ explicit StageLoader(const Params& p) : p_(p), pages_(p) {}

  __device__ __forceinline__ void begin(const SplitItem& item) {
    if (p_.pages.block_table != nullptr) pages_.read_entries(item, lane());
  }
  // Columns from atom first_atom on, to [atom][64 keys][128 bytes] at `to`, when `empty` allows.
  // `bytes`: of the whole stage, from one of the warps that load it; 0 from the others.
  __device__ __forceinline__ void load(const TensorMap& map, const SplitItem& item, int first_key,
                                       int first_atom, u32 to, u32 full, u32 empty, u32 parity,
                                       u32 bytes) {
    const bool has_pages = p_.pages.block_table != nullptr;
    const int atom = lane() % kAtoms, kv_head = item.head / p_.tiles.kv_divisor;
    to += static_cast<u32>(atom * kStageKeys * kSwizzleRowBytes);
    int i = lane() / kAtoms * p_.box_keys, batch = p_.sizes.is_ragged != 0 ? 0 : item.batch;
    if (has_pages) batch = pages_.page_of(item, first_key + min(i, kStageKeys - 1));
    mbarrier_wait(empty, parity ^ 1);
    // Boxes may complete before the arrival, without which the phase does not end.
    if (bytes != 0 && lane() == 0) mbarrier_arrive_expect_tx(full, bytes);
#pragma unroll 1
    while (i < kStageKeys) {
      const int row = has_pages ? pages_.slot_of(first_key + i) : item.row_k + first_key + i;
      cp_async_bulk_tensor_load(to + static_cast<u32>(i * kSwizzleRowBytes), &map, full,
                                kEvictFirst, (first_atom + atom) * kSwizzleAtomCols, row, kv_head,
                                batch);
      i += 32 / kAtoms * p_.box_keys;
      if (has_pages && i < kStageKeys) batch = pages_.page_of_box(item, first_key + i);
    }
    __syncwarp();
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) & 31; }

  const Params& p_;
  SplitPages<kTile> pages_;
};

// The query rows of an item, by a thread.
template <Tile kTile>
__device__ __forceinline__ void load_rows_of_q(const Params& p, const Maps& maps,
                                               const SplitItem& item, u32 to, u32 full) {
  constexpr int kAtoms = num_swizzle_atoms(kTile.head_dim);
  constexpr int kAtomBytes = kTile.transposed_rows * kSwizzleRowBytes;
  mbarrier_arrive_expect_tx(full, kAtoms * p.tiles.group_queries * p.tiles.pack * kSwizzleRowBytes);
#pragma unroll
  for (int s = 0; s < kAtoms; ++s)
    cp_async_bulk_tensor_load(to + s * kAtomBytes, &maps.q, full, kEvictFirst, s * kSwizzleAtomCols,
                              0, item.row_q, item.head, p.sizes.is_ragged != 0 ? 0 : item.batch);
}

// The items of a CTA, one after the other, as its first producer finds and publishes them: then
// once more those of which rows are computed again. Each step is there once, as few instructions
// arrive sooner.
template <Tile kTile, class Element>
class SplitLeader {
  static constexpr TransposedSmem kSmem = transposed_smem(kTile);

 public:
  __device__ __forceinline__ SplitLeader(const Params& p, u32 smem, int lane)
      : p_(p), smem_(smem), lane_(lane), items_(p, blockIdx.x == 0), counter_(p, lane) {}

  // Its batch is kNoItem behind the last.
  __device__ __forceinline__ PublishedItem next(PublishedItems<kTile>& published) {
    PublishedItem x{};
    x.item.batch = kNoItem;
    for (;;) {
      // A CTA whose list is full takes no number, which other CTAs could have.
      if (!is_again_ && count_ == kMaxItems) end_first_pass(published);
      if (is_again_) {
        while (i_ < count_ && (x.rows = load_shared(word(kSmem.offset_again, i_))) == 0) ++i_;
        if (i_ == count_) break;
        number_ = static_cast<int>(load_shared(word(kSmem.offset_items, i_)));
      } else {
        number_ = i_ == 0                      ? static_cast<int>(blockIdx.x)
                  : p_.tile_counter != nullptr ? counter_.next() + static_cast<int>(gridDim.x)
                                               : number_ + static_cast<int>(gridDim.x);
        i_ = 1;
      }
      if (!items_.find(number_, x.item)) {
        x.item.batch = kNoItem;
        end_first_pass(published);
        continue;
      }
      if (!x.item.has_keys()) {
        TransposedRows<kTile, Element>{p_, x.item}.store_empty(lane_);
        continue;
      }
      const int i = is_again_ ? i_++ : count_++;
      x.word = word(kSmem.offset_again, i);
      if (lane_ == 0) store_shared(word(kSmem.offset_items, i), static_cast<u32>(number_));
      break;
    }
    published.publish(x, lane_ == 0);
    __syncwarp();
    return x;
  }

 private:
  __device__ __forceinline__ u32 word(int offset, int i) const {
    return smem_ + static_cast<u32>(offset + 4 * i);
  }
  __device__ __forceinline__ void end_first_pass(const PublishedItems<kTile>& published) {
    if (p_.tile_counter != nullptr) counter_.close();
    published.wait_for_all();
    is_again_ = true;
    i_ = 0;
  }

  const Params& p_;
  const u32 smem_;
  const int lane_;
  SplitItems<kTile> items_;
  TileCounter counter_;
  int count_ = 0, number_ = 0;
  int i_ = 0;  // of the first pass: 1 behind the first number; then the next of the list
  bool is_again_ = false;
};

// A warp that loads K or V, `part` of their atoms. The first one also leads, and loads Q.
template <Tile kTile, class Element>
class SplitProducer {
  using B = TransposedBarriers<kTile>;
  static constexpr TransposedSmem kSmem = transposed_smem(kTile);
  static constexpr int kAtoms = num_swizzle_atoms(kTile.head_dim);
  static constexpr int kLoaders = transposed_loaders(kTile), kOwnAtoms = kAtoms / kLoaders;

 public:
  // `producer`: those of K before those of V.
  __device__ __forceinline__ SplitProducer(const Params& p, const Maps& maps, u32 smem,
                                           int producer)
      : p_(p),
        maps_(maps),
        smem_(smem),
        is_v_(producer >= kLoaders),
        part_(is_v_ ? producer - kLoaders : producer),
        leads_(producer == 0),
        loader_(p) {}

  __device__ __forceinline__ void run() {
    PublishedItems<kTile> published(smem_);
    SplitLeader<kTile, Element> leader(p_, smem_, lane());
    for (;;) {
      const PublishedItem x = leads_ ? leader.next(published) : follow(published);
      if (x.item.batch == kNoItem) return;
      if (leads_) load_q(x.item);
      load_blocks(x.item);
    }
  }

 private:
  static __device__ __forceinline__ PublishedItem follow(PublishedItems<kTile>& published) {
    const PublishedItem x = published.read();
    // Of all lanes, behind the loads of each.
    const u32 loaded = __shfl_sync(0xffffffffu, x.loaded(), 0);
    published.release(loaded, lane() == 0);
    return x;
  }

  __device__ __forceinline__ u32 barrier(int i) const {
    return smem_ + static_cast<u32>(kSmem.offset_barriers + 8 * i);
  }
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) & 31; }

  __device__ __forceinline__ void load_q(const SplitItem& item) {
    if (lane() == 0) {
      mbarrier_wait(barrier(B::kQEmpty + q_.stage), q_.parity ^ 1);
      load_rows_of_q<kTile>(
          p_, maps_, item,
          smem_ + static_cast<u32>(kSmem.offset_q +
                                   q_.stage * kAtoms * kTile.transposed_rows * kSwizzleRowBytes),
          barrier(B::kQFull + q_.stage));
    }
    q_.next();
  }
  // From right to left, each k-block from left to right.
  __device__ __forceinline__ void load_blocks(const SplitItem& item) {
    loader_.begin(item);
    for (int n = item.block_max - 1; n >= item.block_min; --n) {
#pragma unroll 1
      for (int i = 0; i < kTile.keys; i += kStageKeys) load_stage(item, n * kTile.keys + i);
    }
  }
  __device__ __forceinline__ void load_stage(const SplitItem& item, int first_key) {
    const int atom = part_ * kOwnAtoms;
    loader_.load(
        is_v_ ? maps_.v : maps_.k, item, first_key, atom,
        smem_ + static_cast<u32>((is_v_ ? kSmem.offset_v : kSmem.offset_k) + stage_ * kSmem.stage +
                                 atom * kStageKeys * kSwizzleRowBytes),
        barrier((is_v_ ? B::kVFull : B::kKFull) + stage_),
        barrier((is_v_ ? B::kVEmpty : B::kKEmpty) + stage_), parity_,
        part_ == 0 ? kAtoms * kStageKeys * kSwizzleRowBytes : 0);
    if (++stage_ == (is_v_ ? kTile.v_stages : kTile.k_stages)) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

  const Params& p_;
  const Maps& maps_;
  const u32 smem_;
  const bool is_v_;
  const int part_;
  const bool leads_;
  StageLoader<kTile, kOwnAtoms> loader_;
  int stage_ = 0;
  u32 parity_ = 0;
  Ring<kTile.q_buffers> q_;
};

}  // namespace headrace::cuda::sm90::fwd
