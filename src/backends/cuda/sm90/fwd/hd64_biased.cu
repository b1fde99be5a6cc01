#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90 {

Status launch_hd64_biased(const Call& call) {
  return launch_tile<kBiased64, Scores::biased>("cuda_sm90_fwd<bf16, 64, biased>",
                                                "cuda_sm90_fwd<f16, 64, biased>", call);
}

}  // namespace headrace::cuda::sm90
