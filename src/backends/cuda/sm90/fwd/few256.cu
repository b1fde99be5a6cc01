#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_few256 = kernels_of<kFewRows256, ScoreMod::plain>(
    "cuda_sm90_fwd<bf16, 256, few rows>", "cuda_sm90_fwd<f16, 256, few rows>");

}  // namespace headrace::cuda::sm90::fwd
