// A KV cache that is soon full.
#pragma once

#include "headrace/kv_cache.hpp"

namespace headrace::testing {

inline const KvCacheOptions kSmallKvCache = {.num_layers = 2,
                                             .num_kv_heads = 2,
                                             .head_dim = 8,
                                             .num_pages = 8,
                                             .num_host_pages = 4,
                                             .page_size = 4,
                                             .dtype = DType::f32};

}  // namespace headrace::testing
