#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90 {

Status launch_hd96_general(const Call& call) {
  return launch_tile<kGeneral96, Scores::general>("cuda_sm90_fwd<bf16, 96, general>",
                                       "cuda_sm90_fwd<f16, 96, general>", call);
}

}  // namespace headrace::cuda::sm90
