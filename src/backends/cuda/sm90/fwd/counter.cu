#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/fwd/launch.h"

namespace headrace::cuda::sm90 {
namespace {

__global__ void clear(int* counter) {
  let_next_kernel_begin();
  *counter = 0;
}

}  // namespace

Status launch_clear(int* counter, Stream stream) {
  return launch({.name = "cuda_sm90_fwd's clearing of the tile counter", .grid = 1, .block = 1},
                static_cast<cudaStream_t>(stream), clear, counter);
}

}  // namespace headrace::cuda::sm90
