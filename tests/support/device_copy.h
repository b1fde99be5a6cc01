// Runs a plan on a GPU although the tensors of a test lie in host memory: on copies of that memory,
// guard bytes and unread filling included, between guard bands of their own.
#pragma once

#include "core/kernel.h"

namespace headrace::testing {

// Copies back what the outputs' memory holds afterwards. A changed input, a byte written outside of
// the outputs' memory and a length error are failures. For several threads at once.
Status run_on_copies(const Plan& plan, const headrace_attention_tensors& tensors,
                     const headrace_attention_options& options);
// The same for a backward: out and lse are inputs, gradients are what is copied back.
Status run_backward_on_copies(const Plan& plan, const headrace_attention_tensors& tensors,
                              const headrace_attention_gradients& gradients,
                              const headrace_attention_options& options);

}  // namespace headrace::testing
