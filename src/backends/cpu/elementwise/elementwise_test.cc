// Every elementwise operator of every instruction set of this machine, against double.
#include "backends/cpu/elementwise/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "backends/cpu/simd/element.h"
#include "tests/support/instruction_sets.h"
#include "tests/support/random.h"

namespace headrace::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kUntouched = -777.0f;
using Floats = std::vector<float>;

Floats random_floats(std::int64_t n, std::uint64_t seed, double scale = 1) {
  testing::Random random(seed);
  Floats x(static_cast<std::size_t>(n));
  for (float& value : x) value = static_cast<float>(random.normal() * scale);
  return x;
}

// Equal bits, or both NaN (sign and payload are unspecified).
bool same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}
void expect_same_bits(const Floats& a, const Floats& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    ASSERT_TRUE(same_bits(a[i], b[i])) << "element " << i << ": " << a[i] << ", " << b[i];
}

class Elementwise : public ::testing::TestWithParam<const ElementwiseOps*> {
 protected:
  const ElementwiseOps& ops = *GetParam();
  const ElementwiseOps& scalar = *all_elementwise_ops().back();
};
INSTANTIATE_TEST_SUITE_P(Isa, Elementwise,
                         ::testing::ValuesIn(testing::runnable(all_elementwise_ops())),
                         [](const auto& param) { return std::string(param.param->name); });

const std::int64_t kWidths[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 255, 257, 576, 1001};

// ---- rms_norm ----

Floats norm(const ElementwiseOps& ops, const Floats& x, const Floats* weight, std::int64_t width,
            float eps) {
  Floats out(x.size());
  ops.rms_norm({x.data(), width, weight == nullptr ? nullptr : weight->data(), width, eps,
                out.data(), width},
               {0, static_cast<std::int64_t>(x.size()) / width});
  return out;
}

TEST_P(Elementwise, RmsNormIsWithinAMillionthOfDouble) {
  for (const std::int64_t width : {1, 3, 17, 255, 576, 4096, 8192, 8193}) {
    // With a mean far from 0 all squares are similar: the worst case for long sums.
    auto x = random_floats(width, 1);
    for (float& value : x) value += 3.0f;
    const auto weight = random_floats(width, 2);
    const float eps = 1e-5f;
    const auto out = norm(ops, x, &weight, width, eps);
    double sum = 0;
    for (const float value : x) sum += static_cast<double>(value) * static_cast<double>(value);
    const double scale = 1 / std::sqrt(sum / static_cast<double>(width) + static_cast<double>(eps));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = static_cast<double>(x[i]) * scale * static_cast<double>(weight[i]);
      ASSERT_NEAR(out[i], exact, 1e-6 * std::abs(exact)) << width << " element " << i;
    }
  }
}

TEST_P(Elementwise, RmsNormOfARowIsTheSameAlone) {
  const std::int64_t width = 577, n = 5;
  const auto x = random_floats(n * width, 3), weight = random_floats(width, 4);
  const auto together = norm(ops, x, &weight, width, 1e-6f);
  for (std::int64_t row = 0; row < n; ++row) {
    const Floats one(x.begin() + row * width, x.begin() + (row + 1) * width);
    const auto alone = norm(ops, one, &weight, width, 1e-6f);
    expect_same_bits(alone,
                     Floats(together.begin() + row * width, together.begin() + (row + 1) * width));
  }
}

TEST_P(Elementwise, RmsNormHasTheSameBitsOnEveryInstructionSet) {
  for (const std::int64_t width : kWidths) {
    const auto x = random_floats(3 * width, 5), weight = random_floats(width, 6);
    expect_same_bits(norm(ops, x, &weight, width, 1e-5f), norm(scalar, x, &weight, width, 1e-5f));
    expect_same_bits(norm(ops, x, nullptr, width, 1e-5f), norm(scalar, x, nullptr, width, 1e-5f));
  }
}

TEST_P(Elementwise, RmsNormTakesStridesAndRangesAndWorksInPlace) {
  const std::int64_t width = 37, stride = 41, n = 4;
  auto x = random_floats(n * stride, 7);
  const auto weight = random_floats(width, 8);
  Floats out(static_cast<std::size_t>(n * 50), kUntouched);
  ops.rms_norm({x.data(), stride, weight.data(), width, 1e-5f, out.data(), 50}, {1, 3});
  for (std::int64_t row = 0; row < n; ++row) {
    const Floats one(x.begin() + row * stride, x.begin() + row * stride + width);
    const auto expected = norm(ops, one, &weight, width, 1e-5f);
    for (std::int64_t i = 0; i < 50; ++i) {
      const bool is_written = row >= 1 && row < 3 && i < width;
      ASSERT_EQ(out[static_cast<std::size_t>(row * 50 + i)],
                is_written ? expected[static_cast<std::size_t>(i)] : kUntouched);
    }
  }
  const auto before = x;
  ops.rms_norm({x.data(), stride, weight.data(), width, 1e-5f, x.data(), stride}, {0, n});
  for (std::int64_t i = 0; i < width; ++i)
    ASSERT_EQ(x[static_cast<std::size_t>(stride + i)], out[static_cast<std::size_t>(50 + i)]);
  for (std::int64_t i = width; i < stride; ++i)
    ASSERT_EQ(x[static_cast<std::size_t>(i)], before[static_cast<std::size_t>(i)]);
}

TEST_P(Elementwise, RmsNormKeepsNanWithinItsRow) {
  Floats x(3 * 20, 2.0f);
  x[25] = kNan;
  const auto out = norm(ops, x, nullptr, 20, 0.0f);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i / 20 == 1) {
      EXPECT_TRUE(std::isnan(out[i])) << i;
    } else {
      EXPECT_EQ(out[i], 1.0f) << i;
    }
  }
  // A row of zeros stays zero; without eps it would be NaN.
  EXPECT_EQ(norm(ops, Floats(9, 0.0f), nullptr, 9, 1e-5f), Floats(9, 0.0f));
}

// ---- swiglu ----

Floats swiglu(const ElementwiseOps& ops, const Floats& gate, const Floats& up) {
  Floats out(gate.size());
  const auto width = static_cast<std::int64_t>(gate.size());
  ops.swiglu({gate.data(), width, up.data(), width, width, out.data(), width}, {0, 1});
  return out;
}

double ulp_error(float y, double exact) {
  if (std::isnan(exact)) return std::isnan(y) ? 0 : kInf;
  if (y == static_cast<float>(exact)) return 0;
  if (!std::isfinite(y)) return kInf;
  const int exponent = std::max(std::ilogb(exact), -126);
  return std::abs(static_cast<double>(y) - exact) / std::ldexp(1.0, exponent - 23);
}

double exact_silu(float g) {
  if (g == -kInf) return -0.0;
  return static_cast<double>(g) / (1 + std::exp(-static_cast<double>(g)));
}

double worst_silu_error(const ElementwiseOps& ops, std::uint64_t stride) {
  constexpr std::size_t kBlock = 1 << 14;
  double worst = 0;
  Floats gate;
  const Floats ones(kBlock, 1.0f);
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32;) {
    gate.clear();
    for (; gate.size() < kBlock; bits += stride)
      gate.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    const auto out = swiglu(ops, gate, ones);
    for (std::size_t i = 0; i < kBlock; ++i)
      worst = std::max(worst, ulp_error(out[i], exact_silu(gate[i])));
  }
  return worst;
}

// Five roundings (y, its product with x, 1 + e and the e in it, the quotient). That of e counts
// half and those of exp 6 % more: 4.6 * 2^-24 relative, 4.6 ulp where an ulp is smallest.
constexpr double kSiluUlp = 4.6;

TEST_P(Elementwise, SiluIsWithinItsRoundings) { EXPECT_LE(worst_silu_error(ops, 65521), kSiluUlp); }

// Run by the ctest entry "exp_sweep" (label slow): all 2^32 floats.
TEST_P(Elementwise, DISABLED_SiluOfAllFloats) {
  if (&ops == &scalar && testing::runnable(all_elementwise_ops()).size() > 1)
    GTEST_SKIP() << "bit-identical to the other instruction sets";
  const double worst = worst_silu_error(ops, 1);
  std::printf("%s: silu is within %.6f ulp of every float\n", ops.name, worst);
  EXPECT_LE(worst, 3.35);
}

TEST_P(Elementwise, SwigluOfExtremeValues) {
  const Floats gate = {0.0f, -0.0f, kInf, -kInf, kNan,   -1e30f, 1e30f,
                       2.0f, 2.0f,  2.0f, 2.0f,  -91.0f, -110.0f};
  const Floats up = {3.0f, 3.0f,  2.0f, 2.0f, 2.0f, 1e30f, 1.0f,
                     kInf, -kInf, kNan, 0.0f, 1.0f, 1.0f};
  const auto out = swiglu(ops, gate, up);
  EXPECT_TRUE(same_bits(out[0], 0.0f) && same_bits(out[1], -0.0f));
  EXPECT_EQ(out[2], kInf);
  EXPECT_TRUE(same_bits(out[3], -0.0f));
  EXPECT_TRUE(std::isnan(out[4]));
  EXPECT_TRUE(same_bits(out[5], -0.0f));
  EXPECT_EQ(out[6], 1e30f);
  EXPECT_EQ(out[7], kInf);
  EXPECT_EQ(out[8], -kInf);
  EXPECT_TRUE(std::isnan(out[9]));
  EXPECT_EQ(out[10], 0.0f);
  EXPECT_LE(ulp_error(out[11], exact_silu(-91.0f)), kSiluUlp);
  EXPECT_TRUE(same_bits(out[12], -0.0f));
}

TEST_P(Elementwise, SwigluBitsDoNotDependOnThePosition) {
  for (const std::int64_t width : kWidths) {
    const auto gate = random_floats(width, 9, 20), up = random_floats(width, 10);
    const auto out = swiglu(ops, gate, up);
    expect_same_bits(out, swiglu(scalar, gate, up));
    for (std::size_t i = 0; i < gate.size(); ++i)
      ASSERT_EQ(swiglu(ops, {gate[i]}, {up[i]})[0], out[i]);
  }
}

TEST_P(Elementwise, SwigluTakesStridesAndWorksInPlace) {
  const std::int64_t width = 45;
  auto gate_up = random_floats(3 * 2 * width, 11);  // output of one matmul: gate and up adjacent
  const auto before = gate_up;
  ops.swiglu({gate_up.data(), 2 * width, gate_up.data() + width, 2 * width, width, gate_up.data(),
              2 * width},
             {0, 3});
  for (std::int64_t row = 0; row < 3; ++row) {
    const auto begin = before.begin() + row * 2 * width;
    const auto expected =
        swiglu(ops, Floats(begin, begin + width), Floats(begin + width, begin + 2 * width));
    for (std::int64_t i = 0; i < width; ++i) {
      const auto at = static_cast<std::size_t>(row * 2 * width + i);
      ASSERT_EQ(gate_up[at], expected[static_cast<std::size_t>(i)]);
      ASSERT_EQ(gate_up[at + static_cast<std::size_t>(width)],
                before[at + static_cast<std::size_t>(width)]);
    }
  }
}

// ---- widen ----

template <class E>
void widen_test(const ElementwiseOps& ops, DType dtype, float (*widen)(std::uint16_t)) {
  for (const std::int64_t width : kWidths) {
    std::vector<E> x(static_cast<std::size_t>(2 * width));
    for (std::size_t i = 0; i < x.size(); ++i) x[i].bits = static_cast<std::uint16_t>(i * 40503);
    Floats out(static_cast<std::size_t>(2 * (width + 1)), kUntouched);
    ops.widen({x.data(), dtype, width, width, out.data(), width + 1}, {0, 2});
    for (std::int64_t row = 0; row < 2; ++row) {
      for (std::int64_t i = 0; i < width; ++i) {
        const float wanted = widen(x[static_cast<std::size_t>(row * width + i)].bits);
        const float got = out[static_cast<std::size_t>(row * (width + 1) + i)];
        ASSERT_TRUE(got == wanted || (std::isnan(got) && std::isnan(wanted)));
      }
      ASSERT_EQ(out[static_cast<std::size_t>(row * (width + 1) + width)], kUntouched);
    }
  }
}

TEST_P(Elementwise, WidensRows) {
  widen_test<F16>(ops, DType::f16, float_from_f16);
  widen_test<Bf16>(ops, DType::bf16, float_from_bf16);
  const auto x = random_floats(99, 15);
  Floats copy(99);
  ops.widen({x.data(), DType::f32, 33, 33, copy.data(), 33}, {0, 3});
  EXPECT_EQ(copy, x);
}

TEST(ElementwiseOps, TheFastestOfTheDeviceIsChosen) {
  const auto name = [](const char* device) {
    return std::string(elementwise_ops(device_from_text(device).value()).name);
  };
  EXPECT_EQ(name("cpu:scalar"), "scalar");
#if defined(__x86_64__)
  EXPECT_EQ(name("cpu:neon"), "scalar");
  EXPECT_EQ(name("cpu:avx2"), "avx2");
  EXPECT_EQ(name("cpu:avx512"), "avx512");
  EXPECT_EQ(name("cpu:avx512_bf16"), "avx512");
#elif defined(__aarch64__)
  EXPECT_EQ(name("cpu:neon"), "neon");
  EXPECT_EQ(name("cpu:avx2"), "scalar");
#endif
}

}  // namespace
}  // namespace headrace::cpu
