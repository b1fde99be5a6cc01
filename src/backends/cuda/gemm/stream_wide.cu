// Products of 17 to 64 tokens on Hopper: a warpgroup multiplies 64 rows of weights with all tokens
// by wgmma.
#include "backends/cuda/gemm/stream.cuh"

namespace headrace::cuda::gemm {
namespace {

template <class Element>
__device__ void multiply_tiles(const StreamParams& p, StageRing ring, int group) {
  constexpr int kTileBytes = stream_tile_bytes(kWideStream);
  static_assert(kWideStream.atoms == 1);
  const int thread = static_cast<int>(threadIdx.x) & 127;
  const auto multiply = [&](int tile) {
    float d[kWideTokens / 2];
    sum_stages<Element, kWideTokens>(d, ring, p.plan.num_stage_loads, group * kTileBytes,
                                     p.plan.group * kTileBytes);
    griddep_wait();  // out may be read by the kernel before, or written
    const int matrix = p.tiles.matrix_of(tile), lane = thread & 31;
    const int row_0 =
        (tile - p.tiles.first_tile[matrix]) * kWideStream.tile_rows + thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < kWideTokens / 2; ++i) {
      const int row = row_0 + (i & 2) * 4, token = i / 4 * 8 + 2 * (lane & 3) + (i & 1);
      if (row < p.tiles.rows[matrix] && token < p.num_tokens)
        store<Element>(p.out, token, p.tiles.first_row[matrix] + row, d[i]);
    }
  };
  for_each_tile(p, group, multiply, [&] {
    if (thread >= 32) return;  // a warp that waits in step with no other could miss a phase
    for (int i = 0; i < p.plan.num_stage_loads; ++i, ring.next()) {
      mbarrier_wait(ring.full(), ring.parity);
      if (thread == 0) mbarrier_arrive(ring.empty());
      __syncwarp();
    }
  });
}

template <class Element>
__global__ void __launch_bounds__(stream_threads(kWideStream), 1)
    stream_wide(const __grid_constant__ StreamParams p, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char smem_raw[];
  constexpr StreamShape kShape = kWideStream;
  run_stream<kShape.tile_rows, kShape.atoms, kShape.most_tiles, kShape.unit_warps,
             kShape.ring_bytes>(p, maps, smem_raw, [&](const StageRing& ring, int group) {
    multiply_tiles<Element>(p, ring, group);
  });
#endif
}

template <class Element>
Status launch_variant(const char* name, const StreamCall& call) {
  static AllowedSmem allowed;
  return launch_stream(name, kWideStream, stream_wide<Element>, allowed, call);
}

}  // namespace

Status launch_wide_stream(const StreamCall& call) {
  if (call.dtype == DType::bf16)
    return launch_variant<sm90::Bf16Element>("gemm_stream<bf16, 64>", call);
  return launch_variant<sm90::F16Element>("gemm_stream<f16, 64>", call);
}

}  // namespace headrace::cuda::gemm
