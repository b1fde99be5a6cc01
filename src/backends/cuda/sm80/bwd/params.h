// What backward.cc hands to the backward kernels of sm80/.
#pragma once

#include "backends/cuda/common/score_params.h"
#include "backends/cuda/sm80/bwd/config.h"

namespace headrace::cuda::sm80::bwd {

struct BackwardParams {
  BwdPreprocessParams rows;
  ScoreParams score_params;
  UnitOrder order;  // of tiles of keys
  BiasTiles bias_tiles;
  std::int64_t num_bias_units = 0;
  std::uint32_t* turns = nullptr;   // by head, tile of rows and warp; null: any order will do
  std::uint32_t* ticket = nullptr;  // of the CTAs, with turns
  bool is_large;                    // the tile
  bool is_aligned;                  // 16 bytes at a time
  bool is_even_k, is_even_v;        // ... of which a row of K, of V, has a whole number
};

// One file each.
using BackwardFn = Status (*)(const BackwardParams& params, Stream stream);
Status launch_backward_f32_hd64(const BackwardParams& params, Stream stream);
Status launch_backward_f32_hd128(const BackwardParams& params, Stream stream);
Status launch_backward_f32_hd256(const BackwardParams& params, Stream stream);
Status launch_backward_f16_hd64(const BackwardParams& params, Stream stream);
Status launch_backward_f16_hd128(const BackwardParams& params, Stream stream);
Status launch_backward_f16_hd256(const BackwardParams& params, Stream stream);
Status launch_backward_bf16_hd64(const BackwardParams& params, Stream stream);
Status launch_backward_bf16_hd128(const BackwardParams& params, Stream stream);
Status launch_backward_bf16_hd256(const BackwardParams& params, Stream stream);

}  // namespace headrace::cuda::sm80::bwd
