// Parameters of the backward kernels.
#pragma once

#include "backends/cuda/common/score_params.h"
#include "backends/cuda/sm80/bwd/config.h"

namespace headrace::cuda::sm80::bwd {

struct Params {
  BwdPreprocessParams rows;
  ScoreParams score_params;
  WorkOrder order;  // of key tiles
  DBiasTiles dbias_tiles;
  std::int64_t num_dbias_tiles = 0;
  // deterministic: one per head, q-block and warp, and the dynamic tile counter; null: any order.
  std::uint32_t* dq_semaphores = nullptr;
  std::uint32_t* tile_counter = nullptr;
  bool use_large_tile;
  bool is_aligned;            // to 16 bytes
  bool is_even_k, is_even_v;  // aligned, and a row of K, of V, is whole 16-byte chunks
};

// Each in its own translation unit.
using LaunchFn = Status (*)(const Params& params, Stream stream);
Status launch_f32_hd64(const Params& params, Stream stream);
Status launch_f32_hd128(const Params& params, Stream stream);
Status launch_f32_hd256(const Params& params, Stream stream);
Status launch_f16_hd64(const Params& params, Stream stream);
Status launch_f16_hd128(const Params& params, Stream stream);
Status launch_f16_hd256(const Params& params, Stream stream);
Status launch_bf16_hd64(const Params& params, Stream stream);
Status launch_bf16_hd128(const Params& params, Stream stream);
Status launch_bf16_hd256(const Params& params, Stream stream);

}  // namespace headrace::cuda::sm80::bwd
