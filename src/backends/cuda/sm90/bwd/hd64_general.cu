#include "backends/cuda/sm90/bwd/kernel.cuh"

namespace headrace::cuda::sm90::bwd {

constinit Kernels kernels_hd64_general =
    kernels_of<kTile64, Kind{.is_general = true, .is_fixed = false}>(
        "cuda_sm90_bwd<bf16, 64, general>", "cuda_sm90_bwd<f16, 64, general>");

}  // namespace headrace::cuda::sm90::bwd
