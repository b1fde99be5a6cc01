#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd192 =
    kernels_of<kTile192, ScoreMod::plain>("cuda_sm90_fwd<bf16, 192>", "cuda_sm90_fwd<f16, 192>");

}  // namespace headrace::cuda::sm90::fwd
