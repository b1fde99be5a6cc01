#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_few64(const Call& call) {
  return launch_tile<kFewRows64, ScoreMod::plain>("cuda_sm90_fwd<bf16, 64, few rows>",
                                                  "cuda_sm90_fwd<f16, 64, few rows>", call);
}

}  // namespace headrace::cuda::sm90::fwd
