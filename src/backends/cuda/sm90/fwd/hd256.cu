#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd256 =
    kernels_of<kTile256, ScoreMod::plain>("cuda_sm90_fwd<bf16, 256>", "cuda_sm90_fwd<f16, 256>");

}  // namespace headrace::cuda::sm90::fwd
