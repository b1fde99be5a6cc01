#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd256_softcap(const Call& call) {
  return launch_tile<kSoftcap256, ScoreMod::softcap>("cuda_sm90_fwd<bf16, 256, softcap>",
                                                     "cuda_sm90_fwd<f16, 256, softcap>", call);
}

}  // namespace headrace::cuda::sm90::fwd
