#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd128_alibi(const Call& call) {
  return launch_tile<kTile128, ScoreMod::alibi>("cuda_sm90_fwd<bf16, 128, alibi>",
                                                "cuda_sm90_fwd<f16, 128, alibi>", call);
}

}  // namespace headrace::cuda::sm90::fwd
