#include "backends/cuda/sm90/fwd/transposed.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_transposed256_rows8 = split_kernels_of<kTransposed256Rows8>(
    "cuda_sm90_fwd<bf16, 256, 8 rows>", "cuda_sm90_fwd<f16, 256, 8 rows>");

}  // namespace headrace::cuda::sm90::fwd
