#include "backends/cuda/softmax/softmax.cuh"

namespace headrace::cuda::softmax {

Status forward_bf16(const SoftmaxForwardArgs& args, const Config& config, Stream stream) {
  return forward<__nv_bfloat16>("softmax<bf16>", args, config, stream);
}

Status backward_bf16(const SoftmaxBackwardArgs& args, const Config& config, Stream stream) {
  return backward<__nv_bfloat16>("softmax_backward<bf16>", args, config, stream);
}

}  // namespace headrace::cuda::softmax
