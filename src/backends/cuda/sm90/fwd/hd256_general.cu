#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd256_general(const Call& call) {
  return launch_tile<kGeneral256, ScoreMod::general>("cuda_sm90_fwd<bf16, 256, general>",
                                                     "cuda_sm90_fwd<f16, 256, general>", call);
}

}  // namespace headrace::cuda::sm90::fwd
