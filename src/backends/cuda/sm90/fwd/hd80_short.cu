#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd80_short(const Call& call) {
  return launch_tile<kShort80, ScoreMod::plain>("cuda_sm90_fwd<bf16, 80, short>",
                                                "cuda_sm90_fwd<f16, 80, short>", call);
}

}  // namespace headrace::cuda::sm90::fwd
