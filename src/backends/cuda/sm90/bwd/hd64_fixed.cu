#include "backends/cuda/sm90/bwd/kernel.cuh"

namespace headrace::cuda::sm90::bwd {

Status launch_hd64_fixed(const Call& call) {
  return launch_tile<kTile64, Kind{.is_general = false, .is_fixed = true}>(
      "cuda_sm90_bwd<bf16, 64>", "cuda_sm90_bwd<f16, 64>", call);
}

}  // namespace headrace::cuda::sm90::bwd
