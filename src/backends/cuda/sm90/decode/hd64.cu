#include "backends/cuda/sm90/decode/kernel.cuh"

namespace headrace::cuda::sm90::decode {

Status launch_hd64(const Call& call) {
  return launch_dim<64, false>("cuda_sm90_decode<bf16, 64>", "cuda_sm90_decode<f16, 64>", call);
}

}  // namespace headrace::cuda::sm90::decode
