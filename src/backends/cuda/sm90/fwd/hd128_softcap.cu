#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd128_softcap(const Call& call) {
  return launch_tile<kSoftcap128, ScoreMod::softcap>("cuda_sm90_fwd<bf16, 128, softcap>",
                                                     "cuda_sm90_fwd<f16, 128, softcap>", call);
}

}  // namespace headrace::cuda::sm90::fwd
