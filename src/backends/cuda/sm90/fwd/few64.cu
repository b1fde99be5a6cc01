#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_few64 = kernels_of<kFewRows64, ScoreMod::plain>(
    "cuda_sm90_fwd<bf16, 64, few rows>", "cuda_sm90_fwd<f16, 64, few rows>");

}  // namespace headrace::cuda::sm90::fwd
