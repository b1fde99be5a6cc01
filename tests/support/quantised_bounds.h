// How close attention over quantised keys must be to the dequantised keys in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/kernel.h"
#include "support/quantised_call.h"

namespace headrace::testing {

// Errors of a kernel relative to what a row sums; those of steps are for kernels that round P and Q
// to words.
struct ErrorBounds {
  double out = 0;      // relative to the sum of |p v|, beside the rounding of the result
  double lse = 0;      // absolute
  double of_step = 0;  // relative to Row::step
  // Of lse, relative to Row::key_step and query_step; out: twice that.
  double of_key_step = 0, of_query_step = 0;
};

inline bool has_integer_products(std::string_view kernel, const QuantisedCase& c) {
  const bool has_vnni = (cpu_info().value().cpu_isa & HEADRACE_ISA_AVX512_VNNI) != 0;
  return c.dtype != DType::f32 &&
         (kernel == "cpu_avx2_fwd" || (kernel == "cpu_avx512_fwd" && has_vnni));
}

// Weights are rounded to f16, those of recent keys to the dtype of q: by up to 2^-11 and 2^-8. With
// zero points they are rounded again with the scales of V, and Q with those of K.
inline ErrorBounds bounds_of_sm80_codes(const QuantisedCase& c) {
  const double most = has_zero_points(c.k_dtype) ? largest_code(c.k_dtype) : 0;
  const double step = c.k_dtype == DType::f8e4m3 ? 0 : 0x1p-12;  // formats.cuh
  const double weights = c.dtype == DType::bf16 && c.group > 0 ? 0x1p-8 : 0x1p-11;
  return {.out = weights + c.q_scale * 0x1p-12,
          .lse = c.q_scale * 1e-4,
          .of_step = step + most * 0x1p-11,
          .of_key_step = most * 0x1p-11};
}

// Integer products round P to 2^-16 of the largest of 64 keys, so a row is off by at most 64 keys
// times 2^-16 of the largest code, in steps of V. With zero points they also round Q times the
// steps of K to 2^-16 of its largest: 2.7 sqrt(head_dim) of that is one standard deviation with
// codes of 4 bits, of which 6 are allowed. Without zero points Q is rounded to 2^-14 of its largest
// at most, whose standard deviation is 1 / sqrt(12) of that.
inline ErrorBounds bounds_of(const Kernel& kernel, const QuantisedCase& c) {
  if (kernel.name == "cuda_sm80_codes") return bounds_of_sm80_codes(c);
  ErrorBounds bounds{.out = 2e-5, .lse = 3e-5};
  if (!has_integer_products(kernel.name, c)) return bounds;
  const double largest_code = c.v_dtype == DType::i8                                 ? 127
                              : c.v_dtype == DType::i4x2 || c.v_dtype == DType::u4x2 ? 8
                              : c.v_dtype == DType::u2x4                             ? 2
                                                                                     : 0;
  bounds.of_step = 64 * 0x1p-16 * largest_code;
  bounds.of_key_step = 16 * 0x1p-16;
  if (c.k_dtype == DType::i8 || c.k_dtype == DType::i4x2)
    bounds.of_query_step = 6 * 0x1p-14 / std::sqrt(12.0);
  return bounds;
}

// Of one result, relative to its rounding.
inline double rounding_of(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0;
}

struct JudgedRow {
  std::int64_t batch_idx, q_idx, head;
  QuantisedCall::Row exact;
};
// Of many rows over many keys some, the first and the last of each sequence among them.
inline std::vector<JudgedRow> judged_rows(const QuantisedCall& call,
                                          QuantisedCall::Form form = QuantisedCall::Form::stored) {
  const QuantisedCase& c = call.options();
  std::vector<JudgedRow> rows;
  for (std::size_t b = 0; b < c.keys.size(); ++b) {
    constexpr std::int64_t kMostElements = 4'000'000;
    const std::int64_t elements =
        c.queries[b] * c.num_heads * std::int64_t{c.keys[b]} * (c.head_dim + c.head_dim_v);
    const std::int64_t step = elements / kMostElements + 1;
    const auto batch_idx = static_cast<std::int64_t>(b);
    for (std::int64_t i = 0; i < c.queries[b]; ++i)
      for (std::int64_t head = 0; head < c.num_heads; ++head) {
        const bool is_edge = i == 0 || i + 1 == c.queries[b];
        if ((i * c.num_heads + head) % step == 0 || (is_edge && head + 1 == c.num_heads))
          rows.push_back({batch_idx, i, head, call.expected(batch_idx, i, head, form)});
      }
  }
  return rows;
}

// The largest errors of a call as shares of the bounds; 1e9: a NaN.
struct BoundShares {
  double out = 0, lse = 0;
};
inline BoundShares shares_of(const QuantisedCall& call, const std::vector<JudgedRow>& rows,
                             const ErrorBounds& bounds) {
  const QuantisedCase& c = call.options();
  BoundShares worst;
  const auto add = [](double& most, double error, double allowed) {
    most = std::isnan(error) ? 1e9 : std::max(most, error / allowed);
  };
  for (const auto& [b, i, head, exact] : rows) {
    const double of_scores =
        bounds.of_key_step * exact.key_step + bounds.of_query_step * exact.query_step;
    const auto lse = static_cast<double>(call.result_lse(b, i, head));
    add(worst.lse, std::abs(exact.lse - lse), bounds.lse + of_scores);
    for (std::int64_t d = 0; d < c.head_dim_v; ++d) {
      const auto at = static_cast<std::size_t>(d);
      add(worst.out, std::abs(exact.out[at] - call.result(b, i, head, d)),
          rounding_of(c.dtype) * std::abs(exact.out[at]) +
              (bounds.out + 2 * of_scores) * exact.magnitude[at] + bounds.of_step * exact.step[at] +
              1e-6);
    }
  }
  return worst;
}

}  // namespace headrace::testing
