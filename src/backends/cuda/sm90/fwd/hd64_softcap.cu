#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd64_softcap = kernels_of<kSoftcap64, ScoreMod::softcap>(
    "cuda_sm90_fwd<bf16, 64, softcap>", "cuda_sm90_fwd<f16, 64, softcap>");

}  // namespace headrace::cuda::sm90::fwd
