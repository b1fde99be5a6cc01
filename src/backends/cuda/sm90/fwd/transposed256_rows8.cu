#include "backends/cuda/sm90/fwd/transposed.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_transposed256_rows8(const Call& call) {
  return launch_transposed_tile<kTransposed256Rows8>("cuda_sm90_fwd<bf16, 256, 8 rows>",
                                                     "cuda_sm90_fwd<f16, 256, 8 rows>", call);
}

}  // namespace headrace::cuda::sm90::fwd
