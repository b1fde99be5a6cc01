// Loads of K and V tiles whose rows lie in pages.
#pragma once

#include "backends/cuda/sm80/fwd/work_tile.cuh"
#include "backends/cuda/sm80/load.cuh"

namespace headrace::cuda::sm80::fwd {

// Keys of a sequence from first_key on. `data` points to the thread's chunk of slot 0 of page 0.
template <class T>
struct PagedTile {
  const T* data;
  const Operand& x;
  int first_key;
  std::int64_t dim;
};

// As load_tile() of load.cuh. Two table entries are read together: more would spill. Keys of a page
// that does not exist are zeros.
template <class T, int kDim, int kRows, int kThreads, class Swizzle>
__device__ __forceinline__ void load_pages(u32 to, const PagedTile<T>& tile, const Params& c,
                                           const WorkTile& work) {
  using Copy = CopyPartition<T, kDim, kThreads>;
  const PageTable& t = c.pages;
  const std::int32_t* pages =
      t.block_table + (work.batch_idx * t.stride_batch + work.sequence.row_k);
  const int count = Copy::count(tile.dim), end = work.seqlen_k;
#pragma unroll 2
  for (int row = Copy::first(); row < kRows; row += Copy::kStep) {
    const int key = tile.first_key + row, idx = t.by_page_size.divide(key);
    bool exists = key < end;
    std::int64_t page = exists ? pages[idx] : 0;
    if (page < 0 || page >= t.num_pages) {
      report_length_error(c.split.lengths.error_word, LengthError::block_table, work.batch_idx);
      exists = false;
      page = 0;
    }
    const T* from =
        tile.data + page * tile.x.stride_batch + (key - idx * t.page_size) * tile.x.stride_seq;
    load_chunk(to + Copy::template offset<Swizzle>(row), from, count, exists, c.is_aligned);
  }
}

}  // namespace headrace::cuda::sm80::fwd
