// How many pages a KV cache on a GPU has whose number the caller leaves to the engine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "kv_cache/kv_pages.h"

namespace headrace::engine {

// Of the free memory; the rest is for what steps allocate: workspaces, graphs, kernels that the
// driver loads.
inline constexpr std::int64_t kCachePercent = 90;
// The pages are not fewer than those of so many sequences if these fit, whatever runs at once: the
// prefix cache has room.
inline constexpr std::int64_t kLeastSequences = 4;

struct PageNeeds {
  KvPageShape shape;             // num_pages does not count
  std::int64_t other_bytes = 0;  // that the cache takes beside the pages
  std::int64_t max_tokens = 0;   // of a sequence
  std::int64_t max_num_seqs = 0;
};

// The pages of max_num_seqs sequences of max_tokens, or as many as fit. free_bytes: of the device;
// SIZE_MAX if it does not say. out_of_memory: those of one sequence do not fit.
Result<std::int64_t> pages_that_fit(const PageNeeds& needs, std::size_t free_bytes);

}  // namespace headrace::engine
