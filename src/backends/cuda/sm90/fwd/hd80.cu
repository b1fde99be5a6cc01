#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd80 =
    kernels_of<kTile80, ScoreMod::plain>("cuda_sm90_fwd<bf16, 80>", "cuda_sm90_fwd<f16, 80>");

}  // namespace headrace::cuda::sm90::fwd
