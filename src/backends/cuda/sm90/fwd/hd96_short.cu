#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd96_short(const Call& call) {
  return launch_tile<kShort96, ScoreMod::plain>("cuda_sm90_fwd<bf16, 96, short>",
                                                "cuda_sm90_fwd<f16, 96, short>", call);
}

}  // namespace headrace::cuda::sm90::fwd
