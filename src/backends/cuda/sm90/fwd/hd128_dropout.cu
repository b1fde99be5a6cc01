#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd128_dropout(const Call& call) {
  return launch_tile<kDropout128, ScoreMod::dropout>("cuda_sm90_fwd<bf16, 128, dropout>",
                                                     "cuda_sm90_fwd<f16, 128, dropout>", call);
}

}  // namespace headrace::cuda::sm90::fwd
