// What the host hands to the Hopper decode kernel.
#pragma once

#include "backends/cuda/common/kernel_args.h"
#include "backends/cuda/common/page_table.h"
#include "backends/cuda/device/types.cuh"
#include "backends/cuda/sm90/decode/config.h"

namespace headrace::cuda::sm90::decode {

// Of a row, in the workspace.
struct alignas(8) RowSums {
  float row_max, sum;  // the largest score before the scale; the sum of P
};

// Consecutive sequences whose first `groups` groups of keys lie in the same pages, and whose rows a
// CTA of attend_prefix takes together.
struct alignas(16) PrefixSlice {
  int first_sequence, num_sequences;
  int groups;
  int items_before;  // of one KV head
};

struct Params {
  Sizes sizes;
  Lengths lengths;
  UsedKeys used_keys;
  Operand q, k, v, out;
  RowArgs row_args;
  WorkPlan work;
  Window window;
  PageTable pages;
  SequenceKeys keys;  // where all sequences have the same
  int rows;           // of a (sequence, KV head), at most: row r is query r / group, head r % group
  int group;          // query heads of a KV head
  Divisor by_group, by_kv_heads;
  Divisor by_later_items;              // of a head, behind its first; where all have as many
  Divisor by_shares, by_share_groups;  // kWholeGroupCost for each share
  int batch, num_kv_heads, num_units;
  float scale, scale_log2;        // softmax_scale, positive, and times log2(e)
  bool has_whole_k, has_whole_v;  // whether a TMA box holds all columns
  int box_keys;                   // of a box: kBlockKeys, or a divisor of it and of the page size
  // In the workspace; null without.
  CounterWords* counters;
  int* arrived;       // [batch * num_kv_heads], then [num_slots]
  RowSums* row_sums;  // [num_slots][rows]
  float* o_partial;   // [num_slots][rows][dim]
  int* cut_heads;  // [shares]: the head that ends in a share and began before, or -1; null without
  SharedPrefix prefix;       // of which slots behind num_slots are
  int* prefix_groups;        // [batch]: that attend_prefix has computed; null without
  PrefixSlice* slices;       // [batch]
  int* num_slices;           // and the number of items of one KV head
  unsigned long long token;  // that no other call of the process has
};
static_assert(sizeof(Params) <= 672);

// Axes (column, slot, half, head, page).
struct Maps {
  TensorMap k, v;
};

}  // namespace headrace::cuda::sm90::decode
