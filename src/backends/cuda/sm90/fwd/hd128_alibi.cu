#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd128_alibi = kernels_of<kTile128, ScoreMod::alibi>(
    "cuda_sm90_fwd<bf16, 128, alibi>", "cuda_sm90_fwd<f16, 128, alibi>");

}  // namespace headrace::cuda::sm90::fwd
