#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd64_softcap(const Call& call) {
  return launch_tile<kSoftcap64, ScoreMod::softcap>("cuda_sm90_fwd<bf16, 64, softcap>",
                                                    "cuda_sm90_fwd<f16, 64, softcap>", call);
}

}  // namespace headrace::cuda::sm90::fwd
