#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_few128_general = kernels_of<kFewRowsMod128, ScoreMod::general>(
    "cuda_sm90_fwd<bf16, 128, few rows, general>", "cuda_sm90_fwd<f16, 128, few rows, general>");

}  // namespace headrace::cuda::sm90::fwd
