#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd128_general(const Call& call) {
  return launch_tile<kGeneral128, ScoreMod::general>("cuda_sm90_fwd<bf16, 128, general>",
                                                     "cuda_sm90_fwd<f16, 128, general>", call);
}

}  // namespace headrace::cuda::sm90::fwd
