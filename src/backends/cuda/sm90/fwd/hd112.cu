#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd112 =
    kernels_of<kTile112, ScoreMod::plain>("cuda_sm90_fwd<bf16, 112>", "cuda_sm90_fwd<f16, 112>");

}  // namespace headrace::cuda::sm90::fwd
