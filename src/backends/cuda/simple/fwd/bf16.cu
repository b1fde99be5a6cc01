#include "backends/cuda/simple/fwd/kernel.cuh"

namespace headrace::cuda::simple::fwd {

Status launch_bf16(const Params& params, std::int64_t num_ctas, Stream stream) {
  return launch_rows<__nv_bfloat16>("cuda_simple<bf16>", params, num_ctas, stream);
}

}  // namespace headrace::cuda::simple::fwd
