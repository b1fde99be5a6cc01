// The quotient is exact for every dividend: it can only be wrong where n / d changes.
#include "backends/cuda/common/divisor.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace headrace::cuda {
namespace {

constexpr std::int64_t kMost = INT32_MAX;

void expect_exact(std::int64_t d) {
  const Divisor divisor = Divisor::of(d);
  const auto check = [&](std::int64_t n) {
    if (n < 0 || n > kMost) return;
    ASSERT_EQ(divisor.divide(static_cast<int>(n)), n / d) << n << " / " << d;
  };
  const std::int64_t step = d > kMost / 4096 ? d : kMost / 4096 / d * d;
  for (std::int64_t n = 0; n <= kMost; n += step) {
    check(n - 1);
    check(n);
    check(n + d - 1);
  }
  check(kMost);
  check(kMost / d * d - 1);
  check(kMost / d * d);
}

TEST(Divisor, IsExact) {
  for (std::int64_t d = 1; d <= 2000; ++d) expect_exact(d);
  for (int s = 11; s < 31; ++s)
    for (const std::int64_t offset : {-2, -1, 0, 1, 2, 77})
      expect_exact((std::int64_t{1} << s) + offset);
  expect_exact(kMost);
}

}  // namespace
}  // namespace headrace::cuda
