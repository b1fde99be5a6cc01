// Whether attention over quantised keys is what it must be.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "support/quantised_case.h"

namespace headrace::testing {

// Errors of a kernel relative to what a row sums; `of_step` and `of_key_step` are for kernels that
// round P and Q to words.
struct ErrorBounds {
  double out = 0;          // relative to the sum of |p v|, beside the rounding of the result
  double lse = 0;          // absolute
  double of_step = 0;      // relative to Row::step
  double of_key_step = 0;  // of lse, relative to Row::key_step; out: twice that
};

// Of many rows over many keys some are checked, the first and the last of each sequence among them.
inline void expect_close(const QuantisedCall& call, const ErrorBounds& bounds,
                         const std::string& what) {
  const QuantisedCase& c = call.options();
  const double rounding = c.dtype == DType::bf16 ? 0x1p-8 : c.dtype == DType::f16 ? 0x1p-11 : 0;
  double worst = 0, worst_lse = 0;
  const auto add = [](double& most, double error, double allowed) {
    most = std::isnan(error) ? 1e9 : std::max(most, error / allowed);
  };
  for (std::size_t b = 0; b < c.keys.size(); ++b) {
    constexpr std::int64_t kMostElements = 4'000'000;
    const std::int64_t elements =
        c.queries[b] * c.num_heads * std::int64_t{c.keys[b]} * (c.head_dim + c.head_dim_v);
    const std::int64_t step = elements / kMostElements + 1;
    for (std::int64_t i = 0; i < c.queries[b]; ++i)
      for (std::int64_t head = 0; head < c.num_heads; ++head) {
        const bool is_edge = i == 0 || i + 1 == c.queries[b];
        if ((i * c.num_heads + head) % step != 0 && !(is_edge && head + 1 == c.num_heads)) continue;
        const auto batch_idx = static_cast<std::int64_t>(b);
        const QuantisedCall::Row row = call.expected(batch_idx, i, head);
        const double of_scores = bounds.of_key_step * row.key_step;
        const auto lse = static_cast<double>(call.result_lse(batch_idx, i, head));
        add(worst_lse, std::abs(row.lse - lse), bounds.lse + of_scores);
        for (std::int64_t d = 0; d < c.head_dim_v; ++d) {
          const auto at = static_cast<std::size_t>(d);
          const double error = std::abs(row.out[at] - call.result(batch_idx, i, head, d));
          add(worst, error,
              rounding * std::abs(row.out[at]) + (bounds.out + 2 * of_scores) * row.magnitude[at] +
                  bounds.of_step * row.step[at] + 1e-6);
        }
      }
  }
  EXPECT_LE(worst, 1.0) << what;
  EXPECT_LE(worst_lse, 1.0) << what;
}

}  // namespace headrace::testing
