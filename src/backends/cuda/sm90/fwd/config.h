// Tile shapes of the Hopper forward kernel and their layout in shared memory. Plain values, tested
// on the host.
//
// A tile is `warpgroups` x 64 query rows of one head. A k-block is `keys` consecutive keys: one
// iteration of the main loop.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cuda/common/constants.h"

namespace headrace::cuda::sm90::fwd {

// What a kernel applies to scores beside scale, causal mask, window and sinks: nothing, one feature
// alone (score_policies.cuh), or any combination.
enum class ScoreMod { plain, alibi, softcap, bias, dropout, general };

// One compiled shape of the kernel. A CTA is a producer warpgroup, `warpgroups` consumers of 64
// query rows each and, with dropout, one more warpgroup that draws the masks.
struct Tile {
  int head_dim, head_dim_v;  // maximum columns of Q and K, of V and O
  int keys;                  // of a k-block
  int warpgroups;
  bool overlaps_tiles;  // the first S of a tile runs beside the last P V of the tile before
  int q_buffers;
  bool q_in_registers;              // Q is read from shared memory once a tile
  bool has_tma_store;               // O goes through shared memory and TMA, else from registers
  bool has_tma_bias = false;        // TMA loads the bias of a k-block
  bool has_mask_warpgroup = false;  // one more warpgroup draws dropout masks
  int v_stages = 2;
  bool pingpong = false;     // warpgroups issue their products one after the other
  int q_fragments = 0;       // 16-column fragments of Q in registers; the rest is in shared memory
  bool splits_keys = false;  // may have a part of the keys (SplitArgs)
  int ctas = 1;              // of a multiprocessor
  bool merges_splits = false;  // sums the splits of its keys apart and merges them (SplitArgs)
  int transposed_rows = 0;     // 8 or 16: a kernel of its own with keys as M (transposed.cuh)
  int k_stages = 2;            // of K in shared memory
  bool in_parts = false;       // a cluster of CTAs has a split (transposed_parts.cuh)
  friend constexpr bool operator==(const Tile&, const Tile&) = default;
};

inline constexpr int kGroupRows = 64;      // of a consumer warpgroup: the height of a wgmma
inline constexpr int kMaskStages = 2;      // of dropout masks
inline constexpr int kTileInfoStages = 4;  // tiles that are published, computed or being stored

// What the scheduler publishes about a tile, in shared memory.
struct alignas(16) TileInfo {
  int tile;                          // its number, with kRecompute the second time; or kFlush, kEnd
  int k_block_max, k_block_min;      // k-blocks [min, max), computed from right to left
  int unmasked_begin, unmasked_end;  // k-blocks [begin, end) that every row sees as a whole
  int seqlen_k;
  int right, left;  // query q of the tile sees keys [left + q, min(seqlen_k, right + q))
  // Read by one load of 16 bytes. query: first one of the tile, within its sequence.
  int query, seqlen_q, head, batch;  // head: of the tile_heads
  // First row of the sequence in q and out, in k and v (ragged); in pages: row_k of the Sequence.
  int row_q, row_k;
  int kv_head;
  int tensor_batch;  // index into the batch axis of the tensors; ragged: 0
  // [4 * warpgroups] bit r of word w: row r of warp w. From the scheduler: the rows to write of a
  // tile that is recomputed. To the scheduler: the rows that need it.
  std::uint32_t recompute_rows[12];
  std::uint32_t unused[4];
};
static_assert(sizeof(TileInfo) == 128);
inline constexpr int kRecompute = 1 << 30;
inline constexpr int kEnd = -1;    // no more tiles
inline constexpr int kFlush = -2;  // finish the current tile, then read the next TileInfo

// Keys and values in pages, and seqused_k. The others have no registers to spare: with the
// producers of pages in the same kernel ptxas spills up to 28 registers more in an iteration.
constexpr bool reads_pages(const Tile& tile, ScoreMod m) {
  return tile.splits_keys || (m != ScoreMod::softcap && m != ScoreMod::general);
}

// Keys of few rows are split at fixed places, whole k-blocks: a few short splits for one sequence
// of some thousand keys, then longer ones, as each leaves a partial result. With strict_rows none
// are short, as prompts merge them, too.
inline constexpr int kNumShortSplits = 4, kShortSplitKeys = 1024, kSplitKeys = 2048;
constexpr int split_begin(int split, int num_short) {
  return split < num_short ? split * kShortSplitKeys
                           : num_short * kShortSplitKeys + (split - num_short) * kSplitKeys;
}
constexpr int split_of(int key, int num_short) {
  const int from = num_short * kShortSplitKeys;
  return key < from ? key / kShortSplitKeys : num_short + (key - from) / kSplitKeys;
}
// The first k-block of the split that k-block n of a tile that merges them belongs to.
constexpr int first_block_of_split(const Tile& t, int n) {
  const int blocks = kSplitKeys / t.keys;
  return n / blocks * blocks;
}
// What a warpgroup has merged of its rows: O in float, and the weights of its keys. In shared
// memory where there is room, else in the workspace.
constexpr int merged_bytes(const Tile& t) { return kGroupRows * (4 * t.head_dim_v + 8); }
constexpr bool merges_in_smem(const Tile& t) { return t.merges_splits && t.head_dim_v <= 128; }
constexpr int num_splits(int seqlen_k, int num_short) {
  return seqlen_k > 0 ? split_of(seqlen_k - 1, num_short) + 1 : 0;
}

// Rows of a warpgroup, and of a tile.
constexpr int group_rows(const Tile& t) {
  return t.transposed_rows > 0 ? t.transposed_rows : kGroupRows;
}
constexpr int rows_of(const Tile& t) { return group_rows(t) * t.warpgroups; }
constexpr int warpgroups_of(const Tile& t) {
  return 1 + t.warpgroups + (t.has_mask_warpgroup ? 1 : 0);
}
// With keys as M: the warps that load K, and as many that load V. Each has a part of the columns,
// as one would issue the boxes of pages of 16 keys more slowly than the memory has them.
constexpr int transposed_loaders(const Tile& t) { return t.head_dim > kSwizzleAtomCols ? 2 : 1; }
// Of a split in parts, the CTAs with 64 columns of V each; the rest of the cluster scores keys.
inline constexpr int kPartColumns = 64;
constexpr int num_column_parts(const Tile& t) { return t.in_parts ? t.head_dim / kPartColumns : 1; }
constexpr int columns_of_part(const Tile& t) { return t.in_parts ? kPartColumns : t.head_dim; }
constexpr int blocks_of_split(const Tile& t) { return kSplitKeys / t.keys; }
inline constexpr int kPartLoaders = 4;  // warps of a CTA
// CTAs of the clusters that have the splits, all of which run at the same time: 132 multiprocessors
// hold 66, 40, 30 and 15 clusters of 2, 3, 4 and 8. 0: there are too many splits.
constexpr int choose_parts(const Tile& t, std::int64_t num_splits, int num_units) {
  const int columns = num_column_parts(t);
  for (const int size : {8, 4, 3, 2})
    if (size > columns && size <= 4 * columns &&
        num_splits * size <= (size == 2 ? num_units : std::int64_t{num_units} * 10 / 11))
      return size;
  return 0;
}
constexpr int threads_of(const Tile& t) {
  if (t.in_parts) return 3 * 128 + 32 * kPartLoaders;
  return t.transposed_rows > 0 ? 128 + 2 * 32 * transposed_loaders(t) : 128 * warpgroups_of(t);
}

// Registers of a thread after setmaxnreg. A CTA starts with what its launch bounds give each
// thread, and can only redistribute those: 168 * 3 = 504 = 24 + 2 * 240,
// 128 * 4 = 512 = 32 + 3 * 160 and, with masks, 24 + 2 * 208 + 72. With a larger sum setmaxnreg
// never returns. With one consumer a thread begins with the registers of that one, or, of two CTAs,
// with half of them: 128 * 2 = 24 + 232.
constexpr int producer_registers(const Tile& t) { return t.warpgroups <= 2 ? 24 : 32; }
constexpr int consumer_registers(const Tile& t) {
  return t.has_mask_warpgroup ? 208 : t.ctas == 2 ? 232 : t.warpgroups <= 2 ? 240 : 160;
}
constexpr int mask_registers(const Tile& t) { return t.has_mask_warpgroup ? 72 : 0; }
constexpr int launch_registers(const Tile& t) {
  if (t.transposed_rows > 0) return 120;  // what ptxas takes at most
  return t.warpgroups == 1 && t.ctas == 1 ? 240 : warpgroups_of(t) == 3 ? 168 : 128;
}
constexpr bool shares_registers(const Tile& t) {
  return producer_registers(t) + t.warpgroups * consumer_registers(t) + mask_registers(t) <=
         warpgroups_of(t) * launch_registers(t);
}

// Bytes. What TMA writes is a stack of swizzle atoms, each [rows, 128 bytes] of 16-bit elements.
struct SmemPlan {
  int q_group, q;  // one warpgroup's Q; all of it
  int k_stage, v_stage;
  int o_group;
  int bias_group;  // [64 rows, keys] of a warpgroup
  int mask_stage;  // [keys / 64][warpgroups][128 threads] words of dropout masks
  int offset_q, offset_k, offset_v, offset_o, offset_bias, offset_masks, offset_merged;
  int offset_barriers;
  int offset_tile_info;
  int bytes;
};

// Indices of the mbarriers.
struct BarrierPlan {
  int q_full, q_empty;        // [q_buffers][warpgroups]
  int k_full, k_empty;        // [k_stages]
  int v_full, v_empty;        // [v_stages]
  int tile_info_read;         // the producer of K has read a TileInfo (dynamic tiles)
  int tile_info_full;         // [kTileInfoStages]
  int tile_done;              // [kTileInfoStages] every reader is done with the TileInfo: consumer
                              // warps with their rows, producers with their loads
  int bias_full, bias_empty;  // [warpgroups], with has_tma_bias
  int mask_full, mask_empty;  // [kMaskStages], with has_mask_warpgroup
  int count;
};

constexpr BarrierPlan barrier_plan(const Tile& t) {
  BarrierPlan b{};
  const auto take = [&b](int count) {
    const int first = b.count;
    b.count += count;
    return first;
  };
  const int q = t.q_buffers * t.warpgroups;
  const int bias = t.has_tma_bias ? t.warpgroups : 0,
            masks = t.has_mask_warpgroup ? kMaskStages : 0;
  b.q_full = take(q);
  b.q_empty = take(q);
  b.k_full = take(t.k_stages);
  b.k_empty = take(t.k_stages);
  b.v_full = take(t.v_stages);
  b.v_empty = take(t.v_stages);
  b.tile_info_read = take(1);
  b.tile_info_full = take(kTileInfoStages);
  b.tile_done = take(kTileInfoStages);
  b.bias_full = take(bias);
  b.bias_empty = take(bias);
  b.mask_full = take(masks);
  b.mask_empty = take(masks);
  return b;
}

constexpr SmemPlan smem_plan(const Tile& t) {
  SmemPlan s{};
  s.q_group = num_swizzle_atoms(t.head_dim) * kGroupRows * kSwizzleRowBytes;
  s.q = t.q_buffers * t.warpgroups * s.q_group;
  s.k_stage = num_swizzle_atoms(t.head_dim) * t.keys * kSwizzleRowBytes;
  s.v_stage = num_swizzle_atoms(t.head_dim_v) * t.keys * kSwizzleRowBytes;
  s.o_group = t.has_tma_store ? num_swizzle_atoms(t.head_dim_v) * kGroupRows * kSwizzleRowBytes : 0;
  s.bias_group = t.has_tma_bias ? num_swizzle_atoms(t.keys) * kGroupRows * kSwizzleRowBytes : 0;
  s.offset_q = 0;
  s.offset_k = s.offset_q + s.q;
  s.offset_v = s.offset_k + t.k_stages * s.k_stage;
  s.offset_o = s.offset_v + t.v_stages * s.v_stage;
  s.offset_bias = s.offset_o + t.warpgroups * s.o_group;
  s.mask_stage = t.has_mask_warpgroup ? t.keys / 64 * t.warpgroups * 128 * 4 : 0;
  s.offset_masks = s.offset_bias + t.warpgroups * s.bias_group;
  s.offset_merged = s.offset_masks + kMaskStages * s.mask_stage;
  s.offset_barriers = s.offset_merged + (merges_in_smem(t) ? t.warpgroups * merged_bytes(t) : 0);
  s.offset_tile_info = (s.offset_barriers + barrier_plan(t).count * 8 + 15) / 16 * 16;
  s.bytes = s.offset_tile_info + kTileInfoStages * static_cast<int>(sizeof(TileInfo));
  return s;
}

// Of a transposed tile: a stage has 64 keys.
inline constexpr int kStageKeys = 64;
// Those of a k-block have barriers of their own, or in parts one: a wait takes 100 clocks also
// where there is nothing to wait for.
constexpr int stages_of_barrier(const Tile& t) { return t.in_parts ? t.keys / kStageKeys : 1; }
struct TransposedSmem {
  int stage, v_stage;  // bytes of a stage of K, of V
  int offset_k, offset_v;
  int offset_scores;    // in parts: [blocks of a split][keys][rows] floats, chunks of 16 bytes a
                        // thread
  int offset_q;         // [q_buffers]
  int offset_probs;     // [buffers][keys][rows] floats: P; then [rows][head_dim] floats: O
  int offset_packed;    // [buffers][rows / 8][keys][8]: P as the B operand
  int offset_exchange;  // [2][8][rows] floats between warps
  int offset_row_sums;  // [4][rows] floats of the warps
  int offset_message;   // in parts: [buffers] of a k-block (ProbRing)
  int offset_slots;     // [kItemSlots] PublishedItem
  int offset_items;     // [kMaxItems] numbers of the items of the CTA
  int offset_again;     // [kMaxItems] their rows that are computed again
  int offset_barriers;  // of TransposedBarriers
  int bytes;
};
inline constexpr int kMaxItems = 256;  // of a CTA
inline constexpr int kItemSlots = 4;   // published and not done
inline constexpr int kItemBytes = 64;  // of a PublishedItem
constexpr int num_prob_buffers(const Tile& t) { return t.in_parts ? 4 : 2; }
// Of a split in parts: S of each of its k-blocks, what the parts agree on, each P.
constexpr int num_part_barriers(const Tile& t) {
  return t.in_parts ? blocks_of_split(t) + 1 + 2 * num_prob_buffers(t) : 0;
}
constexpr int num_transposed_barriers(const Tile& t) {
  return 2 * (t.k_stages + t.v_stages + t.q_buffers + kItemSlots) + num_part_barriers(t);
}
// What the softmax of a split in parts says of a k-block beside P: factors and references of rows,
// and whether they have moved.
constexpr int message_bytes(const Tile& t) { return 2 * 4 * t.transposed_rows + 16; }
constexpr TransposedSmem transposed_smem(const Tile& t) {
  TransposedSmem s{};
  s.stage = num_swizzle_atoms(t.head_dim) * kStageKeys * kSwizzleRowBytes;
  s.v_stage = num_swizzle_atoms(columns_of_part(t)) * kStageKeys * kSwizzleRowBytes;
  // No CTA of a split in parts has both K and V.
  s.offset_v = t.in_parts ? 0 : t.k_stages * s.stage;
  s.offset_scores = s.offset_v + t.v_stages * s.v_stage;
  s.offset_q = s.offset_scores + (t.in_parts ? kSplitKeys * t.transposed_rows * 4 : 0);
  if (t.in_parts) s.offset_q = std::max(s.offset_q, t.k_stages * s.stage);
  s.offset_probs = s.offset_q + t.q_buffers * num_swizzle_atoms(t.head_dim) * t.transposed_rows *
                                    kSwizzleRowBytes;
  const int buffers = num_prob_buffers(t);
  s.offset_packed = s.offset_probs + std::max(buffers * t.keys, t.head_dim) * t.transposed_rows * 4;
  s.offset_exchange = s.offset_packed + buffers * t.keys * t.transposed_rows * 2;
  s.offset_row_sums = s.offset_exchange + 2 * 8 * t.transposed_rows * 4;
  s.offset_message = s.offset_row_sums + 4 * t.transposed_rows * 4;
  s.offset_slots = s.offset_message + (t.in_parts ? buffers * message_bytes(t) : 0);
  s.offset_items = s.offset_slots + kItemSlots * kItemBytes;
  s.offset_again = s.offset_items + kMaxItems * 4;
  s.offset_barriers = s.offset_again + kMaxItems * 4;
  s.bytes = s.offset_barriers + 8 * num_transposed_barriers(t);
  return s;
}

// Keys that a stage of K or V holds.
constexpr int stage_keys(const Tile& t) { return t.transposed_rows > 0 ? kStageKeys : t.keys; }

// The base is rounded up to 1024 bytes, where a swizzle pattern begins.
constexpr int smem_bytes(const Tile& t) {
  return (t.transposed_rows > 0 ? transposed_smem(t).bytes : smem_plan(t).bytes) + 1024;
}

constexpr Tile with_pingpong(Tile t, int v_stages = 2) {
  t.pingpong = true;
  t.v_stages = v_stages;
  return t;
}
constexpr Tile with_q_fragments(Tile t, int q_fragments) {
  t.q_fragments = q_fragments;
  return t;
}

inline constexpr Tile kTile64 = with_pingpong({64, 64, 128, 3, true, 2, false, true}, 3);
// Three consumers have registers for k-blocks of 112 keys, and shared memory for two Q if O has
// none.
inline constexpr Tile kTile80 = with_pingpong({80, 80, 112, 3, true, 2, false, false});
inline constexpr Tile kTile96 = with_pingpong({96, 96, 112, 3, true, 2, false, false});
inline constexpr Tile kTile112 = with_pingpong({112, 112, 128, 2, true, 1, true, true}, 3);
inline constexpr Tile kTile128 = with_pingpong({128, 128, 128, 2, true, 1, true, true}, 3);
inline constexpr Tile kTile192v128 = with_pingpong({192, 128, 128, 2, false, 1, false, false});
inline constexpr Tile kTile192 = with_pingpong({192, 192, 112, 2, false, 1, false, false});
// S of 64 keys reads as many bytes of Q as of K. Half of Q fits the registers, except with softcap.
inline constexpr Tile kSoftcap256 = with_pingpong({256, 256, 64, 2, false, 1, false, false}, 3);
inline constexpr Tile kTile256 = with_q_fragments(kSoftcap256, 8);
// Short sequences: a tile of 192 rows has more rows beyond their end and on the wrong side of the
// diagonal. Tiles of one head_dim have equal k-blocks, so the choice changes no bits.
inline constexpr Tile kShort64 = with_pingpong({64, 64, 128, 2, true, 2, false, true}, 3);
inline constexpr Tile kShort80 = with_pingpong({80, 80, 112, 2, true, 1, true, true}, 3);
inline constexpr Tile kShort96 = with_pingpong({96, 96, 112, 2, true, 1, true, true}, 3);
// Few rows: one consumer, so that no product has rows that do not exist. Where two CTAs fit, one
// waits for products while the other computes its softmax.
constexpr Tile few_rows(Tile t, int ctas = 1) {
  t.splits_keys = true;
  t.ctas = ctas;
  t.v_stages = 3;
  return t;
}
inline constexpr Tile kFewRows64 = few_rows({64, 64, 128, 1, false, 1, true, false}, 2);
inline constexpr Tile kFewRows128 = few_rows({128, 128, 64, 1, false, 1, true, false}, 2);
inline constexpr Tile kFewRows256 = few_rows({256, 256, 64, 1, false, 1, false, false});
// With a softcap or ALiBi, where Q leaves registers for it.
inline constexpr Tile kFewRowsMod128 = few_rows({128, 128, 64, 1, false, 1, false, false}, 2);
inline constexpr Tile kFewRowsMod256 = kFewRows256;
static_assert(kShortSplitKeys % 128 == 0 && kSplitKeys % 128 == 0);
// strict_rows: more rows, with the k-blocks of few rows, that merge the same splits. What 128
// columns have merged leaves no room for a third V and for O.
constexpr Tile merging(Tile t) {
  t.merges_splits = true;
  return t;
}
inline constexpr Tile kStrict64 = merging(kTile64);
inline constexpr Tile kStrict128 =
    merging(with_pingpong({128, 128, 128, 2, true, 1, true, false}, 2));
inline constexpr Tile kStrict256 = merging(kTile256);
// With the k-blocks of kFewRows128 prompts took 6 % longer.
inline constexpr Tile kFewStrict128 = few_rows({128, 128, 128, 1, false, 1, true, false});
// Up to 16 rows. Of 64 and 256 columns also without strict_rows.
constexpr Tile transposed(int dim, int rows, int keys, int k_stages, int v_stages) {
  Tile t{dim, dim, keys, 1, false, 2, false, false};
  t.splits_keys = true;
  t.transposed_rows = rows;
  t.k_stages = k_stages;
  t.v_stages = v_stages;
  return t;
}
inline constexpr Tile kTransposed64Rows8 = transposed(64, 8, 128, 12, 12);
inline constexpr Tile kTransposed64Rows16 = transposed(64, 16, 128, 12, 10);
inline constexpr Tile kTransposed128Rows8 = transposed(128, 8, 128, 6, 6);
inline constexpr Tile kTransposed128Rows16 = transposed(128, 16, 128, 6, 5);
inline constexpr Tile kTransposed256Rows8 = transposed(256, 8, 64, 3, 3);
inline constexpr Tile kTransposed256Rows16 = transposed(256, 16, 64, 3, 2);
// With the bits of those: little work, of which clusters have a split.
constexpr Tile in_parts(Tile t, int k_stages, int v_stages) {
  t.in_parts = true;
  t.k_stages = k_stages;
  t.v_stages = v_stages;
  t.q_buffers = 1;
  return t;
}
inline constexpr Tile kParts64Rows8 = in_parts(kTransposed64Rows8, 16, 16);
inline constexpr Tile kParts64Rows16 = in_parts(kTransposed64Rows16, 16, 4);
inline constexpr Tile kParts128Rows8 = in_parts(kTransposed128Rows8, 12, 16);
inline constexpr Tile kParts128Rows16 = in_parts(kTransposed128Rows16, 10, 4);
static_assert(kStrict64.keys == kFewRows64.keys && kTile64.keys == kFewRows64.keys &&
              kStrict128.keys == kFewStrict128.keys && kTile128.keys == kFewStrict128.keys &&
              kStrict256.keys == kFewRows256.keys && kTile256.keys == kFewRows256.keys &&
              kTransposed256Rows8.keys == kFewRows256.keys);
// Softcap needs registers: no third consumer. Two Q in shared memory let tiles overlap without a Q
// in registers.
inline constexpr Tile kSoftcap64 = with_pingpong({64, 64, 128, 2, true, 1, true, true});
inline constexpr Tile kSoftcap128 = with_pingpong({128, 128, 128, 2, true, 2, false, true});
// The mask warpgroup takes registers from the consumers: Q is in shared memory, and two Q leave no
// room for O. (256 columns of O do not compile for the 128 registers of a launch with four
// warpgroups.)
inline constexpr Tile kDropout64 =
    with_pingpong({64, 64, 128, 2, true, 2, false, true, false, true});
inline constexpr Tile kDropout128 =
    with_pingpong({128, 128, 128, 2, true, 2, false, false, false, true});
inline constexpr Tile kBias64 = with_pingpong({64, 64, 128, 2, true, 1, true, true, true});
inline constexpr Tile kBias128 = with_pingpong({128, 128, 128, 2, true, 1, true, true, true});
inline constexpr Tile kBias256 = with_pingpong({256, 256, 64, 2, false, 1, false, false, true});
// General scores need registers: no third consumer, Q in shared memory, no overlap of tiles.
inline constexpr Tile kGeneral64 = {64, 64, 128, 2, false, 1, false, true};
inline constexpr Tile kGeneral128 = {128, 128, 128, 2, false, 1, false, true};
inline constexpr Tile kGeneral256 = {256, 256, 64, 2, false, 1, false, false};

}  // namespace headrace::cuda::sm90::fwd
