#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd256_bias = kernels_of<kBias256, ScoreMod::bias>(
    "cuda_sm90_fwd<bf16, 256, bias>", "cuda_sm90_fwd<f16, 256, bias>");

}  // namespace headrace::cuda::sm90::fwd
