#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_few128_alibi = kernels_of<kFewRowsMod128, ScoreMod::alibi>(
    "cuda_sm90_fwd<bf16, 128, few rows, alibi>", "cuda_sm90_fwd<f16, 128, few rows, alibi>");

}  // namespace headrace::cuda::sm90::fwd
