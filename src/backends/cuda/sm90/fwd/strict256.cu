#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_strict256 = kernels_of<kStrict256, ScoreMod::plain>(
    "cuda_sm90_fwd<bf16, 256, strict rows>", "cuda_sm90_fwd<f16, 256, strict rows>");

}  // namespace headrace::cuda::sm90::fwd
