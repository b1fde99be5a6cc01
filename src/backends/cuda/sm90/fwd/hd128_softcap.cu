#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd128_softcap = kernels_of<kSoftcap128, ScoreMod::softcap>(
    "cuda_sm90_fwd<bf16, 128, softcap>", "cuda_sm90_fwd<f16, 128, softcap>");

}  // namespace headrace::cuda::sm90::fwd
