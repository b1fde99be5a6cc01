// Launches for one (dtype, head dim): preprocess, main kernel, dq conversion, dbias, dsinks.
#pragma once

#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm80/bwd/dbias.cuh"
#include "backends/cuda/sm80/bwd/kernel.cuh"

namespace headrace::cuda::sm80::bwd {

template <class T, bool kIsGeneral, int kDim, bool kIsLarge = false>
using TileShape = TileOf<std::is_same_v<T, float>, kDim, kIsGeneral, kIsLarge>;

template <class Shape, class T, bool kIsGeneral, class Params>
Status launch_tiles(const char* name, void (*kernel)(Params), AllowedSmem& allowed,
                    std::int64_t num_units, const Params& params, Stream stream) {
  constexpr SmemPlan smem = smem_plan(Shape::kTile, sizeof(T), kIsGeneral);
  static_assert(Shape::kTile.async_warps || smem.total <= kSmemLimitSm86);
  if (num_units == 0) return std::nullopt;
  const std::int64_t num_ctas = num_units < kMaxGridX ? num_units : kMaxGridX;
  const LaunchShape shape{.name = name,
                          .grid = dim3(static_cast<unsigned>(num_ctas)),
                          .block = dim3(Shape::kTile.threads()),
                          .smem_bytes = static_cast<unsigned>(smem.total)};
  HEADRACE_TRY(allow_smem(shape, kernel, allowed));
  return launch(shape, static_cast<cudaStream_t>(stream), kernel, params);
}

template <class T, bool kIsGeneral, int kDim, bool kIsLarge>
Status launch_main(const char* name, const Call& call) {
  using Shape = TileShape<T, kIsGeneral, kDim, kIsLarge>;
  static AllowedSmem allowed;
  return launch_tiles<Shape, T, kIsGeneral>(name, backward<T, kIsGeneral, Shape>, allowed,
                                            call.main.order.num_tiles(), call.main, call.stream);
}

template <class T, int kDim>
Status launch_main(const char* name, const Call& call) {
  if (call.is_general) return launch_main<T, true, kDim, false>(name, call);
  if constexpr (!std::is_same_v<T, float> && kDim > 64)
    if (call.use_large_tile) return launch_main<T, false, kDim, true>(name, call);
  return launch_main<T, false, kDim, false>(name, call);
}

template <class T, int kDim>
Status launch_all(const char* name, const Call& call) {
  HEADRACE_TRY(launch_bwd_preprocess(call.backward, call.stream));
  if (!call.only_dbias) {
    HEADRACE_TRY(launch_main<T, kDim>(name, call));
    HEADRACE_TRY(launch_convert_dq(call.backward, call.stream));
  }
  using Shape = TileShape<T, true, kDim>;
  static AllowedSmem allowed;
  HEADRACE_TRY(launch_tiles<Shape, T, true>(name, dbias<T, Shape>, allowed,
                                            call.dbias.tiles.count(), call.dbias, call.stream));
  if (call.only_dbias || !call.backward.problem.has_dsinks) return std::nullopt;
  return launch_dsinks(call.backward, call.stream);
}

}  // namespace headrace::cuda::sm80::bwd
