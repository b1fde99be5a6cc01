#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd64_general = kernels_of<kGeneral64, ScoreMod::general>(
    "cuda_sm90_fwd<bf16, 64, general>", "cuda_sm90_fwd<f16, 64, general>");

}  // namespace headrace::cuda::sm90::fwd
