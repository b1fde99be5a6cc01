#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_strict128 = kernels_of<kStrict128, ScoreMod::plain>(
    "cuda_sm90_fwd<bf16, 128, strict rows>", "cuda_sm90_fwd<f16, 128, strict rows>");

}  // namespace headrace::cuda::sm90::fwd
