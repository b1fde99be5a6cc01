// Where the keys of a sequence lie, as kernels read it.
#pragma once

#include <algorithm>

#include "backends/cuda/common/divisor.h"
#include "core/args.h"

namespace headrace::cuda {

struct PageTable {
  const std::int32_t* block_table;  // null: the keys of a sequence are contiguous
  std::int64_t stride_batch;        // 0 with page_indptr (UsedKeys)
  std::int32_t page_size, num_pages;
  Divisor by_page_size;

  // The page of a key, which is its slot key % page_size. row_k: of the Sequence.
  constexpr std::int32_t page_of(std::int64_t batch_idx, std::int32_t row_k, int key) const {
    return block_table[batch_idx * stride_batch + (row_k + by_page_size.divide(key))];
  }
};
constexpr Divisor page_size_divisor(const Problem& p) {
  return Divisor::of(std::max<std::int64_t>(p.page_size, 1));
}
inline PageTable page_table_of(const Problem& p, const AttentionArgs& args, Divisor by_page_size) {
  return {.block_table = args.paged.block_table,
          .stride_batch = args.paged.stride_batch,
          .page_size = static_cast<std::int32_t>(p.page_size),
          .num_pages = static_cast<std::int32_t>(p.num_pages),
          .by_page_size = by_page_size};
}

}  // namespace headrace::cuda
