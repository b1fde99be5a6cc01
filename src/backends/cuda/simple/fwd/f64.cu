#include "backends/cuda/simple/fwd/kernel.cuh"

namespace headrace::cuda::simple::fwd {

Status launch_f64(const Params& params, std::int64_t num_ctas, Stream stream) {
  return launch_rows<double>("cuda_simple<f64>", params, num_ctas, stream);
}

}  // namespace headrace::cuda::simple::fwd
