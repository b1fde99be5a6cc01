#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_few128_strict(const Call& call) {
  return launch_tile<kFewStrict128, ScoreMod::plain>("cuda_sm90_fwd<bf16, 128, few strict rows>",
                                                     "cuda_sm90_fwd<f16, 128, few strict rows>",
                                                     call);
}

}  // namespace headrace::cuda::sm90::fwd
