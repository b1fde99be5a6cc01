#include "backends/cuda/softmax/softmax.cuh"

namespace headrace::cuda::softmax {

Status forward_f32(const SoftmaxForwardArgs& args, const Config& config, Stream stream) {
  return forward<float>("softmax<f32>", args, config, stream);
}

Status backward_f32(const SoftmaxBackwardArgs& args, const Config& config, Stream stream) {
  return backward<float>("softmax_backward<f32>", args, config, stream);
}

}  // namespace headrace::cuda::softmax
