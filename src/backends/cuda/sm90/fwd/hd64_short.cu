#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd64_short(const Call& call) {
  return launch_tile<kShort64, ScoreMod::plain>("cuda_sm90_fwd<bf16, 64, short>",
                                                "cuda_sm90_fwd<f16, 64, short>", call);
}

}  // namespace headrace::cuda::sm90::fwd
