#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd96(const Call& call) {
  return launch_tile<kTile96, ScoreMod::plain>("cuda_sm90_fwd<bf16, 96>", "cuda_sm90_fwd<f16, 96>",
                                               call);
}

}  // namespace headrace::cuda::sm90::fwd
