// Runs a plan on a GPU for tensors in host memory: on copies of all of their memory, including
// guard bytes and padding, between guard bands.
#pragma once

#include "core/kernel.h"

namespace headrace::testing {

// Copies the outputs' memory back. A changed input, a write outside of the outputs' memory or a
// length error is a failure. Thread-safe.
Status run_on_copies(const Plan& plan, const headrace_attention_tensors& tensors,
                     const headrace_attention_options& options);
// The same for a backward: out and lse are inputs, the gradients are copied back.
Status run_backward_on_copies(const Plan& plan, const headrace_attention_tensors& tensors,
                              const headrace_attention_gradients& gradients,
                              const headrace_attention_options& options);

}  // namespace headrace::testing
