#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90 {

Status launch_bf16_64(const Params& params, const Maps& maps, int num_ctas, Stream stream) {
  return launch_variant<Variant<kTile64, Bf16Element>>("cuda_sm90_fwd<bf16, 64>", params, maps, num_ctas, stream);
}

Status launch_f16_64(const Params& params, const Maps& maps, int num_ctas, Stream stream) {
  return launch_variant<Variant<kTile64, F16Element>>("cuda_sm90_fwd<f16, 64>", params, maps, num_ctas, stream);
}

}  // namespace headrace::cuda::sm90
