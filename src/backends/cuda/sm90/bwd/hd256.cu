#include "backends/cuda/sm90/bwd/kernel.cuh"

namespace headrace::cuda::sm90::bwd {

constinit Kernels kernels_hd256 =
    kernels_of<kTile256, Kind{.is_general = false, .is_fixed = false}>("cuda_sm90_bwd<bf16, 256>",
                                                                       "cuda_sm90_bwd<f16, 256>");

}  // namespace headrace::cuda::sm90::bwd
