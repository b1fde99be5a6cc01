#include "backends/cuda/gemm/stream.h"

#include <gtest/gtest.h>

namespace headrace::cuda::gemm {
namespace {

Product product(std::span<const Matrix> matrices) {
  Product p{};
  p.matrices = matrices;
  p.columns = 1536;
  p.num_tokens = 1;
  return p;
}
int tile_rows(std::int64_t rows, int num_units = 132) {
  const Matrix matrix{nullptr, rows};
  return stream_tile_rows(product({&matrix, 1}), num_units);
}

TEST(GemmStreamPlan, TilesDivideFewRowsEvenly) {
  EXPECT_EQ(tile_rows(1536), 12);  // 128 tiles, not 96
  EXPECT_EQ(tile_rows(576), 5);    // 116 tiles, not 36
  EXPECT_EQ(tile_rows(896), 7);
  EXPECT_EQ(tile_rows(2560), 10);  // two for each multiprocessor, as with 16 rows
  EXPECT_EQ(tile_rows(1), kStreamLeastTileRows);
  // Nothing is gained.
  for (const std::int64_t rows : {2048, 2112, 4096, 6144, 28672, 128256, 151936})
    EXPECT_EQ(tile_rows(rows), kStreamTileRows) << rows;
  EXPECT_EQ(tile_rows(1536, 1), kStreamTileRows);
  EXPECT_EQ(tile_rows(1536, 0), kStreamTileRows);
}

TEST(GemmStreamPlan, TilesOfPairsAreWhole) {
  const Matrix matrices[] = {{nullptr, 768}, {nullptr, 768}, {nullptr, 64}};
  Product p = product({matrices, 2});
  EXPECT_EQ(stream_tile_rows(p, 132), 12);
  p.has_swiglu = true;
  EXPECT_EQ(stream_tile_rows(p, 132), kStreamTileRows);
  p = product(matrices);
  EXPECT_EQ(stream_tile_rows(p, 132), 13);
  const KvAppendArgs append;
  p.append = &append;
  EXPECT_EQ(stream_tile_rows(p, 132), kStreamTileRows);
}

// Of any number of rows: all are in tiles, and no multiprocessor has more of them.
TEST(GemmStreamPlan, NoMultiprocessorHasMoreRowsThanWithWholeTiles) {
  for (const int num_units : {1, 78, 114, 132})
    for (std::int64_t rows = 1; rows < 7000; ++rows) {
      const Matrix matrix{nullptr, rows};
      const Product p = product({&matrix, 1});
      const int chosen = stream_tile_rows(p, num_units);
      ASSERT_GE(chosen, kStreamLeastTileRows);
      ASSERT_LE(chosen, kStreamTileRows);
      const auto most = [&](int of) { return ceil_div(RowTiles::of(p, of).count, num_units) * of; };
      ASSERT_GE(std::int64_t{most(chosen)} * num_units, rows);
      ASSERT_LE(most(chosen), most(kStreamTileRows)) << rows;
    }
}

}  // namespace
}  // namespace headrace::cuda::gemm
