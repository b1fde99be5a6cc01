#include "backends/cuda/gemm/tiles.cuh"

namespace headrace::cuda::gemm {
namespace {

template <class Element>
Status launch_of(const char* const (&names)[std::size(kTileShapes)], const TileCall& call) {
  if (call.shape == kTileShapes[0]) return launch_variant<Element, 0>(names[0], call);
  if (call.shape == kTileShapes[1]) return launch_variant<Element, 1>(names[1], call);
  if (call.shape == kTileShapes[2]) return launch_variant<Element, 2>(names[2], call);
  return launch_variant<Element, 3>(names[3], call);
}

}  // namespace

Status launch_tiles(const TileCall& call) {
  if (call.dtype == DType::bf16)
    return launch_of<sm90::Bf16Element>(
        {"gemm_tiles<bf16, 256, ping-pong>", "gemm_tiles<bf16, 128>",
         "gemm_tiles<bf16, 128, ping-pong>", "gemm_tiles<bf16, 64>"},
        call);
  return launch_of<sm90::F16Element>({"gemm_tiles<f16, 256, ping-pong>", "gemm_tiles<f16, 128>",
                                      "gemm_tiles<f16, 128, ping-pong>", "gemm_tiles<f16, 64>"},
                                     call);
}

}  // namespace headrace::cuda::gemm
