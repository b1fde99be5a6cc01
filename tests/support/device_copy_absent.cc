// Builds without CUDA: never called, because there are no GPU plans.
#include "support/device_copy.h"

namespace headrace::testing {

Status run_on_copies(const Plan&, const headrace_attention_tensors&,
                     const headrace_attention_options&) {
  return unsupported("this build has no CUDA backend; build with CUDA");
}

Status run_backward_on_copies(const Plan&, const headrace_attention_tensors&,
                              const headrace_attention_gradients&,
                              const headrace_attention_options&) {
  return unsupported("this build has no CUDA backend; build with CUDA");
}

}  // namespace headrace::testing
