#include "backends/cuda/gemm/wide.cuh"

namespace headrace::cuda::gemm {

Status launch_wide_f16(const WideCall& call) {
  return launch_wide<sm90::F16Element>("gemm_wide<f16>", call);
}

}  // namespace headrace::cuda::gemm
