#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd64_dropout(const Call& call) {
  return launch_tile<kDropout64, ScoreMod::dropout>("cuda_sm90_fwd<bf16, 64, dropout>",
                                                    "cuda_sm90_fwd<f16, 64, dropout>", call);
}

}  // namespace headrace::cuda::sm90::fwd
