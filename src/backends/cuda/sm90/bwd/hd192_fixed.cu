#include "backends/cuda/sm90/bwd/kernel.cuh"

namespace headrace::cuda::sm90::bwd {

constinit Kernels kernels_hd192_fixed =
    kernels_of<kTile192, Kind{.is_general = false, .is_fixed = true}>("cuda_sm90_bwd<bf16, 192>",
                                                                      "cuda_sm90_bwd<f16, 192>");

}  // namespace headrace::cuda::sm90::bwd
