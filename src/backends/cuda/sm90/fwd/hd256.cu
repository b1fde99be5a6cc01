#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90 {

Status launch_bf16_256(const Params& params, const Maps& maps, int num_ctas, Stream stream) {
  return launch_variant<Variant<kTile256, Bf16Element>>("cuda_sm90_fwd<bf16, 256>", params, maps, num_ctas, stream);
}

Status launch_f16_256(const Params& params, const Maps& maps, int num_ctas, Stream stream) {
  return launch_variant<Variant<kTile256, F16Element>>("cuda_sm90_fwd<f16, 256>", params, maps, num_ctas, stream);
}

}  // namespace headrace::cuda::sm90
