#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd256(const Call& call) {
  return launch_tile<kTile256, ScoreMod::plain>("cuda_sm90_fwd<bf16, 256>",
                                                "cuda_sm90_fwd<f16, 256>", call);
}

}  // namespace headrace::cuda::sm90::fwd
