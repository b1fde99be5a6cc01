#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd80_short = kernels_of<kShort80, ScoreMod::plain>(
    "cuda_sm90_fwd<bf16, 80, short>", "cuda_sm90_fwd<f16, 80, short>");

}  // namespace headrace::cuda::sm90::fwd
