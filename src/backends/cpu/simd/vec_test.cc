// Every instruction set of this machine against plain scalar arithmetic.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "backends/cpu/simd/vec_probe.h"

namespace headrace::cpu {

namespace scalar {
extern const VecProbe kProbe;
}
namespace avx2 {
extern const VecProbe kProbe;
}
namespace avx512 {
extern const VecProbe kProbe;
}
namespace neon {
extern const VecProbe kProbe;
}

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<const VecProbe*> probes() {
  std::vector<const VecProbe*> found = {&scalar::kProbe};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    found.push_back(&avx2::kProbe);
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    found.push_back(&avx512::kProbe);
#elif defined(__aarch64__)
  found.push_back(&neon::kProbe);
#endif
  return found;
}

class Simd : public testing::TestWithParam<const VecProbe*> {
 protected:
  const VecProbe& vec = *GetParam();
  int width = vec.width;
  std::vector<float> numbers(int n) {
    std::vector<float> x(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i)
      x[static_cast<std::size_t>(i)] = std::sin(static_cast<float>(i + 1)) * 3.0f;
    return x;
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, Simd, testing::ValuesIn(probes()),
                         [](const auto& param) { return std::string(param.param->name); });

// Error of y in ulps of a float near the exact value.
double ulp_error(float y, double exact) {
  if (std::isnan(exact)) return std::isnan(y) ? 0 : kInf;
  const float rounded = static_cast<float>(exact);
  if (y == rounded) return 0;  // also both infinite, both zero
  if (!std::isfinite(y)) return kInf;
  // The spacing of floats at the exact value (of denormals below 2^-126).
  const int exponent = std::max(std::ilogb(exact), -126);
  return std::abs(static_cast<double>(y) - exact) / std::ldexp(1.0, exponent - 23);
}

std::vector<float> evaluate(void (*f)(const float*, float*, int64_t), const std::vector<float>& x,
                            int width) {
  std::vector<float> padded = x;
  padded.resize((x.size() + static_cast<std::size_t>(width) - 1) / static_cast<std::size_t>(width) *
                static_cast<std::size_t>(width));
  std::vector<float> y(padded.size());
  f(padded.data(), y.data(), static_cast<int64_t>(padded.size()));
  y.resize(x.size());
  return y;
}

TEST_P(Simd, ExpAtItsEdges) {
  const std::vector<float> x = {0.0f,   -0.0f,  kInf,    -kInf,     kNan,     -kNan,     88.0f,
                                88.7f,  88.73f, 89.0f,   90.0f,     1e30f,    -87.0f,    -87.34f,
                                -88.0f, -89.0f, -90.0f,  -103.0f,   -103.97f, -103.98f,  -104.0f,
                                -1e30f, 1e-30f, -1e-30f, 0x1p-149f, 0.34657f, -0.34657f, 0.35f};
  const auto y = evaluate(vec.exp, x, width);
  for (std::size_t i = 0; i < x.size(); ++i)
    EXPECT_LE(ulp_error(y[i], std::exp(static_cast<double>(x[i]))), 1.0)
        << "exp(" << x[i] << ") = " << y[i];
  EXPECT_EQ(y[0], 1.0f);
}

// A prime stride through all bit patterns; the test labelled slow is exhaustive.
constexpr std::uint64_t kSampleStride = 65521;

template <class Check>
void for_bit_patterns(const VecProbe& vec, std::uint64_t stride,
                      void (*f)(const float*, float*, int64_t), Check check) {
  constexpr std::size_t kBlock = 1 << 14;
  std::vector<float> x(kBlock), y(kBlock);
  std::size_t n = 0;
  const auto flush = [&] {
    while (n % static_cast<std::size_t>(vec.width) != 0) x[n++] = 0.0f;
    f(x.data(), y.data(), static_cast<int64_t>(n));
    for (std::size_t i = 0; i < n; ++i) check(x[i], y[i]);
    n = 0;
  };
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += stride) {
    x[n++] = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (n == kBlock) flush();
  }
  flush();
}

TEST_P(Simd, ExpOfSampledFloats) {
  double worst = 0;
  for_bit_patterns(vec, kSampleStride, vec.exp, [&](float x, float y) {
    worst = std::max(worst, ulp_error(y, std::exp(static_cast<double>(x))));
  });
  EXPECT_LE(worst, 1.0);
}

// Run by the ctest entry "exp_sweep" (label slow): all 2^32 floats.
TEST_P(Simd, DISABLED_ExpOfAllFloats) {
  double worst = 0;
  float where = 0;
  for_bit_patterns(vec, 1, vec.exp, [&](float x, float y) {
    const double error = ulp_error(y, std::exp(static_cast<double>(x)));
    if (error > worst) {
      worst = error;
      where = x;
    }
  });
  RecordProperty("worst_ulp", std::to_string(worst));
  std::printf("%s: exp is within %.6f ulp of every float; worst at %a\n", vec.name, worst,
              static_cast<double>(where));
  EXPECT_LE(worst, 1.0);
}

TEST_P(Simd, ExpForSoftmaxAgreesAndFlushes) {
  for_bit_patterns(vec, kSampleStride, vec.exp_softmax, [&](float x, float y) {
    if (x > 1.0f) return;
    const double exact = std::exp(static_cast<double>(x));
    if (exact < 0x1p-126) {
      EXPECT_TRUE(y == 0.0f || ulp_error(y, exact) <= 1.0) << x << " -> " << y;
    } else {
      EXPECT_LE(ulp_error(y, exact), 1.0) << "exp(" << x << ") = " << y;
    }
  });
  const auto y = evaluate(vec.exp_softmax, {0.0f, -0.0f, -kInf, kNan, -87.5f, -1e30f}, width);
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_EQ(y[1], 1.0f);
  EXPECT_EQ(y[2], 0.0f);
  EXPECT_TRUE(std::isnan(y[3]));
  EXPECT_EQ(y[4], 0.0f);
  EXPECT_EQ(y[5], 0.0f);
}

TEST_P(Simd, TanhWithinThreeUlp) {
  double worst = 0;
  for_bit_patterns(vec, kSampleStride, vec.tanh, [&](float x, float y) {
    worst = std::max(worst, ulp_error(y, std::tanh(static_cast<double>(x))));
  });
  EXPECT_LE(worst, 3.0);
}

TEST_P(Simd, ConvertsEvery16BitPattern) {
  std::vector<Bf16> bf16(65536);
  std::vector<F16> f16(65536);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    bf16[i].bits = static_cast<std::uint16_t>(i);
    f16[i].bits = static_cast<std::uint16_t>(i);
  }
  std::vector<float> from_bf16(65536), from_f16(65536);
  vec.from_bf16(bf16.data(), from_bf16.data(), 65536);
  vec.from_f16(f16.data(), from_f16.data(), 65536);
  std::vector<Bf16> back_bf16(65536);
  std::vector<F16> back_f16(65536);
  vec.to_bf16(from_bf16.data(), back_bf16.data(), 65536);
  vec.to_f16(from_f16.data(), back_f16.data(), 65536);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
    ASSERT_TRUE(same(from_bf16[i], to_float(bf16[i]))) << i;
    ASSERT_TRUE(same(from_f16[i], to_float(f16[i]))) << i;
    ASSERT_TRUE(back_bf16[i].bits == i || std::isnan(from_bf16[i])) << i;
    ASSERT_TRUE(back_f16[i].bits == i || std::isnan(from_f16[i])) << i;
    ASSERT_EQ(std::isnan(to_float(back_bf16[i])), std::isnan(from_bf16[i])) << i;
  }
}

TEST_P(Simd, EvenAndOddElementsOfBf16) {
  const auto n = static_cast<std::size_t>(width);
  std::vector<Bf16> bf16(2 * n);
  std::vector<float> apart(2 * n), together(2 * n);
  for (std::uint32_t first = 0; first < 65536; first += static_cast<std::uint32_t>(2 * n)) {
    for (std::size_t i = 0; i < 2 * n; ++i) bf16[i].bits = static_cast<std::uint16_t>(first + i);
    vec.even_odd(bf16.data(), apart.data(), together.data());
    for (std::size_t i = 0; i < 2 * n; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(together[i]);
      ASSERT_EQ(bits, static_cast<std::uint32_t>(bf16[i].bits) << 16);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(apart[i % 2 * n + i / 2]), bits);
    }
  }
}

TEST_P(Simd, RoundsToNearestEven) {
  std::vector<float> x;
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 65521 * 16)
    x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  for (std::uint32_t top = 0; top < 65536; top += 7)  // exact midpoints of bf16
    x.push_back(std::bit_cast<float>(top << 16 | 0x8000u));
  while (x.size() % 16 != 0) x.push_back(0.0f);
  std::vector<Bf16> bf16(x.size());
  std::vector<F16> f16(x.size());
  vec.to_bf16(x.data(), bf16.data(), static_cast<int64_t>(x.size()));
  vec.to_f16(x.data(), f16.data(), static_cast<int64_t>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      ASSERT_TRUE(std::isnan(to_float(bf16[i])) && std::isnan(to_float(f16[i])));
    } else {
      ASSERT_EQ(bf16[i].bits, bf16_from_float(x[i])) << x[i];
      ASSERT_EQ(f16[i].bits, f16_from_float(x[i])) << x[i];
    }
  }
}

TEST_P(Simd, PartialLoadsAndStoresTouchNothingElse) {
  const auto x = numbers(width);
  for (int n = 1; n < width; ++n) {
    // Heap blocks of exactly n elements: the address sanitizer sees any other access.
    std::vector<float> f32(x.begin(), x.begin() + n), y(static_cast<std::size_t>(width), kNan);
    std::vector<Bf16> bf16(static_cast<std::size_t>(n));
    std::vector<F16> f16(static_cast<std::size_t>(n));
    vec.store_partial_bf16(x.data(), bf16.data(), n);
    vec.store_partial_f16(x.data(), f16.data(), n);
    const auto check = [&](auto round) {
      for (int i = 0; i < width; ++i)
        EXPECT_EQ(y[static_cast<std::size_t>(i)],
                  i < n ? round(x[static_cast<std::size_t>(i)]) : 0.0f);
    };
    vec.load_partial_f32(f32.data(), y.data(), n);
    check([](float v) { return v; });
    vec.load_partial_bf16(bf16.data(), y.data(), n);
    check([](float v) { return float_from_bf16(bf16_from_float(v)); });
    vec.load_partial_f16(f16.data(), y.data(), n);
    check([](float v) { return float_from_f16(f16_from_float(v)); });
    std::vector<float> target(static_cast<std::size_t>(n), kNan);
    vec.store_partial_f32(x.data(), target.data(), n);
    EXPECT_EQ(target, f32);
  }
}

TEST_P(Simd, ShufflesPermuteLanes) {
  auto matrix = numbers(width * width);
  const auto before = matrix;
  vec.transpose(matrix.data());
  for (int i = 0; i < width; ++i) {
    for (int j = 0; j < width; ++j)
      EXPECT_EQ(matrix[static_cast<std::size_t>(i * width + j)],
                before[static_cast<std::size_t>(j * width + i)]);
  }
  const auto x = numbers(width);
  double sum = 0;
  for (const float value : x) sum += value;
  EXPECT_NEAR(vec.sum(x.data()), sum, 1e-5);
  const auto eight = numbers(8 * width);
  float sums[8];
  vec.sums(eight.data(), sums);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(sums[i], vec.sum(eight.data() + i * width));
  EXPECT_EQ(vec.max_lane(x.data()), *std::max_element(x.begin(), x.end()));

  std::vector<std::uint8_t> keep(static_cast<std::size_t>(std::max(width, 8)));
  for (std::size_t i = 0; i < keep.size(); ++i)
    keep[i] = static_cast<std::uint8_t>(i % 3 == 0 ? 0 : 1 << i % 8);
  const auto y = numbers(2 * width);
  std::vector<float> out(static_cast<std::size_t>(width));
  vec.select_bytes(keep.data(), x.data(), y.data() + width, out.data());
  for (std::size_t i = 0; i < out.size(); ++i)
    EXPECT_EQ(out[i], keep[i] != 0 ? x[i] : y[i + static_cast<std::size_t>(width)]);
  vec.copysign(x.data(), y.data() + width, out.data());
  for (std::size_t i = 0; i < out.size(); ++i)
    EXPECT_EQ(out[i], std::copysign(x[i], y[i + static_cast<std::size_t>(width)]));
}

}  // namespace
}  // namespace headrace::cpu
