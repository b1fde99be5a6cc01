#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd64_dropout = kernels_of<kDropout64, ScoreMod::dropout>(
    "cuda_sm90_fwd<bf16, 64, dropout>", "cuda_sm90_fwd<f16, 64, dropout>");

}  // namespace headrace::cuda::sm90::fwd
