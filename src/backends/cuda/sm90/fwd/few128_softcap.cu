#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_few128_softcap = kernels_of<kFewRowsMod128, ScoreMod::softcap>(
    "cuda_sm90_fwd<bf16, 128, few rows, softcap>", "cuda_sm90_fwd<f16, 128, few rows, softcap>");

}  // namespace headrace::cuda::sm90::fwd
