#include "backends/cuda/gemm/wide.cuh"

namespace headrace::cuda::gemm {

Status launch_wide_bf16(const WideCall& call) {
  return launch_wide<sm90::Bf16Element>("gemm_wide<bf16>", call);
}

}  // namespace headrace::cuda::gemm
