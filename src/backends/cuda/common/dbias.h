// The gradient of the bias by itself, for a backward whose own kernel has none. sm80/bwd computes
// it, on every GPU.
#pragma once

#include "core/kernel.h"

namespace headrace::cuda {

// What it wants of a workspace, from an address of 128 bytes. Head dims up to 256.
std::size_t dbias_workspace_bytes(const Problem& p);
Status launch_dbias(const Problem& p, const AttentionArgs& args, unsigned char* memory,
                    std::uint32_t* error_word, Stream stream);

}  // namespace headrace::cuda
