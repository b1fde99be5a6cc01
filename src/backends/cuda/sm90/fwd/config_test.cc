// Shared memory, barriers and registers of every tile of the Hopper forward kernel. Needs no GPU.
#include "backends/cuda/sm90/fwd/config.h"

#include <gtest/gtest.h>

namespace headrace::cuda::sm90::fwd {
namespace {

constexpr Tile kAll[] = {kTile64,        kTile80,     kTile96,     kTile112,    kTile128,
                         kTile192v128,   kTile192,    kTile256,    kShort64,    kShort80,
                         kShort96,       kSoftcap64,  kSoftcap128, kSoftcap256, kBias64,
                         kBias128,       kBias256,    kDropout64,  kDropout128, kGeneral64,
                         kGeneral128,    kGeneral256, kFewRows64,  kFewRows128, kFewRows256,
                         kFewRowsMod128, kStrict64,   kStrict128,  kStrict256,  kFewStrict128};

TEST(HopperTiles, FitSharedMemory) {
  for (const Tile& tile : kAll) {
    EXPECT_LE(smem_bytes(tile), kSmemLimitSm90) << tile.head_dim;
    // Of 228 KiB each CTA takes one for itself.
    EXPECT_LE(tile.ctas * (smem_bytes(tile) + 1024), 228 * 1024) << tile.head_dim;
  }
}

// A swizzle pattern begins at a multiple of 1024 bytes, and so must every swizzle atom.
TEST(HopperTiles, AtomsBeginWhereTheSwizzleDoes) {
  for (const Tile& tile : kAll) {
    const SmemPlan s = smem_plan(tile);
    for (const int offset : {s.offset_k, s.offset_v, s.offset_o, s.q_group, s.k_stage, s.v_stage,
                             s.o_group, s.offset_bias, s.bias_group, tile.keys * 128})
      EXPECT_EQ(offset % 1024, 0) << tile.head_dim;
  }
}

TEST(HopperTiles, RegionsDoNotOverlap) {
  for (const Tile& tile : kAll) {
    const SmemPlan s = smem_plan(tile);
    EXPECT_LE(s.offset_q + s.q, s.offset_k);
    EXPECT_LE(s.offset_k + tile.k_stages * s.k_stage, s.offset_v);
    EXPECT_LE(s.offset_v + tile.v_stages * s.v_stage, s.offset_o);
    EXPECT_LE(s.offset_o + tile.warpgroups * s.o_group, s.offset_bias);
    EXPECT_LE(s.offset_bias + tile.warpgroups * s.bias_group, s.offset_masks);
    EXPECT_LE(s.offset_masks + kMaskStages * s.mask_stage, s.offset_merged);
    const int merged = merges_in_smem(tile) ? tile.warpgroups * merged_bytes(tile) : 0;
    EXPECT_LE(s.offset_merged + merged, s.offset_barriers);
    EXPECT_EQ(s.offset_merged % 16 + merged_bytes(tile) % 16, 0);
    EXPECT_LE(s.offset_barriers + 8 * barrier_plan(tile).count, s.offset_tile_info);
  }
}

// With more registers than the launch gave, setmaxnreg never returns.
TEST(HopperTiles, RedistributeTheRegistersOfTheirLaunch) {
  for (const Tile& tile : kAll) {
    EXPECT_TRUE(shares_registers(tile)) << tile.head_dim;
    EXPECT_LE(launch_registers(tile) * threads_of(tile) * tile.ctas, 65536) << tile.head_dim;
    EXPECT_EQ(consumer_registers(tile) % 8 + producer_registers(tile) % 8, 0);
    EXPECT_EQ(mask_registers(tile) % 8, 0);
  }
}

// The widths of wgmma, and the 16 keys of each of its P V.
TEST(HopperTiles, AreMultiplesOfTheInstruction) {
  for (const Tile& tile : kAll) {
    EXPECT_EQ(tile.keys % 16 + tile.head_dim % 16 + tile.head_dim_v % 16, 0);
    EXPECT_LE(tile.keys, 256);
    EXPECT_LE(tile.head_dim_v, 256);
  }
}

// Without a short one, as with strict_rows, and with some.
TEST(HopperSplits, CoverTheKeysInOrder) {
  for (const int num_short : {0, kNumShortSplits}) {
    EXPECT_EQ(num_splits(0, num_short), 0);
    for (int key = 0; key < 20000; ++key) {
      const int split = split_of(key, num_short);
      EXPECT_TRUE(split_begin(split, num_short) <= key && key < split_begin(split + 1, num_short))
          << key;
      EXPECT_EQ(num_splits(key + 1, num_short), split + 1);
    }
  }
}

TEST(HopperSplits, OfMergingTilesAreThoseOfStrictRows) {
  for (const Tile& tile : {kStrict64, kStrict128, kStrict256})
    for (int n = 0; n < 200; ++n)
      EXPECT_EQ(first_block_of_split(tile, n) * tile.keys,
                split_begin(split_of(n * tile.keys, 0), 0));
}

constexpr Tile kTransposed[] = {kTransposed64Rows8,   kTransposed64Rows16, kTransposed128Rows8,
                                kTransposed128Rows16, kTransposed256Rows8, kTransposed256Rows16};

TEST(TransposedTiles, FitSharedMemory) {
  for (const Tile& tile : kTransposed) {
    EXPECT_LE(smem_bytes(tile), kSmemLimitSm90);
    // Of 228 KiB each CTA takes one for itself.
    EXPECT_LE(tile.ctas * (smem_bytes(tile) + 1024), 228 * 1024);
    // K and V of a k-block, and something ahead.
    EXPECT_GT(tile.k_stages * kStageKeys, tile.keys);
    EXPECT_GT(tile.v_stages * kStageKeys, tile.keys);
  }
}

TEST(TransposedTiles, RegionsFollowEachOther) {
  for (const Tile& tile : kTransposed) {
    const TransposedSmem s = transposed_smem(tile);
    const int rows = tile.transposed_rows;
    // Where a swizzle pattern begins.
    EXPECT_EQ(s.stage % 1024 + s.offset_v % 1024 + s.offset_q % 1024, 0);
    EXPECT_EQ(s.offset_v, tile.k_stages * s.stage);
    EXPECT_EQ(s.offset_q - s.offset_v, tile.v_stages * s.stage);
    EXPECT_EQ(s.offset_probs - s.offset_q, tile.q_buffers * rows * tile.head_dim * 2);
    // Both P, then O.
    const int probs = 2 * tile.keys * rows * 4, out = rows * tile.head_dim * 4;
    EXPECT_EQ(s.offset_packed - s.offset_probs, probs > out ? probs : out);
    EXPECT_EQ(s.offset_exchange - s.offset_packed, 2 * tile.keys * rows * 2);
    EXPECT_EQ(s.offset_row_sums - s.offset_exchange, 2 * 8 * rows * 4);
    EXPECT_EQ(s.offset_message - s.offset_row_sums, 4 * rows * 4);
    EXPECT_EQ(s.offset_slots, s.offset_message);
    EXPECT_EQ(s.offset_items - s.offset_slots, kItemSlots * kItemBytes);
    EXPECT_EQ(s.offset_again - s.offset_items, kMaxItems * 4);
    EXPECT_EQ(s.offset_barriers - s.offset_again, kMaxItems * 4);
    EXPECT_EQ(s.offset_probs % 16 + s.offset_message % 16 + s.offset_slots % 16, 0);
    EXPECT_EQ(s.offset_barriers % 8, 0);
    EXPECT_EQ(s.bytes - s.offset_barriers, 8 * num_transposed_barriers(tile));
  }
}

// A CTA of a split in parts has K, or V and S.
constexpr Tile kParts[] = {kParts64Rows8, kParts64Rows16, kParts128Rows8, kParts128Rows16};

TEST(PartTiles, FitSharedMemory) {
  for (const Tile& tile : kParts) {
    EXPECT_LE(smem_bytes(tile), kSmemLimitSm90);
    EXPECT_LE(threads_of(tile), 1024);
    EXPECT_LE(num_transposed_barriers(tile), threads_of(tile));
    // Whole k-blocks, of V one ahead.
    EXPECT_EQ(tile.k_stages * kStageKeys % tile.keys + tile.v_stages * kStageKeys % tile.keys, 0);
    EXPECT_GT(tile.v_stages * kStageKeys, tile.keys);
  }
}

TEST(PartTiles, RegionsFollowEachOther) {
  for (const Tile& tile : kParts) {
    const TransposedSmem s = transposed_smem(tile);
    const int rows = tile.transposed_rows;
    EXPECT_EQ(s.offset_k + s.offset_v, 0);
    EXPECT_EQ(s.stage, kStageKeys * tile.head_dim * 2);
    EXPECT_EQ(s.v_stage, kStageKeys * 64 * 2);
    EXPECT_EQ(s.offset_scores, tile.v_stages * s.v_stage);
    EXPECT_GE(s.offset_q, tile.k_stages * s.stage);
    EXPECT_GE(s.offset_q, s.offset_scores + 2048 * rows * 4);
    EXPECT_EQ(s.stage % 1024 + s.v_stage % 1024 + s.offset_q % 1024, 0);
    // Four P of 128 keys.
    EXPECT_EQ(s.offset_packed - s.offset_probs, 4 * 128 * rows * 4);
    EXPECT_EQ(s.offset_exchange - s.offset_packed, 4 * 128 * rows * 2);
    EXPECT_GE(s.offset_packed - s.offset_probs, rows * 64 * 4);  // O
    // Factors and references of rows, and a word.
    EXPECT_EQ(s.offset_slots - s.offset_message, 4 * (2 * rows * 4 + 16));
    EXPECT_EQ(s.offset_scores % 16 + s.offset_message % 16 + s.offset_slots % 16, 0);
    EXPECT_EQ(s.bytes - s.offset_barriers, 8 * num_transposed_barriers(tile));
  }
}

// The largest clusters that run at the same time: CTAs with columns, and one to three times as many
// that score keys.
TEST(PartTiles, AreChosenForLittleWork) {
  const auto size_of_128 = [](int splits) { return choose_parts(kParts128Rows8, splits, 132); };
  EXPECT_EQ(size_of_128(1), 8);
  EXPECT_EQ(size_of_128(15), 8);
  EXPECT_EQ(size_of_128(16), 4);
  EXPECT_EQ(size_of_128(30), 4);
  EXPECT_EQ(size_of_128(31), 3);
  EXPECT_EQ(size_of_128(40), 3);
  EXPECT_EQ(size_of_128(41), 0);
  const auto size_of_64 = [](int splits) { return choose_parts(kParts64Rows16, splits, 132); };
  EXPECT_EQ(size_of_64(30), 4);
  EXPECT_EQ(size_of_64(40), 3);
  EXPECT_EQ(size_of_64(66), 2);
  EXPECT_EQ(size_of_64(67), 0);
  EXPECT_EQ(choose_parts(kParts64Rows8, 1, 1), 0);
}

}  // namespace
}  // namespace headrace::cuda::sm90::fwd
