#include "backends/cuda/simple/fwd/kernel.cuh"

namespace headrace::cuda::simple::fwd {

Status launch_f16(const Params& params, std::int64_t num_ctas, Stream stream) {
  return launch_rows<__half>("cuda_simple<f16>", params, num_ctas, stream);
}

}  // namespace headrace::cuda::simple::fwd
