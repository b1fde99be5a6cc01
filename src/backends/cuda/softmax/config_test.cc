// Which softmax kernel takes which row length. Host arithmetic; no GPU is needed.
#include <gtest/gtest.h>

#include "backends/cuda/softmax/softmax.h"

namespace headrace::cuda::softmax {
namespace {

TEST(CudaSoftmaxConfig, EveryRowFitsIntoTheThreadsThatKeepIt) {
  for (const Elements& elements : {kForwardElements, kBackwardElements})
    for (std::int64_t length = 0; length < 70000; ++length) {
      const Config rows = config_of(length, true, false, elements);
      ASSERT_EQ(rows.block_x % kWarp, 0);
      ASSERT_LE(rows.block_x * rows.block_y, kMaxThreads);
      if (rows.path == Path::warp_short) {
        ASSERT_LE(length, kWarp * elements.warp_short);
      } else if (rows.path == Path::warp_long) {
        ASSERT_LE(length, kWarp * elements.warp_long);
      } else if (rows.path == Path::cta) {
        ASSERT_LE(length, std::int64_t{rows.block_x} * elements.cta);
        ASSERT_GT(length + kWarp * elements.cta, std::int64_t{rows.block_x} * elements.cta);
      }
      const Config columns = config_of(length, true, true, elements);
      ASSERT_FALSE(columns.has_vectors);
      const bool in_registers = length <= std::int64_t{kColumnThreads} * elements.column;
      ASSERT_EQ(columns.path, in_registers ? Path::column : Path::column_streamed);
    }
}

TEST(CudaSoftmaxConfig, MemoryIsReadOnceUpTo32768ElementsForwardAnd16384Backward) {
  EXPECT_EQ(config_of(32768, true, false, kForwardElements).path, Path::cta);
  EXPECT_EQ(config_of(32769, true, false, kForwardElements).path, Path::cta_streamed);
  EXPECT_EQ(config_of(16384, true, false, kBackwardElements).path, Path::cta);
  EXPECT_EQ(config_of(16385, true, false, kBackwardElements).path, Path::cta_streamed);
}

}  // namespace
}  // namespace headrace::cuda::softmax
