#include "backends/cuda/gemm/wide.h"

#include <gtest/gtest.h>

namespace headrace::cuda::gemm {
namespace {

Product product(std::span<const Matrix> matrices, std::int64_t num_tokens) {
  Product p{};
  p.matrices = matrices;
  p.columns = 4096;
  p.num_tokens = num_tokens;
  return p;
}

// A stage is released when the products of the next have been issued, so a ring of one would never
// be.
TEST(GemmWidePlan, TokensAndTileFitTheRingAtLeastTwice) {
  for (const std::int64_t rows : {1, 300, 4096, 28672, 128256}) {
    const Matrix matrix{nullptr, rows};
    for (std::int64_t tokens = 1; tokens <= kWideTokens; ++tokens) {
      const auto plan = WidePlan::of(product({&matrix, 1}, tokens), 132);
      ASSERT_GE(plan.box_tokens, tokens);
      ASSERT_LE(plan.box_tokens, plan.groups * kWideGroupTokens);
      ASSERT_GE(plan.num_stages, 2);
      // The swizzle repeats after 1024 bytes.
      ASSERT_EQ(plan.stage_bytes % 1024, 0);
      ASSERT_EQ(plan.rows * kSwizzleRowBytes % 1024, 0);
      // Operand A of the last stage ends in the ring.
      const int last_a = (plan.num_stages - 1) * plan.stage_bytes +
                         (plan.rows + plan.groups * kWideGroupTokens) * kSwizzleRowBytes;
      ASSERT_LE(last_a, kWideRingBytes) << rows << " rows, " << tokens << " tokens";
    }
  }
}

TEST(GemmWidePlan, TilesOfFewRowsForMatricesOfFewRows) {
  const auto rows_of = [](std::span<const Matrix> matrices) {
    return WidePlan::of(product(matrices, 64), 132).rows;
  };
  const Matrix o{nullptr, 4096}, down{nullptr, 1536};
  EXPECT_EQ(rows_of({&o, 1}), 32);     // 128 tiles for 132 multiprocessors
  EXPECT_EQ(rows_of({&down, 1}), 32);  // 48, each of two chains
  const Matrix qkv[] = {{nullptr, 4096}, {nullptr, 1024}, {nullptr, 1024}};
  EXPECT_EQ(rows_of(qkv), 48);  // 130
  const Matrix gate_up[] = {{nullptr, 14336}, {nullptr, 14336}};
  EXPECT_EQ(rows_of(gate_up), 112);  // 256: two each
}

}  // namespace
}  // namespace headrace::cuda::gemm
