// One block of memory for up to `capacity` tokens: [layer][K, then V][head][token][dim]. The rows
// of a head lie together, which decode reads fastest. Memory is touched only where rows are
// written, so a large capacity costs nothing until it is used.
#pragma once

#include <memory>

#include "kv_cache/kv_cache.h"

namespace headrace {

// out_of_memory: the system refused.
Result<std::unique_ptr<KvCache>> make_contiguous_cache(const KvShape& shape, std::int64_t capacity);

}  // namespace headrace
