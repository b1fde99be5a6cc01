#include "backends/cuda/sm80/codes/kernel.cuh"

namespace headrace::cuda::sm80::codes {

Status launch_bf16_hd64(const Params& params, DType format, Stream stream) {
  return launch_format<Bf16, 64>("cuda_sm80_codes<bf16, 64>", params, format, stream);
}

}  // namespace headrace::cuda::sm80::codes
