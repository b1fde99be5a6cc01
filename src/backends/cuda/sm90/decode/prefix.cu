#include "backends/cuda/sm90/decode/prefix.cuh"

namespace headrace::cuda::sm90::decode {

Status launch_prefix(const Call& call, int dim) {
  if (call.dtype == DType::bf16)
    return dim == 64 ? launch_prefix_kernels<Bf16Element, 64>(call)
                     : launch_prefix_kernels<Bf16Element, 128>(call);
  return dim == 64 ? launch_prefix_kernels<F16Element, 64>(call)
                   : launch_prefix_kernels<F16Element, 128>(call);
}

}  // namespace headrace::cuda::sm90::decode
