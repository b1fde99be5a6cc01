#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90 {

Status launch_hd64_dropped(const Call& call) {
  return launch_tile<kDropped64, Scores::dropped>("cuda_sm90_fwd<bf16, 64, dropped>",
                                                  "cuda_sm90_fwd<f16, 64, dropped>", call);
}

}  // namespace headrace::cuda::sm90
