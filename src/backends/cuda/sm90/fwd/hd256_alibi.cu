#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd256_alibi = kernels_of<kTile256, ScoreMod::alibi>(
    "cuda_sm90_fwd<bf16, 256, alibi>", "cuda_sm90_fwd<f16, 256, alibi>");

}  // namespace headrace::cuda::sm90::fwd
