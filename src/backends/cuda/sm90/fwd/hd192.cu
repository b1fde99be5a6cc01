#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90 {

Status launch_bf16_192(const Params& params, const Maps& maps, int num_ctas, Stream stream) {
  return launch_variant<Variant<kTile192, Bf16Element>>("cuda_sm90_fwd<bf16, 192>", params, maps, num_ctas, stream);
}

Status launch_f16_192(const Params& params, const Maps& maps, int num_ctas, Stream stream) {
  return launch_variant<Variant<kTile192, F16Element>>("cuda_sm90_fwd<f16, 192>", params, maps, num_ctas, stream);
}

}  // namespace headrace::cuda::sm90
