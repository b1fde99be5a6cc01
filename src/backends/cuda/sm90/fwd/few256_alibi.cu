#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_few256_alibi = kernels_of<kFewRowsMod256, ScoreMod::alibi>(
    "cuda_sm90_fwd<bf16, 256, few rows, alibi>", "cuda_sm90_fwd<f16, 256, few rows, alibi>");

}  // namespace headrace::cuda::sm90::fwd
