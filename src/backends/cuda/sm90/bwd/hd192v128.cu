#include "backends/cuda/sm90/bwd/kernel.cuh"

namespace headrace::cuda::sm90::bwd {

constinit Kernels kernels_hd192v128 =
    kernels_of<kTile192v128, Kind{.is_general = false, .is_fixed = false}>(
        "cuda_sm90_bwd<bf16, 192, 128>", "cuda_sm90_bwd<f16, 192, 128>");

}  // namespace headrace::cuda::sm90::bwd
