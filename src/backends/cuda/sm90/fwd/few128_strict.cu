#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_few128_strict = kernels_of<kFewStrict128, ScoreMod::plain>(
    "cuda_sm90_fwd<bf16, 128, few strict rows>", "cuda_sm90_fwd<f16, 128, few strict rows>");

}  // namespace headrace::cuda::sm90::fwd
