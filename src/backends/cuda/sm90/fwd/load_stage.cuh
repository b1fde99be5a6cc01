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
    const PageTable& table = p_.pages;
    const int page = table.page_of(batch_idx, row_k, key);
    if (static_cast<u32>(page) < static_cast<u32>(table.num_pages)) return page;
    bad_entry_ = batch_idx;
    return table.num_pages;
  }
  __device__ __forceinline__ int slot_of(int key) const {
    return key - p_.pages.by_page_size.divide(key) * p_.pages.page_size;
  }

 private:
  const Params& p_;
  int bad_entry_ = -1;  // a sequence with such a page
};

// The same for a k-block that lies in pages. A lane issues the boxes of every 32nd page, whose
// number it has read before the wait.
template <int kAtoms, int kKeys, class Info>
__device__ __forceinline__ void load_paged_stage(const Params& p, KeyPages& pages, const Info& info,
                                                 int n, u32 to, const TensorMap& map, u32 full,
                                                 u32 empty, u32 parity) {
  const int batch_idx = info(offsetof(TileInfo, batch));
  const int seqlen_k = info(offsetof(TileInfo, seqlen_k));
  const int row_k = info(offsetof(TileInfo, row_k));
  int i = (static_cast<int>(threadIdx.x) & 31) * p.box_keys;  // first key of the box
  bool has_box = i < kKeys;
  int page = has_box ? pages.page_of(batch_idx, row_k, n * kKeys + i, seqlen_k) : 0;
  int slot = pages.slot_of(n * kKeys + i), kv_head = info(offsetof(TileInfo, kv_head));
  to += i * 128;
  // What is computed behind the wait, the consumers wait for.
  asm volatile("" : "+r"(slot), "+r"(kv_head), "+r"(to));
  full = released_behind(static_cast<u32>(batch_idx ^ seqlen_k ^ row_k ^ kv_head), full);
  mbarrier_wait(empty, parity ^ 1);
  // Boxes may complete before the arrival, without which the phase does not end.
  if (arrives<true>()) mbarrier_arrive_expect_tx(full, kAtoms * kKeys * 128);
#pragma unroll 1
  while (has_box) {
#pragma unroll
    for (int s = 0; s < kAtoms; ++s)
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
