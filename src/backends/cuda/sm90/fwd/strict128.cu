#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_strict128(const Call& call) {
  return launch_tile<kStrict128, ScoreMod::plain>("cuda_sm90_fwd<bf16, 128, strict rows>",
                                                  "cuda_sm90_fwd<f16, 128, strict rows>", call);
}

}  // namespace headrace::cuda::sm90::fwd
