#include "backends/cuda/sm90/fwd/transposed_parts.cuh"

namespace headrace::cuda::sm90::fwd {

constinit Kernels kernels_parts64_rows8 = part_kernels_of<kParts64Rows8>(
    "cuda_sm90_fwd<bf16, 64, 8 rows, parts>", "cuda_sm90_fwd<f16, 64, 8 rows, parts>");

}  // namespace headrace::cuda::sm90::fwd
