#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd64_short = kernels_of<kShort64, ScoreMod::plain>(
    "cuda_sm90_fwd<bf16, 64, short>", "cuda_sm90_fwd<f16, 64, short>");

}  // namespace headrace::cuda::sm90::fwd
