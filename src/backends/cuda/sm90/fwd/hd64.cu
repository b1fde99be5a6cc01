#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd64 =
    kernels_of<kTile64, ScoreMod::plain>("cuda_sm90_fwd<bf16, 64>", "cuda_sm90_fwd<f16, 64>");

}  // namespace headrace::cuda::sm90::fwd
