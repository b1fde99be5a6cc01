#include "backends/cuda/sm90/fwd/transposed.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_transposed64_rows8 = split_kernels_of<kTransposed64Rows8>(
    "cuda_sm90_fwd<bf16, 64, 8 rows>", "cuda_sm90_fwd<f16, 64, 8 rows>");

}  // namespace headrace::cuda::sm90::fwd
