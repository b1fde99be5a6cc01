// What the host hands to the Hopper decode kernel.
#pragma once

#include "backends/cuda/common/score_params.h"
#include "backends/cuda/device/types.cuh"
#include "backends/cuda/sm90/decode/config.h"
#include "core/args.h"

namespace headrace::cuda::sm90::decode {

// Of a row, in the workspace.
struct alignas(8) RowSums {
  float row_max, sum;  // the largest score before the scale; the sum of P
};

struct Params {
  Problem problem;
  AttentionArgs args;
  ScoreParams score_params;
  WorkPlan work;
  int rows;   // of a (sequence, KV head): row r is query r / group, head r % group of the group
  int group;  // query heads of a KV head
  int num_kv_heads;
  int seqlen_q, seqlen_k;
  int left, right;       // query q sees keys from left + q to before min(right + q, seqlen_k)
  float scale_log2;      // softmax_scale * log2(e), positive
  int boxes_k, boxes_v;  // TMA boxes of a block: 1 where a box holds all columns
  // In the workspace; null without.
  CounterWords* counters;
  int* arrived;              // [batch * num_kv_heads][copies]
  RowSums* row_sums;         // [batch * num_kv_heads][partials_per_head][rows][copies]
  float* o_partial;          // [batch * num_kv_heads][partials_per_head][rows][dim]
  unsigned long long token;  // that no other call of the process has
  int num_arrived, copies;
};

// Axes (column, slot, half, head, page). A contiguous tensor has a page for each sequence, with all
// of its keys as slots.
struct Maps {
  TensorMap k, v;
};

}  // namespace headrace::cuda::sm90::decode
