#include "backends/cuda/sm90/bwd/kernel.cuh"

namespace headrace::cuda::sm90::bwd {

Status launch_hd64_general(const Call& call) {
  return launch_tile<kTile64, Kind{.is_general = true, .is_fixed = false}>(
      "cuda_sm90_bwd<bf16, 64, general>", "cuda_sm90_bwd<f16, 64, general>", call);
}

}  // namespace headrace::cuda::sm90::bwd
