#include "backends/cuda/gemm/tiles.cuh"

namespace headrace::cuda::gemm {
namespace {

template <class Element>
Status launch_of(const char* const (&names)[3], const TileCall& call) {
  if (call.tile_rows == 64) return launch_variant<Element, 64>(names[0], call);
  if (call.tile_rows == 128) return launch_variant<Element, 128>(names[1], call);
  return launch_variant<Element, 256>(names[2], call);
}

}  // namespace

Status launch_tiles(const TileCall& call) {
  if (call.dtype == DType::bf16)
    return launch_of<sm90::Bf16Element>(
        {"gemm_tiles<bf16, 64>", "gemm_tiles<bf16, 128>", "gemm_tiles<bf16, 256>"}, call);
  return launch_of<sm90::F16Element>(
      {"gemm_tiles<f16, 64>", "gemm_tiles<f16, 128>", "gemm_tiles<f16, 256>"}, call);
}

}  // namespace headrace::cuda::gemm
