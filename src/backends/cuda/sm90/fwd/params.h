// What the host passes to the Hopper forward kernel.
#pragma once

#include <cstdint>

#include "backends/cuda/common/kernel_args.h"
#include "backends/cuda/common/page_table.h"
#include "backends/cuda/device/types.cuh"
#include "backends/cuda/sm90/call_counters.h"

namespace headrace::cuda::sm90::fwd {

// Sums of two lengths and a window fit 32 bits.
inline constexpr int kMaxSeqlen = 1 << 29, kOpenWindow = 1 << 30;

// The tiles of a problem: everything here is decided by the plan.
struct TileParams {
  // Queries and heads of tiles. With `pack` > 1 the rows of a tile are (query, head of a group)
  // pairs, the head fastest, and a warpgroup has floor(64 / pack) queries.
  int pack;           // query heads that share a tile: 1, or the whole group
  int pack_inverse;   // row / pack is row * pack_inverse >> 16, for the 64 rows of a warpgroup
  int group_queries;  // of a warpgroup
  int tile_queries;
  int tile_heads;   // num_heads / pack
  int kv_divisor;   // tile head / kv_divisor is the KV head
  int batch_heads;  // dense: batch * tile_heads
  // Lengths below kMaxSeqlen; windows relative to the diagonal, kOpenWindow where there is none.
  int seqlen_q, seqlen_k;
  int window_left, window_right, is_top_left;
  // Order of the tiles.
  int num_tiles;      // ragged: an upper bound
  int m_blocks;       // dense: tiles of a sequence and head
  int is_triangular;  // later queries see more keys: longest tiles first
  int section;        // dense: (batch, head) pairs whose K and V fit L2 together
  int num_sections;   // dense: full sections; one more has the remaining pairs
  int section_keys;   // ragged: keys whose K and V fit
};

// The weights of a row's keys in a split: 16^reference times their sum. References to the base 2 of
// scores beyond 2.3e38 are infinite. For such a row the reference is half its largest score
// instead, which is farther from 0 than any other reference. No key: a sum of 0.
struct SplitWeight {
  float reference, sum;
};
inline constexpr float kLargestReference = 0x1p126f;  // above it: half a score
// Few rows over many keys: a tile has the keys of a split (config.h) and leaves a partial result, O
// and its weight. Where splits begin depends on no length, so the bits of a row do not either.
//
// With strict_rows a tile of more rows sums its splits apart and merges them in the same order
// (merge.cuh), in shared memory or in `out`: [num_ctas, warpgroups, merged_bytes()] bytes.
struct SplitArgs {
  int max_splits;        // of a sequence; 0: tiles have all keys
  int num_short;         // so many of the first splits are short
  int rows;              // of a tile, at most
  float* out;            // [batch, tile_heads, max_splits, rows, head_dim_v]
  SplitWeight* weights;  // [batch, tile_heads, max_splits, rows]
};
struct Params {
  Sizes sizes;
  Lengths lengths;
  Operand out;
  RowArgs rows;
  ScoreArgs scores;
  float scale_log2;  // here, so that `tiles` is 4 modulo 8 bytes: at 0 nvcc 13.0 loads other pairs
                     // of its words, and several kernels spill more
  TileParams tiles;
  CounterWords* tile_counter;  // null: CTA i has tiles i, i + gridDim.x, ...
  unsigned long long tile_counter_token;
  int has_bias_pairs;  // a bias in the dtype of q in which pairs of neighbouring keys are aligned
  int has_tma_bias;    // the bias suits TMA; used by tiles with has_tma_bias
  int has_device_lengths;  // the tail of a k-block may hold anything
  UsedKeys used_keys;
  PageTable pages;
  int box_keys;  // keys of a TMA box of K and V: they lie in one page
  SplitArgs splits;
};
static_assert(sizeof(Params) <= 624);

struct Maps {
  TensorMap q, k, v, out;  // out: of tiles with has_tma_store
  TensorMap bias;          // with has_tma_bias
};

}  // namespace headrace::cuda::sm90::fwd
