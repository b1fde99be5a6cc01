// Where the keys of a sequence lie, as kernels read it.
#pragma once

#include <algorithm>

#include "backends/cuda/common/divisor.h"
#include "core/args.h"

namespace headrace::cuda {

// Key j of a sequence is slot j % page_size of page block_table[batch_idx][j / page_size].
struct PageTable {
  const std::int32_t* block_table;  // null: the keys of a sequence are contiguous
  std::int64_t stride_batch;
  std::int32_t page_size, num_pages;
  Divisor by_page_size;
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
