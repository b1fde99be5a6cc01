#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd64_alibi(const Call& call) {
  return launch_tile<kTile64, ScoreMod::alibi>("cuda_sm90_fwd<bf16, 64, alibi>",
                                               "cuda_sm90_fwd<f16, 64, alibi>", call);
}

}  // namespace headrace::cuda::sm90::fwd
