#include "backends/cuda/sm90/decode/kernel.cuh"

namespace headrace::cuda::sm90::decode {

Status launch_hd128(const Call& call) {
  return launch_dim<128, false>("cuda_sm90_decode<bf16, 128>", "cuda_sm90_decode<f16, 128>", call);
}

}  // namespace headrace::cuda::sm90::decode
