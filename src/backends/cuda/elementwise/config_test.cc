// How an append on a GPU divides its work; runs without a GPU.
#include <gtest/gtest.h>

#include <utility>

#include "backends/cuda/elementwise/kv_append.h"

namespace headrace::cuda::append {
namespace {

TEST(KvAppendConfig, DividesTheHeadsOfFewTokens) {
  KvAppendArgs args;
  args.num_heads = 32;
  args.num_kv_heads = 8;
  args.head_dim = args.head_dim_v = 128;
  args.rot_dim = 126;
  const std::pair<std::int64_t, std::int64_t> cases[] = {{1, 6},   {30, 6},  {100, 3},
                                                         {263, 2}, {264, 1}, {100000, 1}};
  for (const auto& [num_tokens, num_groups] : cases) {
    args.num_tokens = num_tokens;
    const Config config = config_of(args, 132);
    EXPECT_EQ(config.num_groups, num_groups) << num_tokens;
    EXPECT_EQ(config.num_rows, 48);
    EXPECT_EQ(config.rows_of_cta % kWarps, 0);
    EXPECT_GE(config.rows_of_cta * config.num_groups, config.num_rows);
    EXPECT_LT(config.rows_of_cta * (config.num_groups - 1), config.num_rows);
    EXPECT_EQ(config.angle_stride, 64);
    EXPECT_EQ(config.smem_bytes, 4 * (2 * 64 + 8 * 128));
  }
}

}  // namespace
}  // namespace headrace::cuda::append
