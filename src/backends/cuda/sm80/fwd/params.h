// Parameters of the forward kernels.
#pragma once

#include "backends/cuda/common/kernel_args.h"
#include "backends/cuda/common/page_table.h"
#include "backends/cuda/sm80/fwd/config.h"
#include "backends/cuda/sm80/launchers.h"
#include "core/kernel.h"

namespace headrace::cuda::sm80::fwd {

// What the kernels of a call share.
struct SplitParams {
  Sizes sizes;
  Lengths lengths;
  UsedKeys used_keys;
  Operand out;
  RowArgs rows;
  SplitRule rule;
  SplitLayout layout;
  float* o_partial;  // null: no split KV
};

struct Params {
  SplitParams split;
  Operand q, k, v;
  PageTable pages;  // of k and v
  Window window;
  ScoreArgs scores;
  WorkOrder order;     // of row tiles or splits
  std::int32_t group;  // group_size(problem)
  Divisor by_group;
  bool is_aligned;            // to 16 bytes
  bool is_even_k, is_even_v;  // aligned, and a row of K, of V, is whole 16-byte chunks
};
static_assert(sizeof(Params) <= 704);

// Of the kernel that combines the splits of a row.
struct CombineParams {
  SplitParams split;
  Tile tile;
  float keep_factor;
};
static_assert(sizeof(CombineParams) <= 328);

struct Call {
  const Params& params;
  Tile tile;
  bool is_general, use_large_tile;
  Stream stream;
};

using Launch = Launchers<Call>::Launch;
Launch launch_f32_hd64, launch_f32_hd128, launch_f32_hd256;
Launch launch_f16_hd64, launch_f16_hd128, launch_f16_hd256;
Launch launch_bf16_hd64, launch_bf16_hd128, launch_bf16_hd256;

}  // namespace headrace::cuda::sm80::fwd
