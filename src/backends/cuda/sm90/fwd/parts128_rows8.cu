#include "backends/cuda/sm90/fwd/transposed_parts.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_parts128_rows8(const Call& call) {
  return launch_parts_tile<kParts128Rows8>("cuda_sm90_fwd<bf16, 128, 8 rows, parts>",
                                           "cuda_sm90_fwd<f16, 128, 8 rows, parts>", call);
}

}  // namespace headrace::cuda::sm90::fwd
