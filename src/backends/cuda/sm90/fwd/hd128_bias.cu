#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd128_bias = kernels_of<kBias128, ScoreMod::bias>(
    "cuda_sm90_fwd<bf16, 128, bias>", "cuda_sm90_fwd<f16, 128, bias>");

}  // namespace headrace::cuda::sm90::fwd
