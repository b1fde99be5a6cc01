#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd192(const Call& call) {
  return launch_tile<kTile192, ScoreMod::plain>("cuda_sm90_fwd<bf16, 192>",
                                                "cuda_sm90_fwd<f16, 192>", call);
}

}  // namespace headrace::cuda::sm90::fwd
