// What the host hands to the Hopper forward kernel.
#pragma once

#include <cstdint>

#include "backends/cuda/common/score_params.h"
#include "backends/cuda/device/types.cuh"
#include "core/args.h"

namespace headrace::cuda::sm90 {

// Sums of two lengths and a window stay within 32 bits.
inline constexpr int kMaxSeqlen = 1 << 29, kOpenWindow = 1 << 30;

// In the workspace; tickets.cuh has what they mean.
struct alignas(16) TileCounterWords {
  unsigned long long mark;
  int next, num_closed;
};

struct Params {
  Problem problem;
  AttentionArgs args;
  ScoreParams score_params;
  // Queries and heads as tiles see them. With `pack` > 1 the rows of a tile are (query, head of a
  // group) pairs, the head fastest, and a warpgroup has floor(64 / pack) queries.
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
  int num_tiles;                   // ragged: an upper bound
  int m_blocks;                    // dense: of a sequence
  int is_triangular;               // later queries see more keys: longest tiles first
  int section;                     // dense: (batch, head) pairs whose K and V fit L2 together
  int num_sections;                // dense: so many of that size, then one with the rest
  int section_keys;                // ragged: keys whose K and V fit
  TileCounterWords* tile_counter;  // null: CTA i has tiles i, i + gridDim.x, ...
  unsigned long long tile_counter_token;
  float scale_log2;
  int has_bias_pairs;  // a bias in the dtype of q whose neighbours of keys are aligned words
  std::uint32_t* error_word;
  int has_tma_bias;  // the copy engine brings the bias, where the tile has room for it
};

struct Maps {
  TensorMap q, k, v, out;  // out: of tiles that stage it
  TensorMap bias;          // with has_bias_boxes
};

// What the scheduler announces: word numbers of an entry in shared memory.
enum TileInfoWord : int {
  kWordTile = 0,       // tile number, with kRedo: for the second time; or kDrain, kEnd
  kWordBlockMax,       // last key tile + 1: tiles go from right to left
  kWordBlockMin,       // first key tile
  kWordUnmaskedBegin,  // key tiles [begin, end) that every row of the tile sees as a whole
  kWordUnmaskedEnd,
  kWordSeqlenK,  // seqlen_k
  kWordRight,    // query q of the tile (0 is its first) sees keys below min(seqlen_k, right + q)
  kWordLeft,     // and from left + q
  kWordQuery =
      8,         // first query of the tile, within its sequence; read together with the next three
  kWordSeqlenQ,  // seqlen_q
  kWordHead,     // of the tile_heads
  kWordBatch,
  kWordRowQ,  // first row of the sequence in q and out, k and v (ragged)
  kWordRowK,
  kWordKvHead,
  kWordTensorBatch,  // of the tensors' batch axis; ragged: 0
  kNumWords,
  kWordRecomputeRows =
      16,  // [12] bit r of word w: row r of warp w. Announced: rows to write, of a tile
           // that is computed again. Reported with the tile: rows that are bad.
};
inline constexpr int kRecompute = 1 << 30;
inline constexpr int kEnd = -1;    // no more tiles
inline constexpr int kFlush = -2;  // finish the tile in hand, then look again

}  // namespace headrace::cuda::sm90
