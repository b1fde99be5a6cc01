#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd192v128 = kernels_of<kTile192v128, ScoreMod::plain>(
    "cuda_sm90_fwd<bf16, 192/128>", "cuda_sm90_fwd<f16, 192/128>");

}  // namespace headrace::cuda::sm90::fwd
