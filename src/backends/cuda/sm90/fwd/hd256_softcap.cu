#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd256_softcap = kernels_of<kSoftcap256, ScoreMod::softcap>(
    "cuda_sm90_fwd<bf16, 256, softcap>", "cuda_sm90_fwd<f16, 256, softcap>");

}  // namespace headrace::cuda::sm90::fwd
