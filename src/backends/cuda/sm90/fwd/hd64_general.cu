#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd64_general(const Call& call) {
  return launch_tile<kGeneral64, ScoreMod::general>("cuda_sm90_fwd<bf16, 64, general>",
                                                    "cuda_sm90_fwd<f16, 64, general>", call);
}

}  // namespace headrace::cuda::sm90::fwd
