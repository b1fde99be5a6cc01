#include "backends/cuda/gemm/tiles.cuh"

namespace headrace::cuda::gemm {

Status launch_tiles_f16(const TileCall& call) {
  return launch_tiles<sm90::F16Element>("gemm_tiles<f16>", call);
}

}  // namespace headrace::cuda::gemm
