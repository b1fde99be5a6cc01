// What the host passes to the Hopper backward kernel.
#pragma once

#include "backends/cuda/common/padded_rows.h"
#include "backends/cuda/device/types.cuh"

namespace headrace::cuda::sm90::bwd {

// Sums of two lengths and a window fit 32 bits.
inline constexpr int kMaxSeqlen = 1 << 29, kOpenWindow = 1 << 30;

// What the key blocks of a call and their query blocks follow from (block_iterator.cuh).
struct BlockParams {
  Sizes sizes;
  Lengths lengths;
  int group;  // query heads of a KV head
  // Relative to the diagonal, kOpenWindow where there is none.
  int window_left, window_right, is_top_left;
  // Where the first key blocks see the most queries, the grid is (section, key blocks, sections):
  // the longest CTAs come first, and the heads of a section share the L2 cache. Else section is 0
  // and the grid is (key blocks, KV heads, batch).
  int section;
};

struct Params {
  BlockParams blocks;
  BwdRows rows;  // dq_accum: blocks of (queries of the tile) x (columns of the tile), each in
                 // register order (config.h); in fixed point if there is a dq_scale
  Operand dk, dv;
  ScoreOperand bias;  // data may be null
  AlibiArgs alibi;
  float scale_log2, scale;
  // For general scores, where rows.lse is -lse.
  float inverse_scale, inverse_softcap;
  ScoreParams score_params;
};
static_assert(sizeof(Params) <= 384);

// Of the kernel that makes dq from its accumulator.
struct PostprocessParams {
  BlockParams blocks;
  BwdRows rows;
  Operand dq;
  float scale;
};
static_assert(sizeof(PostprocessParams) <= 224);

struct Maps {
  TensorMap q, k, v, dout;
};

}  // namespace headrace::cuda::sm90::bwd
