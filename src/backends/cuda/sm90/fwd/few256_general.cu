#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_few256_general = kernels_of<kFewRowsMod256, ScoreMod::general>(
    "cuda_sm90_fwd<bf16, 256, few rows, general>", "cuda_sm90_fwd<f16, 256, few rows, general>");

}  // namespace headrace::cuda::sm90::fwd
