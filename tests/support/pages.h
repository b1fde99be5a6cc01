// The keys of a call in pages.
#pragma once

#include <cstdint>
#include <vector>

#include "support/guarded_buffer.h"
#include "support/random.h"

namespace headrace::testing {

struct PageLayout {
  std::int64_t page_size = 1;
  bool is_head_major = false;  // [num_pages, num_kv_heads, page_size, dim] in memory
  bool has_indptr = false;     // page_indptr instead of rows of one length
};
PageLayout random_page_layout(Random& random);

// A call whose k and v are shuffled pages of another call's. Slots behind the last key and pages of
// no sequence are NaN; entries of block_table that are not used are no pages.
struct PagedCall {
  headrace_attention_tensors tensors;
  headrace_attention_options options;
  std::vector<GuardedBuffer> memory;  // of k, v, block_table, page_indptr and seqused_k
};
// `lengths`: keys of each sequence. A ragged call has max_seqlen_k.
PagedCall in_pages(const headrace_attention_tensors& tensors,
                   const headrace_attention_options& options,
                   const std::vector<std::int32_t>& lengths, PageLayout layout, Guard guard,
                   Random& random);

}  // namespace headrace::testing
