#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd80(const Call& call) {
  return launch_tile<kTile80, ScoreMod::plain>("cuda_sm90_fwd<bf16, 80>", "cuda_sm90_fwd<f16, 80>",
                                               call);
}

}  // namespace headrace::cuda::sm90::fwd
