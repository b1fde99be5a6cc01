#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_few128_general(const Call& call) {
  return launch_tile<kFewRowsMod128, ScoreMod::general>(
      "cuda_sm90_fwd<bf16, 128, few rows, general>", "cuda_sm90_fwd<f16, 128, few rows, general>",
      call);
}

}  // namespace headrace::cuda::sm90::fwd
