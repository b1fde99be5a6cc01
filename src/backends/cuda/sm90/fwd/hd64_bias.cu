#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd64_bias = kernels_of<kBias64, ScoreMod::bias>(
    "cuda_sm90_fwd<bf16, 64, bias>", "cuda_sm90_fwd<f16, 64, bias>");

}  // namespace headrace::cuda::sm90::fwd
