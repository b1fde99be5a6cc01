#include "backends/cuda/sm90/fwd/transposed.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_transposed128_rows16(const Call& call) {
  return launch_transposed_tile<kTransposed128Rows16>("cuda_sm90_fwd<bf16, 128, 16 rows>",
                                                      "cuda_sm90_fwd<f16, 128, 16 rows>", call);
}

}  // namespace headrace::cuda::sm90::fwd
