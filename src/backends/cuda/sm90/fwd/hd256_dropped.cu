#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90 {

Status launch_hd256_dropped(const Call& call) {
  return launch_tile<kTile256, Scores::dropped>("cuda_sm90_fwd<bf16, 256, dropped>",
                                                "cuda_sm90_fwd<f16, 256, dropped>", call);
}

}  // namespace headrace::cuda::sm90
