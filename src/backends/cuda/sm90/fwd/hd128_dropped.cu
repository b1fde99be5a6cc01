#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90 {

Status launch_hd128_dropped(const Call& call) {
  return launch_tile<kDropped128, Scores::dropped>("cuda_sm90_fwd<bf16, 128, dropped>",
                                                   "cuda_sm90_fwd<f16, 128, dropped>", call);
}

}  // namespace headrace::cuda::sm90
