// SparQ attention and its append: validation of the caller's tensors and dispatch to the backend of
// their device.
#pragma once

#include "base/error.h"
#include "core/kernel.h"
#include "core/sparq_args.h"

namespace headrace {

headrace_sparq_options default_sparq_options();

// Check shapes, strides, dtypes, devices, options and overlaps. Read no element of a tensor.
Result<SparqArgs> validate_sparq(const headrace_sparq_tensors& tensors,
                                 const headrace_sparq_options& options);
Result<SparqAppendArgs> validate_sparq_append(const headrace_sparq_append_tensors& tensors);

// seqused_k and the used entries of block_table, in CPU memory.
Status check_sparq_lengths(const SparqArgs& args);
// slot_mapping and cu_seqlens, in CPU memory.
Status check_sparq_slots(const SparqAppendArgs& args);

// On the device of the tensors.
Result<std::size_t> sparq_workspace_bytes(const headrace_sparq_tensors& tensors,
                                          const headrace_sparq_options& options);

// Validates and runs on the device of the tensors. A workspace of 0 bytes at null is allocated for
// the call.
Status sparq_attention(const headrace_sparq_tensors& tensors, const headrace_sparq_options& options,
                       Workspace workspace, Stream stream);
Status sparq_append(const headrace_sparq_append_tensors& tensors, Stream stream);

// headrace_sparq_bytes().
std::int64_t sparq_bytes(std::int64_t seqlen_k, std::int64_t head_dim, std::int64_t head_dim_v,
                         std::int64_t num_components, std::int64_t num_keys,
                         std::int64_t element_bytes);

}  // namespace headrace
