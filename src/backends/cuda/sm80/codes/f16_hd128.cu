#include "backends/cuda/sm80/codes/kernel.cuh"

namespace headrace::cuda::sm80::codes {

Status launch_f16_hd128(const Params& params, DType format, Stream stream) {
  return launch_format<F16, 128>("cuda_sm80_codes<f16, 128>", params, format, stream);
}

}  // namespace headrace::cuda::sm80::codes
