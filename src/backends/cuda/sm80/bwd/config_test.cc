#include "backends/cuda/sm80/bwd/config.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace headrace::cuda::sm80::bwd {
namespace {

template <class Check>
void for_each_small_variant(Check check) {
  for (const bool is_f32 : {false, true})
    for (const int dim : kHeadDims)
      for (const bool is_general : {false, true}) {
        SCOPED_TRACE(testing::Message() << is_f32 << ' ' << dim << ' ' << is_general);
        const int element_bytes = is_f32 ? 4 : 2;
        const Tile tile = small_tile(is_f32, dim, is_general);
        check(tile, smem_plan(tile, element_bytes, is_general), element_bytes);
      }
}
template <class Check>
void for_each_variant(Check check) {
  for_each_small_variant(check);
  for (const int dim : {128, 256}) {
    SCOPED_TRACE(testing::Message() << "large " << dim);
    const Tile tile = large_tile(dim);
    check(tile, smem_plan(tile, 2, false), 2);
  }
}

TEST(Sm80BackwardConfig, EverySmallVariantFitsInto99KiB) {
  for_each_small_variant([](const Tile& tile, const SmemPlan& smem, int) {
    EXPECT_LE(smem.total, 99 * 1024);
    EXPECT_LE(tile.min_ctas * (smem.total + 1024), 227 * 1024);  // per SM of sm_90
  });
}

TEST(Sm80BackwardConfig, LargeTilesFitTheSharedMemoryOfSm80AndSm90) {
  for (const int dim : {128, 256})
    EXPECT_LE(smem_plan(large_tile(dim), 2, false).total, (dim == 256 ? 227 : 163) * 1024) << dim;
}

// The small tile is used if the GPU has less shared memory, if its size is unknown, and for
// problems that the large tile does not support.
TEST(Sm80BackwardConfig, LargeTileIsUsedIfItFits) {
  Problem p{};
  p.bias_dtype = -1;
  p.dtype = static_cast<int>(DType::bf16);
  p.softmax_scale = 1;
  for (const int dim : {100, 128, 200, 256}) {
    p.head_dim = p.head_dim_v = dim;
    p.softcap = 0;
    const Tile large = large_tile(head_dim_bucket(p));
    const auto bytes = static_cast<std::size_t>(smem_plan(large, 2, false).total);
    for (const std::size_t smem_bytes : {bytes, bytes + 1, std::size_t{227} * 1024})
      EXPECT_EQ(tile_of(p, smem_bytes).async_warps, true) << dim;
    for (const std::size_t smem_bytes : {std::size_t{0}, std::size_t{99} * 1024, bytes - 1})
      EXPECT_EQ(tile_of(p, smem_bytes).async_warps, false) << dim;
    p.softcap = 30;
    EXPECT_FALSE(tile_of(p, 227 * 1024).async_warps);
  }
  p.softcap = 0;
  p.head_dim = p.head_dim_v = 64;
  EXPECT_FALSE(tile_of(p, 227 * 1024).async_warps);
  p.head_dim = p.head_dim_v = 128;
  p.dtype = static_cast<int>(DType::f32);
  EXPECT_FALSE(tile_of(p, 227 * 1024).async_warps);
}

// A group of warps, which syncs at a named barrier, owns the same keys in S, dP, dK and dV.
TEST(Sm80BackwardConfig, GroupsOfAsyncWarpsOwnTheSameKeys) {
  for_each_variant([](const Tile& tile, const SmemPlan& smem, int element_bytes) {
    if (!tile.async_warps) return;
    const int groups = std::min(tile.score_warps, tile.key_warps), warps = tile.warps / groups;
    for (int warp = 0; warp < tile.warps; ++warp) {
      const int first = warp / warps * (tile.keys / groups), end = first + tile.keys / groups;
      for (const int along : {tile.score_warps, tile.key_warps}) {
        const int key = warp / (tile.warps / along) * (tile.keys / along);
        EXPECT_TRUE(key >= first && key + tile.keys / along <= end);
      }
    }
    EXPECT_LT(groups, 16);  // named barriers beside that of the CTA
    EXPECT_EQ(tile.q_stages, 2);
    EXPECT_EQ(smem.p - smem.dout, 2 * tile.rows * tile.dim * element_bytes);
    EXPECT_EQ(smem.barriers % 8, 0);
    EXPECT_EQ(smem.total - smem.barriers, 4 * 8);
  });
}

// The swizzle permutes address bits within 128 bytes of eight rows.
TEST(Sm80BackwardConfig, TilesAreAlignedForTheSwizzle) {
  for_each_variant([](const Tile&, const SmemPlan& smem, int) {
    EXPECT_EQ(smem.row_bytes % 128, 0);
    EXPECT_EQ(smem.score_bytes % 128, 0);
    for (const int at : {smem.k, smem.v, smem.q, smem.dout, smem.p, smem.ds})
      EXPECT_EQ(at % 128, 0);
    EXPECT_EQ(smem.lse_delta % 16, 0);
    EXPECT_EQ(smem.score_rows % 8, 0);
    EXPECT_EQ(smem.work_tile % 16, 0);
  });
}

// Fragments are 16 rows by 8 columns, and operands come in pairs of 8 columns.
TEST(Sm80BackwardConfig, EveryProductIsPartitionedIntoWholeFragments) {
  for_each_variant([](const Tile& tile, const SmemPlan&, int) {
    for (const int along : {tile.score_warps, tile.key_warps, tile.row_warps})
      EXPECT_EQ(tile.warps % along, 0);
    EXPECT_EQ(tile.rows % (tile.warps / tile.score_warps * 16), 0);
    EXPECT_EQ(tile.keys % (tile.score_warps * 8), 0);
    EXPECT_EQ(tile.keys % (tile.key_warps * 16), 0);
    EXPECT_EQ(tile.dim % (tile.warps / tile.key_warps * 16), 0);
    EXPECT_EQ(tile.rows % (tile.row_warps * 16), 0);
    EXPECT_EQ(tile.dim % (tile.warps / tile.row_warps * 16), 0);
    EXPECT_EQ(kRowPadding % tile.rows, 0);
  });
}

TEST(Sm80BackwardConfig, StagesOfQHoldVOnItsWayToRegisters) {
  for_each_variant([](const Tile& tile, const SmemPlan& smem, int) {
    if (!tile.v_in_registers) return;
    EXPECT_GE(smem.p - smem.q, tile.keys * smem.row_bytes);
    EXPECT_EQ(tile.keys, 8 * tile.score_warps);  // a fragment of 8 keys per warp
  });
}

Problem problem(int causal, std::int64_t left, std::int64_t right) {
  Problem p{};
  p.causal = causal;
  p.window_left = left;
  p.window_right = right;
  return p;
}

// Every mask over some lengths, tile by tile.
template <class Check>
void for_each_mask(Check check) {
  for (const int causal :
       {HEADRACE_CAUSAL_NONE, HEADRACE_CAUSAL_BOTTOM_RIGHT, HEADRACE_CAUSAL_TOP_LEFT})
    for (const std::int64_t left : {-1L, 0L, 5L, 40L, 1L << 60})
      for (const std::int64_t right : {-1L, 0L, 7L, 1L << 60})
        for (const int seqlen_q : {0, 1, 17, 64, 90})
          for (const int seqlen_k : {0, 1, 16, 63, 100})
            check(problem(causal, left, right), seqlen_q, seqlen_k);
}

TEST(Sm80BackwardConfig, BandMatchesVisibleKeys) {
  for_each_mask([](const Problem& p, int seqlen_q, int seqlen_k) {
    const Band band = band_of(window_of(p), seqlen_q, seqlen_k);
    for (int i = 0; i < seqlen_q; ++i) {
      const KeyRange keys = visible_keys(p, i, seqlen_q, seqlen_k);
      for (int j = 0; j < seqlen_k; ++j)
        ASSERT_EQ(j >= i + band.begin && j < i + band.end, j >= keys.begin && j < keys.end);
    }
  });
}

TEST(Sm80BackwardConfig, QueryRangeIsTheRowsThatSeeAKeyTile) {
  constexpr int kKeys = 16;
  for_each_mask([](const Problem& p, int seqlen_q, int seqlen_k) {
    const Band band = band_of(window_of(p), seqlen_q, seqlen_k);
    for (int key = 0; key < seqlen_k; key += kKeys) {
      const QueryRange rows = query_range(band, key, kKeys, seqlen_q, seqlen_k);
      for (int i = 0; i < seqlen_q; ++i) {
        const KeyRange keys = visible_keys(p, i, seqlen_q, seqlen_k);
        const bool sees =
            std::max<std::int64_t>(keys.begin, key) < std::min<std::int64_t>(keys.end, key + kKeys);
        const bool sees_all = keys.begin <= key && keys.end >= key + kKeys;
        ASSERT_TRUE(!sees || (i >= rows.begin && i < rows.end));
        ASSERT_EQ(sees_all, i >= rows.unmasked_begin && i < rows.unmasked_end);
      }
      ASSERT_LE(rows.begin, seqlen_q);
      ASSERT_LE(rows.end, seqlen_q);
    }
  });
}

// A CTA loops over q-blocks [begin / rows, ceil(end / rows)). The turns of the CTAs that add to a
// q-block have no gaps; with a gap a CTA would wait forever.
TEST(Sm80BackwardConfig, TurnsOfAQBlockHaveNoGaps) {
  constexpr int kKeys = 16, kRows = 32;
  Tile tile{};
  tile.rows = kRows;
  tile.keys = kKeys;
  for_each_mask([&tile](const Problem& p, int seqlen_q, int seqlen_k) {
    const Band band = band_of(window_of(p), seqlen_q, seqlen_k);
    for (int row = 0; row < seqlen_q; row += kRows) {
      int turn = 0;
      for (int key = (seqlen_k - 1) / kKeys * kKeys; key >= 0; key -= kKeys) {
        const QueryRange rows = query_range(band, key, kKeys, seqlen_q, seqlen_k);
        const int begin = rows.begin / kRows, end = (rows.end + kRows - 1) / kRows;
        if (rows.begin >= rows.end || row / kRows < begin || row / kRows >= end) continue;
        ASSERT_EQ(last_key_tile(band, tile, row, seqlen_q, seqlen_k) - key / kKeys, turn)
            << row << ' ' << key;
        ++turn;
      }
    }
  });
}

TEST(Sm80BackwardConfig, BroadcastAxesOfDbiasHaveOneTile) {
  Problem p{};
  p.batch = 3;
  p.num_heads = 5;
  p.seqlen_q = 100;
  p.seqlen_k = 130;
  const Tile tile = small_tile(false, 64, true);
  float data = 0;
  ScoreOperand dbias{&data, DType::f32, 5 * 13000, 13000, 130, 1};
  EXPECT_EQ(dbias_tiles_of(p, dbias, tile).count(), 3 * 5 * 2 * 3);
  dbias.stride_batch = dbias.stride_k = 0;
  EXPECT_EQ(dbias_tiles_of(p, dbias, tile).count(), 5 * 2);
  p.is_ragged = 1;  // packed rows: every sequence has its own
  EXPECT_EQ(dbias_tiles_of(p, dbias, tile).count(), 3 * 5 * 2);
  dbias.stride_q = 0;
  EXPECT_EQ(dbias_tiles_of(p, dbias, tile).count(), 5);
  dbias.data = nullptr;
  EXPECT_EQ(dbias_tiles_of(p, dbias, tile).count(), 0);
}

TEST(Sm80BackwardConfig, PartsOfTheWorkspaceAreAlignedAndDoNotOverlap) {
  for (const bool is_deterministic : {false, true})
    for (const bool is_ragged : {false, true}) {
      Problem p{};
      p.batch = 3;
      p.seqlen_q = 200;
      p.total_q = is_ragged ? 401 : 0;
      p.is_ragged = is_ragged;
      p.num_heads = 5;
      p.head_dim = p.head_dim_v = 100;
      p.deterministic = is_deterministic;
      p.bias_dtype = -1;
      const Tile tile = tile_of(p, 0);
      const WorkspacePlan x = workspace_plan(p, tile);
      EXPECT_EQ(x.dq_accum_cols, 112);
      EXPECT_EQ(x.lse - x.delta, static_cast<std::size_t>(4 * padded_elements(sizes_of(p))));
      EXPECT_EQ(x.dq_accum - x.lse, static_cast<std::size_t>(4 * padded_elements(sizes_of(p))));
      EXPECT_EQ(x.dq_semaphores - x.dq_accum,
                static_cast<std::size_t>(4 * padded_elements(sizes_of(p)) * x.dq_accum_cols));
      for (const std::size_t at : {x.delta, x.lse, x.dq_accum, x.dq_semaphores})
        EXPECT_EQ(at % 16, 0u);
      const std::int64_t num_dq_semaphores =
          padded_elements(sizes_of(p)) / tile.rows * tile.warps + 1;
      EXPECT_EQ(x.num_dq_semaphores, is_deterministic ? num_dq_semaphores : 0);
      EXPECT_EQ(x.total, x.dq_semaphores + static_cast<std::size_t>(4 * x.num_dq_semaphores));
    }
}

}  // namespace
}  // namespace headrace::cuda::sm80::bwd
