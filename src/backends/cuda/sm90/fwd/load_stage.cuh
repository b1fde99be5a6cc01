// A stage of K, V or a bias by TMA: from one tensor, or from the pages of a block table.
#pragma once

#include <cstddef>

#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/sm90/fwd/config.h"
#include "backends/cuda/sm90/fwd/params.h"
#include "backends/cuda/sm90/shared.cuh"

namespace headrace::cuda::sm90::fwd {

// Whether the thread is the one that arrives for its producer.
template <bool kHasPages>
__device__ __forceinline__ bool arrives() {
  return !kHasPages || (threadIdx.x & 31) == 0;
}

// Waits until the stage is empty, then issues boxes of `rows` rows, one for each swizzle atom.
template <int kAtoms>
__device__ __forceinline__ void load_stage(u32 to, int rows, const TensorMap& map, u64 policy,
                                           u32 full, u32 empty, u32 parity, int column, int row,
                                           int head, int batch) {
  mbarrier_wait(empty, parity ^ 1);
  mbarrier_arrive_expect_tx(full, kAtoms * rows * 128);
#pragma unroll
  for (int s = 0; s < kAtoms; ++s)
    cp_async_bulk_tensor_load(to + s * rows * 128, &map, full, policy,
                              column + s * kSwizzleAtomCols, row, head, batch);
}

// Rows of a stage from `first` on become zeros, by the 128 threads of a warpgroup. Other threads
// and wgmma see that behind fence_proxy_async() and a barrier.
template <int kAtoms, int kRows>
__device__ __forceinline__ void zero_rows(u32 stage, int first) {
  const int thread = static_cast<int>(threadIdx.x) & 127;
#pragma unroll 1
  for (int i = first * 8 + thread; i < kRows * 8; i += 128)
#pragma unroll
    for (int atom = 0; atom < kAtoms; ++atom)
      asm volatile(
          "st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(stage + atom * kRows * 128 + i * 16),
          "r"(0)
          : "memory");
}

// Where the keys of a tile lie in the tensors. The pages of a sequence are a row of the block
// table.
struct KeyOrigin {
  int row, kv_head, batch;
};
template <class Info>
__device__ __forceinline__ KeyOrigin key_origin(const Info& info) {
  return {.row = info(offsetof(TileInfo, row_k)),
          .kv_head = info(offsetof(TileInfo, kv_head)),
          .batch = info(offsetof(TileInfo, tensor_batch))};
}

// The pages of k-blocks, for a lane that loads some.
class KeyPages {
 public:
  __device__ explicit KeyPages(const Params& p) : p_(p) {}
  __device__ ~KeyPages() {
    if (bad_entry_ >= 0)
      report_length_error(p_.lengths.error_word, LengthError::block_table, bad_entry_);
  }

  // Of keys that do not exist, and of bad entries: a page beyond the last, which TMA reads as
  // zeros.
  __device__ __forceinline__ int page_of(int batch_idx, int row_k, int key, int seqlen_k) {
    if (key >= seqlen_k) return p_.pages.num_pages;
    return checked(p_.pages.page_of(batch_idx, row_k, key), batch_idx);
  }
  // The same for a key of each lane, all of them among the 128 up to `last_key`. The warp keeps the
  // last 32 entries up to there, often those of the next k-blocks to the left, too.
  __device__ __forceinline__ int page_of_lane(int batch_idx, int row_k, int key, int last_key,
                                              int seqlen_k) {
    const PageTable& table = p_.pages;
    if (table.page_size < 4) return page_of(batch_idx, row_k, key, seqlen_k);
    const int index = table.by_page_size.divide(min(key, seqlen_k - 1));
    if (__any_sync(0xffffffffu, static_cast<u32>(index - first_entry_) >= 32u)) {
      const int last = table.by_page_size.divide(min(last_key, seqlen_k - 1));
      first_entry_ = last - 31;  // may be before the first one of the sequence
      const int mine = max(first_entry_ + (static_cast<int>(threadIdx.x) & 31), 0);
      entry_ = table.block_table[batch_idx * table.stride_batch + (row_k + mine)];
    }
    const int page = __shfl_sync(0xffffffffu, entry_, index - first_entry_);
    return key < seqlen_k ? checked(page, batch_idx) : table.num_pages;
  }
  // Before the k-blocks of another sequence.
  __device__ __forceinline__ void leave() { first_entry_ = -32; }

  __device__ __forceinline__ int slot_of(int key) const {
    return key - p_.pages.by_page_size.divide(key) * p_.pages.page_size;
  }
  __device__ __forceinline__ int checked(int page, int batch_idx) {
    if (static_cast<u32>(page) < static_cast<u32>(p_.pages.num_pages)) return page;
    bad_entry_ = batch_idx;
    return p_.pages.num_pages;
  }

 private:
  const Params& p_;
  int bad_entry_ = -1;  // a sequence with such a page
  int entry_ = 0, first_entry_ = -32;
};

// Of up to 128 columns the registers that page_of_lane() takes cost tiles more than what it hides.
constexpr bool keeps_entries(int num_atoms) { return num_atoms > 2; }

// The same for a k-block that lies in pages, of atoms [kFirst, kEnd): the warp that has the first
// arrives for all of them. A lane issues the boxes of every 32nd page, whose number it has read
// before the wait.
template <int kAtoms, int kFirst, int kEnd, int kKeys, class Info>
__device__ __forceinline__ void load_paged_stage(const Params& p, KeyPages& pages, const Info& info,
                                                 int n, u32 to, const TensorMap& map, u32 full,
                                                 u32 empty, u32 parity) {
  const int batch_idx = info(offsetof(TileInfo, batch));
  const int seqlen_k = info(offsetof(TileInfo, seqlen_k));
  const int row_k = info(offsetof(TileInfo, row_k));
  int i = (static_cast<int>(threadIdx.x) & 31) * p.box_keys;  // first key of the box
  bool has_box = i < kKeys;
  const int key = n * kKeys + i, last_key = n * kKeys + kKeys - 1;
  int page = 0;
  if constexpr (keeps_entries(kAtoms))
    page = pages.page_of_lane(batch_idx, row_k, min(key, last_key), last_key, seqlen_k);
  else if (has_box)
    page = pages.page_of(batch_idx, row_k, key, seqlen_k);
  int slot = pages.slot_of(n * kKeys + i), kv_head = info(offsetof(TileInfo, kv_head));
  to += i * 128;
  // What is computed behind the wait, the consumers wait for.
  asm volatile("" : "+r"(slot), "+r"(kv_head), "+r"(to));
  full = released_behind(static_cast<u32>(batch_idx ^ seqlen_k ^ row_k ^ kv_head), full);
  mbarrier_wait(empty, parity ^ 1);
  // Boxes may complete before the arrival, without which the phase does not end.
  if (kFirst == 0 && arrives<true>()) mbarrier_arrive_expect_tx(full, kAtoms * kKeys * 128);
#pragma unroll 1
  while (has_box) {
#pragma unroll
    for (int s = kFirst; s < kEnd; ++s)
      cp_async_bulk_tensor_load(to + s * kKeys * 128, &map, full, kEvictLast, s * kSwizzleAtomCols,
                                slot, kv_head, page);
    i += 32 * p.box_keys;
    has_box = i < kKeys;
    if (!has_box) break;
    to += 32 * p.box_keys * 128;
    page = pages.page_of(batch_idx, row_k, n * kKeys + i, seqlen_k);
    slot = pages.slot_of(n * kKeys + i);
  }
  __syncwarp();
}

}  // namespace headrace::cuda::sm90::fwd
