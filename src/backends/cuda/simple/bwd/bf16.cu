#include "backends/cuda/simple/bwd/kernel.cuh"

namespace headrace::cuda::simple::bwd {

Status launch_backward_bf16(const BackwardParams& params, Stream stream) {
  return launch_backward<__nv_bfloat16>("cuda_simple<bf16> backward", params, stream);
}

}  // namespace headrace::cuda::simple::bwd
