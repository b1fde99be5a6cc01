#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd128_general = kernels_of<kGeneral128, ScoreMod::general>(
    "cuda_sm90_fwd<bf16, 128, general>", "cuda_sm90_fwd<f16, 128, general>");

}  // namespace headrace::cuda::sm90::fwd
