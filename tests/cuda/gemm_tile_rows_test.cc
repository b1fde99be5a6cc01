// Products of few tokens on a GPU: their bits do not depend on the rows of a tile.
#include <gtest/gtest.h>

#include <set>

#include "backends/cuda/backend.h"
#include "backends/cuda/gemm/stream.h"
#include "core/dtype.h"
#include "cuda/gpu.h"
#include "cuda/random_elements.h"

namespace headrace::testing {
namespace {

// Two matrices, the second of few rows. The plan is made for GPUs of other sizes; with one
// multiprocessor tiles have 16 rows.
TEST(GemmOnGpuTiles, BitsDoNotDependOnTheirRows) {
  HEADRACE_NEEDS_GPU(90);
  constexpr std::int64_t kMaxRows = 2600, kFew = 37, kTokens = 16;
  std::set<int> tile_rows;
  for (const std::int64_t columns : {8, 200, 1536}) {
    const OnDevice<std::uint16_t> weights(
        random_elements(DType::bf16, (kMaxRows + kFew) * columns, 1)),
        x(random_elements(DType::bf16, kTokens * columns, 2));
    const OnDevice<std::uint16_t> out(
        std::vector<std::uint16_t>(static_cast<std::size_t>(kTokens * (kMaxRows + kFew))));
    for (const std::int64_t rows : {1, 4, 5, 100, 333, 576, 896, 1025, 1536, 2048, 2560})
      for (const std::int64_t num_tokens : {1, 2, 8, 9, 16}) {
        const cuda::Matrix matrices[] = {{weights.data(), rows},
                                         {weights.data() + kMaxRows * columns, kFew}};
        const cuda::Product product{.dtype = DType::bf16,
                                    .matrices = matrices,
                                    .columns = columns,
                                    .num_tokens = num_tokens,
                                    .x = x.data(),
                                    .x_stride = columns,
                                    .bias = nullptr,
                                    .out = out.data(),
                                    .out_dtype = DType::bf16,
                                    .out_stride = rows + kFew,
                                    .adds_to_out = false};
        const auto run = [&](int num_units) {
          DeviceInfo device = cuda::device_info(0).value();
          device.num_units = num_units;
          HEADRACE_EXPECT_CUDA(cudaMemset(out.data(), 0xFF, 2 * kTokens * (kMaxRows + kFew)));
          const Status failed = cuda::multiply(product, device, nullptr);
          EXPECT_FALSE(failed) << failed->message;
          return out.read();
        };
        const auto whole = run(1);
        for (const int num_units : {2, 7, 40, 77, 90, 110, 132, 190, 230, 300, 400, 600}) {
          tile_rows.insert(cuda::gemm::stream_tile_rows(product, num_units));
          ASSERT_EQ(run(num_units), whole) << num_tokens << " tokens, " << rows << " rows of "
                                           << columns << " for " << num_units;
        }
      }
  }
  EXPECT_EQ(tile_rows.size(), 12u);  // 15 rows save less than a tenth
}

}  // namespace
}  // namespace headrace::testing
