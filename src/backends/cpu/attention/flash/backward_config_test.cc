// Arithmetic of the backward's tiles, tasks and scratch.
#include "backends/cpu/attention/flash/backward_config.h"

#include <gtest/gtest.h>

namespace headrace::cpu::flash {
namespace {

constexpr IsaShape kShapes[] = {{1, 4, 4, 1}, {8, 6, 16, 1}, {16, 12, 32, 1}, {16, 12, 32, 2}};

Problem problem_of(std::int64_t heads, std::int64_t seqlen, std::int64_t dim) {
  Problem p{};
  p.k_dtype = p.v_dtype = -1;
  p.batch = 1;
  p.num_heads = p.num_kv_heads = heads;
  p.seqlen_q = p.seqlen_k = seqlen;
  p.head_dim = p.head_dim_v = dim;
  return p;
}

TEST(BackwardConfig, FusedIfHeadsKeepTheThreadsBusy) {
  const auto path = [](std::int64_t heads, int threads) {
    return backward_layout(problem_of(heads, 1000, 64), kShapes[1], threads).path;
  };
  EXPECT_EQ(path(8, 2), BackwardPath::fused);
  EXPECT_EQ(path(1, 1), BackwardPath::fused);
  EXPECT_EQ(path(3, 2), BackwardPath::fused);  // 2 heads x 5 matmuls against 3 x 7 / 2
  EXPECT_EQ(path(1, 2), BackwardPath::separate);
  EXPECT_EQ(path(8, 16), BackwardPath::separate);
  // 64 MiB of dQ plus one row.
  const std::int64_t rows =
      kMaxDqBytes / 4 / backward_stride(64, 16) / kBackwardRows * kBackwardRows;
  EXPECT_EQ(backward_layout(problem_of(8, rows, 64), kShapes[1], 2).path, BackwardPath::fused);
  EXPECT_EQ(backward_layout(problem_of(8, rows + 1, 64), kShapes[1], 2).path,
            BackwardPath::separate);
}

TEST(BackwardConfig, ScratchPartsShareNoCacheLine) {
  for (const IsaShape& isa : kShapes) {
    for (const std::int64_t dim : {1, 16, 17, 64, 128, 576}) {
      Problem p = problem_of(2, 500, dim);
      p.head_dim_v = 577 - dim;
      const BackwardScratch x = backward_scratch(p, isa, 192);
      EXPECT_GE(x.k_stride, round_up<std::int64_t>(dim, isa.tile_cols));
      EXPECT_EQ(x.k_stride / 16 % 2, 1);  // an odd number of lines
      const std::int64_t parts[] = {x.q, x.dout, x.k_panels, x.v_panels, x.k,  x.dk,   x.dv,
                                    x.s, x.dp,   x.keep,     x.slope,    x.dq, x.total};
      for (std::size_t i = 1; i < std::size(parts); ++i) {
        EXPECT_GT(parts[i], parts[i - 1]);
        EXPECT_EQ(parts[i] % 16, 0);
      }
      EXPECT_GE(x.v_panels - x.k_panels, kBackwardKeys / isa.tile_cols * x.k_panel);
      EXPECT_GE(x.k_panel, (dim + isa.pair - 1) / isa.pair * isa.tile_cols);
      EXPECT_EQ(x.dk - x.k, kBackwardKeys / isa.pair * x.k_stride);
      EXPECT_EQ(x.q_steps - x.dq, 192 * x.k_stride);
      const std::int64_t row_pairs = isa.pair == 2 ? kBackwardRows / 2 : 0;
      EXPECT_EQ(x.dout_steps - x.q_steps, row_pairs * x.k_stride);
      EXPECT_EQ(x.ds_rows - x.dout_steps, row_pairs * x.v_stride);
      EXPECT_EQ(x.total - x.ds_rows, row_pairs * kBackwardKeys);
    }
  }
}

TEST(BackwardConfig, BroadcastAxesShareADbiasTile) {
  Problem p = problem_of(6, 100, 64);
  p.batch = 5;
  const float data = 0;
  ScoreOperand dbias{
      .data = &data, .stride_batch = 1, .stride_head = 1, .stride_q = 1, .stride_k = 1};
  EXPECT_EQ(dbias_tiles(p, dbias).count(), 5 * 6 * 3 * 2);
  dbias.stride_batch = dbias.stride_k = 0;
  EXPECT_EQ(dbias_tiles(p, dbias).count(), 6 * 3);
  p.is_ragged = 1;  // the rows of sequences are concatenated
  EXPECT_EQ(dbias_tiles(p, dbias).count(), 5 * 6 * 3);
  dbias.stride_q = 0;
  EXPECT_EQ(dbias_tiles(p, dbias).count(), 6);
  dbias.data = nullptr;
  EXPECT_EQ(dbias_tiles(p, dbias).count(), 0);
}

}  // namespace
}  // namespace headrace::cpu::flash
