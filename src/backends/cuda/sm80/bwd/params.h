// Parameters of the backward kernels.
#pragma once

#include "backends/cuda/common/bwd_preprocess.h"
#include "backends/cuda/common/kernel_args.h"
#include "backends/cuda/sm80/bwd/config.h"
#include "backends/cuda/sm80/launchers.h"

namespace headrace::cuda::sm80::bwd {

// P and dS, of the main kernel and of dbias.
struct GradParams {
  Sizes sizes;
  Lengths lengths;
  Operand q, k, v, dout;
  Window window;
  ScoreArgs scores;
  const float *delta, *lse;    // of BwdRows
  std::int32_t group;          // query heads of a KV head
  std::int32_t element_bytes;  // of q and dout
  bool is_aligned;             // to 16 bytes
  bool is_even_k, is_even_v;   // aligned, and a row of K, of V, is whole 16-byte chunks
};

struct Params {
  GradParams grads;
  Operand dk, dv;
  WorkOrder order;  // of key tiles
  float* dq_accum;
  std::int64_t dq_accum_cols;
  // deterministic: one per head, q-block and warp, and the dynamic tile counter; null: any order.
  std::uint32_t* dq_semaphores;
  std::uint32_t* tile_counter;
};
static_assert(sizeof(Params) <= 640);

struct DBiasParams {
  GradParams grads;
  ScoreOperand dbias;
  DBiasTiles tiles;
};
static_assert(sizeof(DBiasParams) <= 592);

struct Call {
  const BwdCall& backward;
  const Params& main;
  const DBiasParams& dbias;
  bool is_general, use_large_tile;
  bool only_dbias;  // dbias and what it reads
  Stream stream;
};

using Launch = Launchers<Call>::Launch;
Launch launch_f32_hd64, launch_f32_hd128, launch_f32_hd256;
Launch launch_f16_hd64, launch_f16_hd128, launch_f16_hd256;
Launch launch_bf16_hd64, launch_bf16_hd128, launch_bf16_hd256;

}  // namespace headrace::cuda::sm80::bwd
