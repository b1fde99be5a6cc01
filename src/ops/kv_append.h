// Append to a paged KV cache: validation of the caller's tensors and dispatch to the backend of
// their device.
#pragma once

#include "base/error.h"
#include "core/kernel.h"
#include "core/kv_append_args.h"
#include "headrace/kv_cache.h"

namespace headrace {

headrace_kv_append_options default_kv_append_options();

// Checks shapes, strides, dtypes, devices, overlaps and options, and computes the frequencies.
// Reads no element of a tensor. `rope`: null without rotation by frequencies (options.rope in the
// size of this library).
Result<KvAppendArgs> validate_kv_append(const headrace_kv_append_tensors& tensors,
                                        const headrace_kv_append_options& options,
                                        const headrace_rope_options* rope);

// Validates and runs on the device of the tensors.
Status kv_append(const headrace_kv_append_tensors& tensors,
                 const headrace_kv_append_options& options, const headrace_rope_options* rope,
                 Stream stream);

}  // namespace headrace
