// Operators of a decoder on a GPU, against their definitions in double.
#include "backends/cuda/elementwise/decoder_ops.h"

#include <algorithm>
#include <cmath>

#include "core/dtype.h"
#include "cuda/gpu.h"
#include "support/random.h"

namespace headrace::testing {
namespace {

using Stored = std::vector<std::uint16_t>;

constexpr std::int64_t kRows = 5;
// Below, at and beyond the 2048 elements that a CTA has at a time.
constexpr std::int64_t kWidths[] = {8, 24, 576, 2048, 2056, 8192};
// A float result, with sums of up to 32 squares per thread, rounded to bf16.
constexpr double kRounding = 0x1p-8 + 0x1p-16;

Stored random_bf16(std::int64_t count, std::uint64_t seed) {
  Random random(seed);
  Stored elements(static_cast<std::size_t>(count));
  for (std::uint16_t& e : elements) e = bf16_from_float(static_cast<float>(random.normal()));
  return elements;
}

double at(const Stored& x, std::int64_t i) {
  return float_from_bf16(x[static_cast<std::size_t>(i)]);
}

class DecoderOps : public ::testing::Test {
 protected:
  void SetUp() override { HEADRACE_NEEDS_GPU(80); }
};

TEST_F(DecoderOps, GatherCopiesRows) {
  const std::vector<std::int32_t> rows = {4, 0, 4, 2}, drawn = {2, 4};
  const OnDevice<std::int32_t> rows_device({-2, 0, 4, -1}), drawn_device(drawn);
  for (const std::int64_t width : kWidths) {
    const Stored x = random_bf16(kRows * width, 1);
    const OnDevice<std::uint16_t> x_device(x), out(Stored(rows.size() * x.size() / kRows));
    ASSERT_FALSE(cuda::gather_rows({.x = x_device.data(),
                                    .rows = rows_device.data(),
                                    .out = out.data(),
                                    .num_rows = static_cast<std::int64_t>(rows.size()),
                                    .width = width,
                                    .drawn = drawn_device.data()},
                                   0, nullptr));
    const Stored got = out.read();
    for (std::size_t r = 0; r < rows.size(); ++r)
      EXPECT_TRUE(std::equal(x.begin() + rows[r] * width, x.begin() + (rows[r] + 1) * width,
                             got.begin() + static_cast<std::int64_t>(r) * width))
          << width;
  }
}

TEST_F(DecoderOps, RmsNormIsThatOfTheDefinition) {
  constexpr float kEps = 1e-3f;
  for (const std::int64_t width : kWidths) {
    const Stored x = random_bf16(kRows * width, 2);
    std::vector<float> weight;
    Random random(3);
    for (std::int64_t i = 0; i < width; ++i) weight.push_back(static_cast<float>(random.normal()));
    const OnDevice<std::uint16_t> x_device(x);
    const OnDevice<float> weight_device(weight);
    ASSERT_FALSE(cuda::rms_norm({.x = x_device.data(),
                                 .weight = weight_device.data(),
                                 .eps = kEps,
                                 .out = x_device.data(),  // in place
                                 .num_rows = kRows,
                                 .width = width},
                                0, nullptr));
    const Stored got = x_device.read();
    for (std::int64_t row = 0; row < kRows; ++row) {
      double squares = 0;
      for (std::int64_t i = 0; i < width; ++i) squares += std::pow(at(x, row * width + i), 2);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + kEps);
      for (std::int64_t i = 0; i < width; ++i) {
        const double want = at(x, row * width + i) * scale *
                            static_cast<double>(weight[static_cast<std::size_t>(i)]);
        ASSERT_NEAR(at(got, row * width + i), want, kRounding * std::abs(want)) << width;
      }
    }
  }
}

TEST_F(DecoderOps, SwiGluIsThatOfTheDefinition) {
  for (const std::int64_t width : kWidths) {
    const Stored x = random_bf16(kRows * 2 * width, 4);
    const OnDevice<std::uint16_t> x_device(x), out(Stored(static_cast<std::size_t>(kRows * width)));
    ASSERT_FALSE(cuda::swiglu(
        {.gate_up = x_device.data(), .out = out.data(), .num_rows = kRows, .width = width}, 0,
        nullptr));
    const Stored got = out.read();
    for (std::int64_t i = 0; i < kRows * width; ++i) {
      const std::int64_t gate_idx = i / width * 2 * width + i % width;
      const double gate = at(x, gate_idx);
      const double want = gate / (1 + std::exp(-gate)) * at(x, gate_idx + width);
      ASSERT_NEAR(at(got, i), want, kRounding * std::abs(want)) << width;
    }
  }
}

// Where e^-x leaves the range of floats.
TEST_F(DecoderOps, SwiGluOfLargeGatesIsTheGateOrNothing) {
  constexpr std::int64_t kWidth = 8;
  constexpr float kGates[kWidth] = {-3e38f, -1000, -96, -89, 0, 89, 1000, 1e38f};
  Stored x;
  for (const float gate : kGates) x.push_back(bf16_from_float(gate));
  x.insert(x.end(), kWidth, bf16_from_float(1));
  const OnDevice<std::uint16_t> x_device(x), out{Stored(kWidth)};
  ASSERT_FALSE(cuda::swiglu(
      {.gate_up = x_device.data(), .out = out.data(), .num_rows = 1, .width = kWidth}, 0, nullptr));
  const Stored got = out.read();
  for (std::int64_t i = 0; i < kWidth; ++i)
    EXPECT_EQ(at(got, i), kGates[i] < 0 ? 0 : at(x, i)) << kGates[i];
}

TEST_F(DecoderOps, ToBf16RoundsToNearestEven) {
  constexpr std::int64_t kCount = 4104;
  Random random(5);
  std::vector<float> x;
  for (std::int64_t i = 0; i < kCount; ++i) x.push_back(static_cast<float>(random.normal()));
  Stored halves;
  for (const float e : x) halves.push_back(f16_from_float(e));
  const OnDevice<float> x_device(x);
  const OnDevice<std::uint16_t> halves_device(halves), out(Stored(x.size()));
  ASSERT_FALSE(cuda::to_bf16(
      {.x = x_device.data(), .dtype = DType::f32, .out = out.data(), .num_elements = kCount}, 0,
      nullptr));
  const Stored from_floats = out.read();
  ASSERT_FALSE(cuda::to_bf16(
      {.x = halves_device.data(), .dtype = DType::f16, .out = out.data(), .num_elements = kCount},
      0, nullptr));
  const Stored from_halves = out.read();
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(from_floats[i], bf16_from_float(x[i]));
    EXPECT_EQ(from_halves[i], bf16_from_float(float_from_f16(halves[i])));
  }
}

}  // namespace
}  // namespace headrace::testing
