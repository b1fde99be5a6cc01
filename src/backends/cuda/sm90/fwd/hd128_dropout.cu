#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd128_dropout = kernels_of<kDropout128, ScoreMod::dropout>(
    "cuda_sm90_fwd<bf16, 128, dropout>", "cuda_sm90_fwd<f16, 128, dropout>");

}  // namespace headrace::cuda::sm90::fwd
