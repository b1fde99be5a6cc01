#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_few256_alibi(const Call& call) {
  return launch_tile<kFewRowsMod256, ScoreMod::alibi>("cuda_sm90_fwd<bf16, 256, few rows, alibi>",
                                                      "cuda_sm90_fwd<f16, 256, few rows, alibi>",
                                                      call);
}

}  // namespace headrace::cuda::sm90::fwd
