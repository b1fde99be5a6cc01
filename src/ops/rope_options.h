// The public options of RoPE as those of core/rope.h.
#pragma once

#include "base/error.h"
#include "core/rope.h"
#include "headrace/kv_cache.h"

namespace headrace {

headrace_rope_options default_rope_options();

// frequencies [rot_dim / 2] and the factor of cosines and sines. rot_dim is that of the call, which
// has replaced a 0 of the options: at most kMaxAppendDim. On failure nothing is written.
Status fill_rope(const headrace_rope_options& options, std::int64_t rot_dim, double* frequencies,
                 double* attention_factor);

// invalid_argument unless `layout` is a headrace_rope_layout.
Status check_rope_layout(std::int32_t layout);

}  // namespace headrace
