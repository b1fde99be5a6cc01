// dbias as a kernel of its own, for a backward whose main kernel does not compute it. The kernel is
// sm80/bwd/dbias.cuh and runs on every GPU.
#pragma once

#include "core/kernel.h"

namespace headrace::cuda {

// Bytes of workspace; `memory` is aligned to 128 bytes. Head dims up to 256.
std::size_t dbias_workspace_bytes(const Problem& p);
Status launch_dbias(const Problem& p, const AttentionArgs& args, unsigned char* memory,
                    std::uint32_t* error_word, Stream stream);

}  // namespace headrace::cuda
