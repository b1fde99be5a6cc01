#include "backends/cuda/gemm/tiles.cuh"

namespace headrace::cuda::gemm {

Status launch_tiles_bf16(const TileCall& call) {
  return launch_tiles<sm90::Bf16Element>("gemm_tiles<bf16>", call);
}

}  // namespace headrace::cuda::gemm
