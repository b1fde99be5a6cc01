#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90 {

Status launch_hd192_general(const Call& call) {
  return launch_tile<kGeneral192, Scores::general>("cuda_sm90_fwd<bf16, 192, general>",
                                        "cuda_sm90_fwd<f16, 192, general>", call);
}

}  // namespace headrace::cuda::sm90
