// The passes over logits of every instruction set of this machine, against double.
#include "backends/cpu/sampling/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/instruction_sets.h"
#include "tests/support/random.h"

namespace headrace::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kUntouched = -777.0f;
using Floats = std::vector<float>;

Floats random_logits(std::int64_t n) {
  testing::Random random(16);
  Floats x(static_cast<std::size_t>(n));
  for (float& value : x) value = static_cast<float>(random.normal() * 5);
  return x;
}

void expect_same_bits(const Floats& a, const Floats& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    ASSERT_EQ(std::bit_cast<std::uint32_t>(a[i]), std::bit_cast<std::uint32_t>(b[i]))
        << "element " << i << ": " << a[i] << ", " << b[i];
}

class SamplingPasses : public ::testing::TestWithParam<const SamplingOps*> {
 protected:
  const SamplingOps& ops = *GetParam();
  const SamplingOps& scalar = *all_sampling_ops().back();
};
INSTANTIATE_TEST_SUITE_P(Isa, SamplingPasses,
                         ::testing::ValuesIn(testing::runnable(all_sampling_ops())),
                         [](const auto& param) { return std::string(param.param->name); });

TEST_P(SamplingPasses, BlockMaximaAndWeightsAreThoseOfDouble) {
  for (const std::int64_t n : {1, 7, 15, 63, 64, 65, 255, 256, 257, 1000}) {
    const auto x = random_logits(n);
    const auto size = static_cast<std::size_t>(n);
    Floats maxima((size + 63) / 64, kUntouched);
    ASSERT_TRUE(ops.block_maxima({x.data(), n, maxima.data()}));
    for (std::size_t block = 0; block < maxima.size(); ++block) {
      const auto first = x.begin() + static_cast<std::ptrdiff_t>(64 * block);
      const auto last = block + 1 == maxima.size() ? x.end() : first + 64;
      ASSERT_EQ(maxima[block], *std::max_element(first, last));
    }
    const float max = *std::max_element(maxima.begin(), maxima.end());
    Floats weights(size), expected(size);
    std::vector<double> sums((size + 255) / 256), expected_sums(sums.size());
    const double sum = ops.exp_weights({x.data(), n, max, 0.7f, weights.data(), sums.data()});
    const double same =
        scalar.exp_weights({x.data(), n, max, 0.7f, expected.data(), expected_sums.data()});
    expect_same_bits(weights, expected);
    ASSERT_EQ(sum, same);
    ASSERT_EQ(sums, expected_sums);
    double exact_sum = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const double exact =
          std::exp((static_cast<double>(x[i]) - static_cast<double>(max)) / double{0.7f});
      ASSERT_NEAR(weights[i], exact, 1.1e-5 * exact);
      exact_sum += std::nearbyint(static_cast<double>(weights[i]) * 0x1p34) * 0x1p-34;
    }
    ASSERT_EQ(sum, exact_sum);
  }
}

TEST_P(SamplingPasses, BlockMaximaReportNanAndInfinity) {
  for (const std::size_t n : {1, 9, 64, 100}) {
    Floats maxima(2);
    for (std::size_t i = 0; i < n; ++i) {
      Floats x(n, -kInf);
      EXPECT_TRUE(ops.block_maxima({x.data(), static_cast<std::int64_t>(n), maxima.data()}));
      for (const float wrong : {kNan, -kNan, kInf}) {
        x[i] = wrong;
        EXPECT_FALSE(ops.block_maxima({x.data(), static_cast<std::int64_t>(n), maxima.data()}));
      }
    }
  }
}

}  // namespace
}  // namespace headrace::cpu
