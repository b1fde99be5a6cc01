// Inputs with an answer that can be written down: rule R4.
#include <cmath>
#include <cstdio>

#include "conformance/catalogue.h"
#include "core/dtype.h"

namespace headrace::testing {
namespace {

constexpr DType kDtypes[] = {DType::f32, DType::f16, DType::bf16};
using Index = const std::int64_t*;

// The bits of a key's number as +-1.
double code(std::int64_t key, std::int64_t d) { return (key >> d & 1) != 0 ? 1.0 : -1.0; }

// One key has all the weight: its V must come out exactly.
void needle(Check& check) {
  for (const DType dtype : kDtypes) {
    for (const std::int64_t rows : {1, 40}) {
      for (const std::int64_t key : {0,   1,   63,  64,  65,  127, 128,  129,  191,  192,  193,
                                     511, 512, 513, 639, 640, 641, 1023, 1024, 1025, 1298, 1299}) {
        Case c = plain_case({.dtype = dtype,
                             .seqlen_q = rows,
                             .seqlen_k = 1300,
                             .num_heads = 2,
                             .num_kv_heads = 1});
        set_elements(c, c.tensors().q, [](Index) { return 8.0; });
        set_elements(c, c.tensors().k, [&](Index i) { return i[1] == key ? 4.0 : -4.0; });
        set_elements(c, c.tensors().v, [](Index i) { return code(i[1], i[3]); });
        const auto values = check.run(c, "needle");
        bool is_exact = !values.out.empty();
        for (std::size_t i = 0; i < values.out.size(); ++i)
          is_exact = is_exact && values.out[i] == code(key, static_cast<std::int64_t>(i % 16));
        check.expect_true(is_exact,
                          format_text("{} key {} with {} rows", dtype_name(dtype), key, rows));
      }
    }
  }
}

// All scores 0 and V[j] a unit vector: the output counts the visible keys of each residue, and lse
// is the logarithm of their number.
void check_counts(Check& check, Case& c, const std::string& label) {
  const Shape& s = c.shape();
  set_elements(c, c.tensors().q, [](Index) { return 0.0; });
  set_elements(c, c.tensors().v, [](Index i) { return i[1] % 16 == i[3] ? 1.0 : 0.0; });
  const Result<Call> call = make_call(c);
  const auto values = check.run(c, label);
  if (!call.ok() || values.out.empty()) return;
  for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
    const KeyRange keys = visible_keys(call.value().problem, i, s.seqlen_q, s.seqlen_k);
    const double count = static_cast<double>(std::max<std::int64_t>(keys.end - keys.begin, 0));
    const double lse = values.lse[static_cast<std::size_t>(i)];
    check.expect_true(
        count == 0 ? std::isinf(lse) : std::lround(std::exp(lse)) == std::lround(count),
        format_text("{}: query {} has lse {} for {} keys", label, i, lse, count));
    double total[16] = {};
    for (std::int64_t j = keys.begin; j < keys.end; ++j) total[j % 16] += 1;
    for (std::int64_t d = 0; d < 16; ++d) {
      const double out = values.out[static_cast<std::size_t>(i * 16 + d)];
      // Half a key is far above rounding: 2^-8 of a share, which is at most one key in 16 of them.
      const bool is_right =
          std::abs(out * count - total[d]) <= 2 * unit_roundoff(s.dtype) * total[d] + 1e-5;
      check.expect_true(is_right, format_text("{}: query {} counts {} keys of residue {}, not {}",
                                              label, i, out * count, d, total[d]));
    }
  }
}

void uniform_counts(Check& check) {
  for (const DType dtype : kDtypes)
    for (const std::int64_t keys : {1, 2, 3, 63, 64, 65, 127, 128, 129, 255, 257, 513, 1300})
      for (const std::int32_t causal : {0, 1, 2}) {
        Case c = plain_case({.dtype = dtype, .seqlen_q = 60, .seqlen_k = keys});
        c.mutable_options().causal = causal;
        check_counts(check, c,
                     format_text("{} {} keys causal {}", dtype_name(dtype), keys, causal));
      }
}

// A22: edges of windows.
void window_edges(Check& check) {
  for (const std::int64_t left : {-1, 0, 3, 13, 23, 37, 43, 400})
    for (const std::int64_t right : {-1, 0, 1, 64})
      for (const std::int32_t causal : {0, 1, 2})
        for (const std::int64_t rows : {1, 7, 150}) {
          Case c = plain_case({.seqlen_q = rows, .seqlen_k = 150});
          c.mutable_options().causal = causal;
          c.mutable_options().window_left = left;
          c.mutable_options().window_right = right;
          check_counts(check, c,
                       format_text("window {} {} causal {} rows {}", left, right, causal, rows));
        }
}

// Equal weights on 2^n keys with small integers: every sum is exact in float, so is the result.
void integer_means(Check& check) {
  for (const std::int64_t keys : {1, 2, 64, 128, 256, 1024}) {
    for (const std::int64_t rows : {1, 33}) {
      Case c = plain_case({.seqlen_q = rows, .seqlen_k = keys});
      set_elements(c, c.tensors().q, [](Index) { return 0.0; });
      const auto value = [](std::int64_t j, std::int64_t d) {
        return static_cast<double>((j * 7 + d * 3) % 11 - 5);
      };
      set_elements(c, c.tensors().v, [&](Index i) { return value(i[1], i[3]); });
      const auto values = check.run(c, "integers");
      for (std::size_t i = 0; i < values.out.size(); ++i) {
        double sum = 0;
        for (std::int64_t j = 0; j < keys; ++j) sum += value(j, static_cast<std::int64_t>(i % 16));
        check.expect_true(values.out[i] == sum / static_cast<double>(keys),
                          format_text("mean of {} integers: {}", keys, values.out[i]));
      }
    }
  }
}

}  // namespace

std::vector<CatalogueEntry> exact_checks() {
  return {{"R4", "needle: one key has all the weight", needle},
          {"R4", "uniform scores count the visible keys", uniform_counts},
          {"R4", "means of integers are exact", integer_means},
          {"A22", "edges of windows count exactly", window_edges}};
}

}  // namespace headrace::testing
