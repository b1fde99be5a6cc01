#include "backends/cuda/sm90/bwd/kernel.cuh"

namespace headrace::cuda::sm90::bwd {

constinit Kernels kernels_hd128_fixed =
    kernels_of<kTile128, Kind{.is_general = false, .is_fixed = true}>("cuda_sm90_bwd<bf16, 128>",
                                                                      "cuda_sm90_bwd<f16, 128>");

}  // namespace headrace::cuda::sm90::bwd
