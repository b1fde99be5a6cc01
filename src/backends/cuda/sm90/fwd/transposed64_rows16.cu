#include "backends/cuda/sm90/fwd/transposed.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_transposed64_rows16 = split_kernels_of<kTransposed64Rows16>(
    "cuda_sm90_fwd<bf16, 64, 16 rows>", "cuda_sm90_fwd<f16, 64, 16 rows>");

}  // namespace headrace::cuda::sm90::fwd
