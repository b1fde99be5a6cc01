#include "backends/cuda/sm80/fwd/launch.cuh"

namespace headrace::cuda::sm80::fwd {

Status launch_bf16_hd64(const Call& call) {
  return launch_all<__nv_bfloat16, 64>("cuda_sm80_fwd<bf16, 64>", call);
}

}  // namespace headrace::cuda::sm80::fwd
