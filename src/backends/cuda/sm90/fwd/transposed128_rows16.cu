#include "backends/cuda/sm90/fwd/transposed.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_transposed128_rows16 = split_kernels_of<kTransposed128Rows16>(
    "cuda_sm90_fwd<bf16, 128, 16 rows>", "cuda_sm90_fwd<f16, 128, 16 rows>");

}  // namespace headrace::cuda::sm90::fwd
