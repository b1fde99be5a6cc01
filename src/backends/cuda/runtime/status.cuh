// CUDA errors as Status: CUDA's name for the error, the operation and its values.
#pragma once

#include <cuda_runtime_api.h>

#include "base/error.h"

namespace headrace::cuda {

// `doing`: "launching cuda_simple<bf16> with grid 132, block 128". Clears the thread's last CUDA
// error, so that the next call does not see it. If the context is lost, the text says so.
Failure cuda_failure(cudaError_t error, const std::string& doing);

template <class... Args>
Status cuda_status(cudaError_t error, std::string_view doing, const Args&... args) {
  if (error == cudaSuccess) return std::nullopt;
  return cuda_failure(error, format_text(doing, args...));
}

}  // namespace headrace::cuda
