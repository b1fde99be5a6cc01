#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd256_general = kernels_of<kGeneral256, ScoreMod::general>(
    "cuda_sm90_fwd<bf16, 256, general>", "cuda_sm90_fwd<f16, 256, general>");

}  // namespace headrace::cuda::sm90::fwd
