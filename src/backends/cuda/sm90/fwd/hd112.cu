#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd112(const Call& call) {
  return launch_tile<kTile112, ScoreMod::plain>("cuda_sm90_fwd<bf16, 112>",
                                                "cuda_sm90_fwd<f16, 112>", call);
}

}  // namespace headrace::cuda::sm90::fwd
