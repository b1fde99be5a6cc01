// What backward.cc hands to the backward kernels of sm80/.
#pragma once

#include "backends/cuda/common/score_params.h"
#include "backends/cuda/sm80/bwd/config.h"

namespace headrace::cuda::sm80::bwd {

struct Params {
  BwdPreprocessParams rows;
  ScoreParams score_params;
  WorkOrder order;  // of tiles of keys
  DBiasTiles dbias_tiles;
  std::int64_t num_dbias_tiles = 0;
  std::uint32_t* dq_semaphores =
      nullptr;                            // by head, tile of rows and warp; null: any order will do
  std::uint32_t* tile_counter = nullptr;  // of the CTAs, with turns
  bool use_large_tile;                    // the tile
  bool is_aligned;                        // 16 bytes at a time
  bool is_even_k, is_even_v;              // ... of which a row of K, of V, has a whole number
};

// One file each.
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
