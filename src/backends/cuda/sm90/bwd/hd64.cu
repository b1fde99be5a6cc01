#include "backends/cuda/sm90/bwd/kernel.cuh"

namespace headrace::cuda::sm90::bwd {

constinit Kernels kernels_hd64 = kernels_of<kTile64, Kind{.is_general = false, .is_fixed = false}>(
    "cuda_sm90_bwd<bf16, 64>", "cuda_sm90_bwd<f16, 64>");

}  // namespace headrace::cuda::sm90::bwd
