#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_hd96 =
    kernels_of<kTile96, ScoreMod::plain>("cuda_sm90_fwd<bf16, 96>", "cuda_sm90_fwd<f16, 96>");

}  // namespace headrace::cuda::sm90::fwd
