#include "backends/cuda/simple/fwd/kernel.cuh"

namespace headrace::cuda::simple::fwd {

Status launch_f32(const Params& params, std::int64_t num_ctas, Stream stream) {
  return launch_rows<float>("cuda_simple<f32>", params, num_ctas, stream);
}

}  // namespace headrace::cuda::simple::fwd
