// The pages of sequences in both forms of block_table. What no kernel may read is no page.
#pragma once

#include <cstdint>
#include <vector>

#include "base/math.h"

namespace headrace::testing {

inline constexpr std::int32_t kNoPage = 2147480000;
inline constexpr std::int64_t kSpareEntries = 3;  // before the first sequence and behind the last

// Rows of one length: [lengths.size()][columns].
struct PageRows {
  std::int64_t columns = 0;
  std::vector<std::int32_t> pages;
};

// Rows of any length (page_indptr), some of them longer than the keys of their sequence need.
struct PageList {
  std::vector<std::int32_t> pages, offsets;
};

// Nothing where no sequence has keys: max_seqlen_k is 0 then, for which calls take all entries.
inline PageList page_list_of(const PageRows& rows, const std::vector<std::int32_t>& lengths,
                             std::int64_t page_size) {
  if (rows.columns == 0) return {{}, std::vector<std::int32_t>(lengths.size() + 1, 0)};
  PageList x{std::vector<std::int32_t>(kSpareEntries, kNoPage), {}};
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    const auto row = rows.pages.begin() + static_cast<std::int64_t>(b) * rows.columns;
    x.offsets.push_back(static_cast<std::int32_t>(x.pages.size()));
    x.pages.insert(x.pages.end(), row, row + ceil_div(std::int64_t{lengths[b]}, page_size));
    if (b % 3 == 1) x.pages.push_back(kNoPage);
  }
  x.offsets.push_back(static_cast<std::int32_t>(x.pages.size()));
  x.pages.insert(x.pages.end(), kSpareEntries, kNoPage);
  return x;
}

}  // namespace headrace::testing
