// Parameters of the forward kernels.
#pragma once

#include "backends/cuda/common/score_params.h"
#include "backends/cuda/sm80/fwd/config.h"
#include "core/kernel.h"

namespace headrace::cuda::sm80::fwd {

struct Params {
  Problem problem;
  AttentionArgs args;
  ScoreParams score_params;
  Tile tile;
  bool use_large_tile;
  WorkOrder order;                     // of row tiles or splits
  std::uint32_t group, group_inverse;  // group_size(problem)
  SplitLayout split_layout;
  float* o_partial;           // null: no split KV
  std::uint32_t* error_word;  // for lengths on the device
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

}  // namespace headrace::cuda::sm80::fwd
