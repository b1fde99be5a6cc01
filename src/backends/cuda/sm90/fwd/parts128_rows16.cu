#include "backends/cuda/sm90/fwd/transposed_parts.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_parts128_rows16 = part_kernels_of<kParts128Rows16>(
    "cuda_sm90_fwd<bf16, 128, 16 rows, parts>", "cuda_sm90_fwd<f16, 128, 16 rows, parts>");

}  // namespace headrace::cuda::sm90::fwd
