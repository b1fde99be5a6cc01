#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd64_alibi = kernels_of<kTile64, ScoreMod::alibi>(
    "cuda_sm90_fwd<bf16, 64, alibi>", "cuda_sm90_fwd<f16, 64, alibi>");

}  // namespace headrace::cuda::sm90::fwd
