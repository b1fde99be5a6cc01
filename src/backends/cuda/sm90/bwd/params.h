// What the host hands to the Hopper backward kernel.
#pragma once

#include "backends/cuda/common/bwd_preprocess.h"
#include "backends/cuda/common/score_params.h"
#include "backends/cuda/device/types.cuh"

namespace headrace::cuda::sm90::bwd {

// Sums of two lengths and a window stay within 32 bits.
inline constexpr int kMaxSeqlen = 1 << 29, kOpenWindow = 1 << 30;

struct Params {
  BwdPreprocessParams rows;  // dq: blocks of (queries of a step) x (columns of the tile), each in
                             // the order of the registers that it comes from (config.h); in fixed
                             // point where there is a dq_scale
  int group;                 // query heads of a KV head
  // Relative to the diagonal, kOpenWindow where there is none.
  int window_left, window_right, is_top_left;
  // Blocks of keys: the grid is (section, key blocks, sections) where the first see most queries,
  // so that the longest come first and heads of a section share the L2 cache; else section is 0 and
  // the grid (key blocks, KV heads, batch).
  int section;
  float scale_log2, scale;
  // Of general scores, whose rows.lse is -lse.
  float inverse_scale, inverse_softcap;
  ScoreParams score_params;
};

struct Maps {
  TensorMap q, k, v, dout;
};

}  // namespace headrace::cuda::sm90::bwd
