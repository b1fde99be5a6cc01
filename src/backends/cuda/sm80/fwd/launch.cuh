// Launches for one (dtype, head dim): the main kernel with plain or general scores, then combine.
#pragma once

#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm80/fwd/combine.cuh"
#include "backends/cuda/sm80/fwd/kernel.cuh"

namespace headrace::cuda::sm80::fwd {

template <class T, bool kIsGeneral, int kDim, bool kIsLarge = false>
Status launch_forward(const char* name, const Params& params, cudaStream_t stream) {
  using Shape = TileOf<std::is_same_v<T, float>, kDim, kIsGeneral, kIsLarge>;
  constexpr Tile tile = Shape::kTile;
  constexpr SmemPlan smem = smem_plan(tile, sizeof(T), kIsGeneral);
  static_assert(kIsLarge || smem.total <= kSmemLimitSm86);
  const std::int64_t num_tiles = params.order.num_tiles();
  const std::int64_t num_ctas = num_tiles < kMaxGridX ? num_tiles : kMaxGridX;
  const LaunchShape shape{.name = name,
                          .grid = dim3(static_cast<unsigned>(num_ctas)),
                          .block = dim3(tile.threads()),
                          .smem_bytes = static_cast<unsigned>(smem.total)};
  static AllowedSmem allowed;
  HEADRACE_TRY(allow_smem(shape, forward<T, kIsGeneral, Shape>, allowed));
  return launch(shape, stream, forward<T, kIsGeneral, Shape>, params);
}

template <class T>
Status launch_combine(const char* name, const Params& params, Tile tile, cudaStream_t stream) {
  const Problem& p = params.problem;
  const std::int64_t rows = p.batch * p.num_kv_heads * params.split_layout.rows;
  const std::int64_t num_ctas = ceil_div<std::int64_t>(rows, kCombineWarps);
  const LaunchShape shape{
      .name = name,
      .grid = dim3(static_cast<unsigned>(num_ctas < kMaxGridX ? num_ctas : kMaxGridX)),
      .block = dim3(32 * kCombineWarps)};
  return launch(shape, stream, combine<T>, params, tile);
}

template <class T, int kDim>
Status launch_scores(const char* name, const Params& params, cudaStream_t stream) {
  if (needs_general_scores(params.problem))
    return launch_forward<T, true, kDim>(name, params, stream);
  if constexpr (std::is_same_v<T, float> && kDim == kLargeTile.dim)
    if (params.use_large_tile) return launch_forward<T, false, kDim, true>(name, params, stream);
  return launch_forward<T, false, kDim>(name, params, stream);
}

template <class T, int kDim>
Status launch_all(const char* name, const Params& params, Stream stream) {
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  Status bad = launch_scores<T, kDim>(name, params, cuda_stream);
  if (bad || params.o_partial == nullptr) return bad;
  return launch_combine<T>(name, params, params.tile, cuda_stream);
}

}  // namespace headrace::cuda::sm80::fwd
