#include "backends/cuda/sm80/bwd/launch.cuh"

namespace headrace::cuda::sm80::bwd {

Status launch_bf16_hd128(const Call& call) {
  return launch_all<__nv_bfloat16, 128>("cuda_sm80_bwd<bf16, 128>", call);
}

}  // namespace headrace::cuda::sm80::bwd
