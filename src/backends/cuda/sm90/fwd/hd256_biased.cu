#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90 {

Status launch_hd256_biased(const Call& call) {
  return launch_tile<kBiased256, Scores::biased>("cuda_sm90_fwd<bf16, 256, biased>",
                                                 "cuda_sm90_fwd<f16, 256, biased>", call);
}

}  // namespace headrace::cuda::sm90
