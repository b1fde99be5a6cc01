#include "engine/cache_pages.h"

#include <algorithm>

#include "base/math.h"

namespace headrace::engine {
namespace {

constexpr std::int64_t kMaxPages = INT32_MAX;  // of a cache

std::int64_t bytes_of(KvPageShape shape, std::int64_t num_pages) {
  shape.num_pages = num_pages;
  return KvPages::num_bytes(shape);
}

std::int64_t mib(std::int64_t bytes) { return ceil_div<std::int64_t>(bytes, 1 << 20); }

}  // namespace

Result<std::int64_t> pages_that_fit(const PageNeeds& needs, std::size_t free_bytes) {
  const std::int64_t of_one = ceil_div(needs.max_tokens, needs.shape.page_size);
  const std::int64_t wanted = std::min(
      kMaxPages, saturating_product({of_one, std::max(needs.max_num_seqs, kLeastSequences)}));
  if (free_bytes == SIZE_MAX) return wanted;
  const auto free = static_cast<std::int64_t>(std::min<std::size_t>(free_bytes, INT64_MAX / 100));
  const std::int64_t share = free * kCachePercent / 100, room = share - needs.other_bytes;
  if (bytes_of(needs.shape, of_one) > room)
    return Failure{
        ErrorCode::out_of_memory,
        format_text("num_pages=0: the keys and values of one sequence of max_tokens={} take {} "
                    "MiB, and all may take {} MiB, {} % of the {} MiB that are free on the GPU; "
                    "pass a smaller max_tokens, codes as k_dtype and v_dtype, or a number of "
                    "pages, or free device memory",
                    needs.max_tokens, mib(bytes_of(needs.shape, of_one) + needs.other_bytes),
                    share >> 20, kCachePercent, free >> 20)};
  std::int64_t fits = of_one, too_many = wanted + 1;
  while (too_many - fits > 1) {
    const std::int64_t middle = fits + (too_many - fits) / 2;
    (bytes_of(needs.shape, middle) <= room ? fits : too_many) = middle;
  }
  return fits;
}

}  // namespace headrace::engine
