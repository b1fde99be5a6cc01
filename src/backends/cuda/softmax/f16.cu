#include "backends/cuda/softmax/softmax.cuh"

namespace headrace::cuda::softmax {

Status forward_f16(const SoftmaxForwardArgs& args, const Config& config, Stream stream) {
  return forward<__half>("softmax<f16>", args, config, stream);
}

Status backward_f16(const SoftmaxBackwardArgs& args, const Config& config, Stream stream) {
  return backward<__half>("softmax_backward<f16>", args, config, stream);
}

}  // namespace headrace::cuda::softmax
