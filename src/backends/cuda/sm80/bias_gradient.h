// The gradient of the bias by itself, for a backward whose own kernel has none.
#pragma once

#include "core/kernel.h"

namespace headrace::cuda::sm80 {

// What it wants of a workspace, from an address of 128 bytes. Head dims up to 256.
std::size_t bias_gradient_bytes(const Problem& p);
Status launch_bias_gradient(const Problem& p, const AttentionArgs& args, unsigned char* memory,
                            std::uint32_t* error_word, Stream stream);

}  // namespace headrace::cuda::sm80
