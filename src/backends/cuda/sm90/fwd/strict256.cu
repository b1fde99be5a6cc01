#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_strict256(const Call& call) {
  return launch_tile<kStrict256, ScoreMod::plain>("cuda_sm90_fwd<bf16, 256, strict rows>",
                                                  "cuda_sm90_fwd<f16, 256, strict rows>", call);
}

}  // namespace headrace::cuda::sm90::fwd
