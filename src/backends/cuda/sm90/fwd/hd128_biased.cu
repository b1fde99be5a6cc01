#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90 {

Status launch_hd128_biased(const Call& call) {
  return launch_tile<kBiased128, Scores::biased>("cuda_sm90_fwd<bf16, 128, biased>",
                                                 "cuda_sm90_fwd<f16, 128, biased>", call);
}

}  // namespace headrace::cuda::sm90
