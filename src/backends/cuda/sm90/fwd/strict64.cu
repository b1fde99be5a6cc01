#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_strict64 = kernels_of<kStrict64, ScoreMod::plain>(
    "cuda_sm90_fwd<bf16, 64, strict rows>", "cuda_sm90_fwd<f16, 64, strict rows>");

}  // namespace headrace::cuda::sm90::fwd
