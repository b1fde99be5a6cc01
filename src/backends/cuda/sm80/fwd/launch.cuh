// Launches for one (dtype, head dim): the main kernel with plain or general scores, then combine.
#pragma once

#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm80/fwd/combine.cuh"
#include "backends/cuda/sm80/fwd/kernel.cuh"

namespace headrace::cuda::sm80::fwd {

template <class T, bool kIsGeneral, bool kReadsPages, int kDim, bool kIsLarge = false>
Status launch_forward(const char* name, const Params& params, Stream stream) {
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
  constexpr auto kKernel = forward<T, kIsGeneral, kReadsPages, Shape>;
  static AllowedSmem allowed;
  HEADRACE_TRY(allow_smem(shape, kKernel, allowed));
  return launch(shape, static_cast<cudaStream_t>(stream), kKernel, params);
}

template <class T>
Status launch_combine(const char* name, const Call& call) {
  const SplitParams& split = call.params.split;
  const std::int64_t rows = split.sizes.batch * split.sizes.num_kv_heads * split.layout.rows;
  const std::int64_t num_ctas = ceil_div<std::int64_t>(rows, kCombineWarps);
  const LaunchShape shape{
      .name = name,
      .grid = dim3(static_cast<unsigned>(num_ctas < kMaxGridX ? num_ctas : kMaxGridX)),
      .block = dim3(32 * kCombineWarps)};
  const CombineParams params{
      .split = split, .tile = call.tile, .keep_factor = call.params.scores.params.keep_factor};
  return launch(shape, static_cast<cudaStream_t>(call.stream), combine<T>, params);
}

template <class T, bool kReadsPages, int kDim>
Status launch_plain(const char* name, const Call& call) {
  if constexpr (std::is_same_v<T, float> && kDim == kLargeTile.dim)
    if (call.use_large_tile)
      return launch_forward<T, false, kReadsPages, kDim, true>(name, call.params, call.stream);
  return launch_forward<T, false, kReadsPages, kDim>(name, call.params, call.stream);
}

// With plain scores pages have instances of their own: in one instance their registers would slow
// whole tensors by 4 %.
template <class T, int kDim>
Status launch_scores(const char* name, const Call& call) {
  if (call.is_general) return launch_forward<T, true, true, kDim>(name, call.params, call.stream);
  if (call.params.pages.block_table != nullptr) return launch_plain<T, true, kDim>(name, call);
  return launch_plain<T, false, kDim>(name, call);
}

template <class T, int kDim>
Status launch_all(const char* name, const Call& call) {
  HEADRACE_TRY(launch_scores<T, kDim>(name, call));
  if (call.params.split.o_partial == nullptr) return std::nullopt;
  return launch_combine<T>(name, call);
}

}  // namespace headrace::cuda::sm80::fwd
