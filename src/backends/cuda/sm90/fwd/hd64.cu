#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd64(const Call& call) {
  return launch_tile<kTile64, ScoreMod::plain>("cuda_sm90_fwd<bf16, 64>", "cuda_sm90_fwd<f16, 64>",
                                               call);
}

}  // namespace headrace::cuda::sm90::fwd
