#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd96_short = kernels_of<kShort96, ScoreMod::plain>(
    "cuda_sm90_fwd<bf16, 96, short>", "cuda_sm90_fwd<f16, 96, short>");

}  // namespace headrace::cuda::sm90::fwd
