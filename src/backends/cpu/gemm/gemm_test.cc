#include "backends/cpu/gemm/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "backends/cpu/gemm/pack.h"
#include "core/dtype.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/random.h"
#include "weights/dequantise.h"

namespace headrace::cpu {
namespace {

using std::int64_t;
using testing::Guard;
using testing::GuardedBuffer;
using testing::Random;

constexpr double kEps = 0x1p-24;
constexpr int kGroup = 32;

DeviceInfo device_with(std::uint32_t cpu_isa, int threads = 2) {
  DeviceInfo device = cpu_info().value();
  device.cpu_isa = cpu_isa;
  device.num_units = threads;
  return device;
}

std::vector<std::uint32_t> instruction_sets() {
  std::vector<std::uint32_t> sets;
  for (const char* name : {"cpu:scalar", "cpu:avx2", "cpu:avx512_bf16", "cpu:neon"}) {
    const std::uint32_t isa = device_from_text(name).value().cpu_isa;
    if ((isa & ~detected_cpu_isa()) == 0) sets.push_back(isa);
  }
  return sets;
}

bool is_quantised(WeightType type) { return info_of(type).block_elements > 1; }

// The f16 halves of blocks: offsets and largest factors.
struct Halves {
  int scale_at, minimum_at;        // -1: no minimum
  float per_element, per_minimum;  // largest factor of the half in a weight
};
Halves halves_of(WeightType type) {
  switch (type) {
    case WeightType::q4_0:
      return {0, -1, 15 + 8, 0};
    case WeightType::q4_1:
      return {0, 2, 15, 1};
    case WeightType::q5_0:
      return {0, -1, 31 + 16, 0};
    case WeightType::q5_1:
      return {0, 2, 31, 1};
    case WeightType::q8_0:
      return {0, -1, 128 + 128, 0};
    case WeightType::q4_k:
      return {0, 2, 15 * 63, 63};
    case WeightType::q5_k:
      return {0, 2, 31 * 63, 63};
    default:
      return {208, -1, (63 + 32) * 128, 0};  // Q6_K
  }
}

struct Weights {
  WeightType type;
  int64_t rows, columns;
  GuardedBuffer data;
  std::vector<float> values;  // [rows, columns]
  double largest_part;        // of |scale * element| + |minimum|, over all groups
};

Weights random_weights(WeightType type, int64_t rows, int64_t columns, std::uint64_t seed) {
  Random random(seed);
  const WeightTypeInfo& info = info_of(type);
  const int64_t blocks = rows * columns / info.block_elements;
  Weights w{type, rows, columns, {}, {}, 0};
  w.data = GuardedBuffer(static_cast<std::size_t>(blocks * info.block_bytes), Guard::after, 0);
  for (std::size_t i = 0; i < w.data.bytes(); ++i)
    w.data.data()[i] = static_cast<unsigned char>(random.next());
  const auto half = [&](double scale, unsigned char* at) {
    const auto value = static_cast<float>(scale * (0.5 + 0.5 * random.uniform()));
    const std::uint16_t bits = f16_from_float(random.chance(50) ? value : -value);
    std::memcpy(at, &bits, sizeof bits);
  };
  for (int64_t b = 0; b < blocks; ++b) {
    unsigned char* block = w.data.data() + b * info.block_bytes;
    if (is_quantised(type)) {
      const Halves halves = halves_of(type);
      half(1.0 / halves.per_element, block + halves.scale_at);
      if (halves.minimum_at >= 0) half(1.0 / halves.per_minimum, block + halves.minimum_at);
    } else if (type == WeightType::f32) {
      const auto value = static_cast<float>(random.normal());
      std::memcpy(block, &value, sizeof value);
    } else {
      const auto value = static_cast<float>(random.normal());
      const std::uint16_t bits =
          type == WeightType::f16 ? f16_from_float(value) : bf16_from_float(value);
      std::memcpy(block, &bits, sizeof bits);
    }
  }
  w.values.resize(static_cast<std::size_t>(rows * columns));
  dequantise(type, reinterpret_cast<std::byte*>(w.data.data()), rows * columns, w.values.data());
  w.largest_part = halves_of(type).minimum_at >= 0 ? 2 : 1;
  return w;
}

Weight pack(const Weights& w, MatmulMode mode, std::uint32_t isa, int threads = 2) {
  return pack_matrix(w.type, w.rows, w.columns, reinterpret_cast<std::byte*>(w.data.data()), mode,
                     device_with(isa, threads))
      .value();
}

std::vector<float> random_floats(int64_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& value : x) value = static_cast<float>(random.normal());
  return x;
}

// Options of a matmul.
struct Options {
  int threads = 2;
  const float* bias = nullptr;
  const std::vector<float>* residual = nullptr;  // [num_tokens, rows], accumulated to
};

// x [num_tokens, columns] -> [num_tokens, rows]. Every buffer ends at a guard page; scratch memory
// starts as NaNs; nothing between the rows of out may change.
std::vector<float> product(const std::vector<Weight>& matrices, const std::vector<float>& x,
                           int64_t num_tokens, Options options = {}) {
  const int64_t columns = matrices[0].columns, gap = 3;
  int64_t rows = 0;
  for (const Weight& m : matrices) rows += m.rows;
  const auto bytes = [](int64_t floats) {
    return static_cast<std::size_t>(floats) * sizeof(float);
  };
  const auto at = [](unsigned char* p) { return reinterpret_cast<float*>(p); };
  GuardedBuffer input(bytes(num_tokens * columns), Guard::after, 0);
  std::copy_n(x.begin(), num_tokens * columns, at(input.data()));
  input.make_read_only();
  const int64_t stride = rows + gap;
  GuardedBuffer output(bytes(num_tokens > 0 ? num_tokens * stride - gap : 0), Guard::after,
                       testing::kSentinelByte);
  if (options.residual != nullptr)
    for (int64_t t = 0; t < num_tokens; ++t)
      std::copy_n(options.residual->begin() + t * rows, rows, at(output.data()) + t * stride);
  GuardedBuffer scratch(multiply_scratch_bytes(columns, num_tokens), Guard::after,
                        testing::kNanByte);
  const Status bad = multiply({.matrices = matrices,
                               .bias = options.bias,
                               .num_tokens = num_tokens,
                               .x = at(input.data()),
                               .x_stride = columns,
                               .out = at(output.data()),
                               .out_stride = stride,
                               .add_to_out = options.residual != nullptr},
                              options.threads, reinterpret_cast<std::byte*>(scratch.data()));
  EXPECT_FALSE(bad);
  std::vector<float> out(static_cast<std::size_t>(num_tokens * rows));
  for (int64_t t = 0; t < num_tokens; ++t) {
    float* row = at(output.data()) + t * stride;
    std::copy_n(row, rows, out.begin() + t * rows);
    std::memset(row, testing::kSentinelByte, bytes(rows));
  }
  EXPECT_EQ(output.find_other_than(testing::kSentinelByte), -1) << "wrote between the rows of out";
  return out;
}

// Quantization of normal mode: elements are y = x * (127 / max |x|) rounded to nearest even, the
// scale max |x| / 127 * sum(y element) / sum(element^2).
std::vector<double> quantised(const float* x, int64_t columns) {
  std::vector<double> result;
  for (int64_t first = 0; first < columns; first += kGroup) {
    float magnitude = 0;
    for (int i = 0; i < kGroup; ++i) magnitude = std::max(magnitude, std::fabs(x[first + i]));
    const bool is_zero = magnitude < 0x1p-100f;
    double elements[kGroup] = {}, products = 0, squares = 0;
    for (int i = 0; i < kGroup && !is_zero; ++i) {
      const float y = x[first + i] * (127.0f / magnitude);
      elements[i] = static_cast<double>(std::nearbyint(y));
      products += static_cast<double>(y) * elements[i];
      squares += elements[i] * elements[i];
    }
    const double scale = is_zero ? 0 : static_cast<double>(magnitude / 127.0f) * products / squares;
    for (const double element : elements) result.push_back(element * scale);
  }
  return result;
}

// Whether bf16 weights are multiplied with bf16 activations.
bool rounds_to_bf16(WeightType type, MatmulMode mode, std::uint32_t isa) {
  constexpr std::uint32_t kWanted =
      HEADRACE_ISA_AVX512 | HEADRACE_ISA_AVX512_VNNI | HEADRACE_ISA_AVX512_BF16;
  return type == WeightType::bf16 && mode == MatmulMode::normal && (isa & kWanted) == kWanted;
}
std::vector<double> rounded(const float* x, int64_t columns) {
  std::vector<double> result;
  for (int64_t i = 0; i < columns; ++i)
    result.push_back(static_cast<double>(float_from_bf16(bf16_from_float(x[i]))));
  return result;
}

// Compares out [num_tokens, rows] with sums in double. Bounds, with e = 2^-24: a sum of n products,
// each multiplied, then added, is within (2n + 2) e of the sum of their magnitudes. In normal mode
// the sum of a group's products is an exact integer; it and its scales are rounded (4 roundings),
// the scale of the activation is a quotient of sums of 32 floats (2 * 33 + 2), and two terms per
// group are added.
void expect_close(const Weights& w, MatmulMode mode, std::uint32_t isa, const std::vector<float>& x,
                  int64_t num_tokens, const std::vector<float>& out, const std::string& what) {
  const bool is_exact = mode == MatmulMode::exact || !is_quantised(w.type);
  double worst = 0;
  for (int64_t t = 0; t < num_tokens; ++t) {
    const float* token = x.data() + t * w.columns;
    const std::vector<double> values = rounds_to_bf16(w.type, mode, isa) ? rounded(token, w.columns)
                                       : is_exact ? std::vector<double>(token, token + w.columns)
                                                  : quantised(token, w.columns);
    for (int64_t r = 0; r < w.rows; ++r) {
      double sum = 0, magnitude = 0;
      for (int64_t c = 0; c < w.columns; ++c) {
        const double weight = w.values[static_cast<std::size_t>(r * w.columns + c)];
        const double value = values[static_cast<std::size_t>(c)];
        sum += weight * value;
        magnitude += std::fabs(value) * (is_exact ? std::fabs(weight) : w.largest_part);
      }
      const auto terms = static_cast<double>(is_exact ? w.columns : 2 * w.columns / kGroup + 36);
      const double error = std::fabs(sum - out[static_cast<std::size_t>(t * w.rows + r)]);
      const double bound = (2 * terms + 2) * kEps * magnitude;
      worst = std::max(worst, bound > 0 ? error / bound : error);
      ASSERT_LE(error, bound) << what << " token " << t << " row " << r << " sum " << sum;
    }
  }
  EXPECT_GT(worst, 1e-6) << what << ": nothing was compared";
}

// Every weight type in every mode on every instruction set of this machine.
struct Config {
  WeightType type;
  MatmulMode mode;
  std::uint32_t isa;
  std::string name;
};
std::vector<Config> all_configs() {
  std::vector<Config> configs;
  for (const WeightTypeInfo& info : weight_types())
    for (const MatmulMode mode : {MatmulMode::normal, MatmulMode::exact})
      for (const std::uint32_t isa : instruction_sets())
        configs.push_back({info.type, mode, isa,
                           std::string(info.name) +
                               (mode == MatmulMode::exact ? "_exact_" : "_normal_") +
                               std::string(cpu_isa_name(isa))});
  return configs;
}

class Gemm : public ::testing::TestWithParam<Config> {
 protected:
  int64_t columns(int64_t about) const {
    const int64_t block = info_of(GetParam().type).block_elements;
    return (about + block - 1) / block * block;
  }
  Weights weights(int64_t rows, int64_t about) const {
    return random_weights(GetParam().type, rows, columns(about), 7);
  }
  Weight packed(const Weights& w) const { return pack(w, GetParam().mode, GetParam().isa); }
};
INSTANTIATE_TEST_SUITE_P(All, Gemm, ::testing::ValuesIn(all_configs()),
                         [](const auto& config) { return config.param.name; });

TEST_P(Gemm, EqualsSumsInDouble) {
  // 800 columns: more groups than are unpacked at once, with every remainder of a token block.
  for (const auto& [rows, about, tokens] : {std::array<int64_t, 3>{16, 32, 1},
                                            {1, 64, 1},
                                            {37, 256, 3},
                                            {8, 576, 16},
                                            {50, 545, 70},
                                            {9, 800, 5},
                                            {9, 800, 6},
                                            {9, 800, 7}}) {
    const Weights w = weights(rows, about);
    const Weight m = packed(w);
    const auto x = random_floats(tokens * w.columns, 11);
    expect_close(w, GetParam().mode, GetParam().isa, x, tokens, product({m}, x, tokens),
                 format_text("{} rows, {} columns, {} tokens:", rows, w.columns, tokens));
  }
}

TEST_P(Gemm, UnpackedRowsAreThoseOfDequantise) {
  const Weights w = weights(21, 96);
  const Weight m = packed(w);
  for (int64_t row = 0; row < w.rows; ++row) {
    GuardedBuffer out(static_cast<std::size_t>(w.columns) * sizeof(float), Guard::after, 0);
    auto* values = reinterpret_cast<float*>(out.data());
    unpack_row(m, row, values);
    for (int64_t c = 0; c < w.columns; ++c)
      ASSERT_EQ(values[c], w.values[static_cast<std::size_t>(row * w.columns + c)])
          << "row " << row << " column " << c;
  }
}

TEST_P(Gemm, BitsDependNeitherOnTokensBesideNorOnThreads) {
  const Weights w = weights(29, 160);
  const Weight m = packed(w);
  constexpr int64_t kTokens = 70;
  const auto x = random_floats(kTokens * w.columns, 12);
  std::vector<float> alone;
  for (int64_t t = 0; t < kTokens; ++t) {
    const std::vector<float> token(x.begin() + t * w.columns, x.begin() + (t + 1) * w.columns);
    const auto out = product({m}, token, 1);
    alone.insert(alone.end(), out.begin(), out.end());
  }
  for (int64_t tokens = 1; tokens <= kTokens; tokens += tokens < 33 ? 1 : 37)
    for (int threads = 1; threads <= 4; ++threads) {
      const auto out = product({m}, x, tokens, {.threads = threads});
      ASSERT_EQ(std::memcmp(out.data(), alone.data(), out.size() * sizeof(float)), 0)
          << tokens << " tokens, " << threads << " threads";
    }
}

TEST_P(Gemm, NanAndInfinityReachTheirTokenAndNoOther) {
  const Weights w = weights(19, 64);
  const Weight m = packed(w);
  constexpr int64_t kTokens = 9;
  const auto clean = random_floats(kTokens * w.columns, 13);
  const auto expected = product({m}, clean, kTokens);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf})
    for (const int64_t column : {int64_t{0}, int64_t{31}, w.columns - 1}) {
      auto x = clean;
      x[static_cast<std::size_t>(4 * w.columns + column)] = bad;
      const auto out = product({m}, x, kTokens);
      for (std::size_t i = 0; i < out.size(); ++i) {
        if (static_cast<int64_t>(i) / w.rows == 4)
          ASSERT_FALSE(
              std::isfinite(out[i]) &&
              w.values[i % static_cast<std::size_t>(w.rows) * static_cast<std::size_t>(w.columns) +
                       static_cast<std::size_t>(column)] != 0)
              << bad << " at " << column << " row " << i % static_cast<std::size_t>(w.rows);
        else
          ASSERT_EQ(out[i], expected[i]);
      }
    }
}

TEST_P(Gemm, SmallestAndLargestActivations) {
  const Weights w = weights(9, 64);
  const Weight m = packed(w);
  for (const float value : {0.0f, -0.0f, 1e-45f, -1e-38f, 0x1p-100f}) {
    const std::vector<float> x(static_cast<std::size_t>(w.columns), value);
    for (const float out : product({m}, x, 1)) EXPECT_LE(std::fabs(out), 1e3f * std::fabs(value));
  }
  const std::vector<float> x(static_cast<std::size_t>(w.columns), 1e34f);
  for (const float out : product({m}, x, 1)) EXPECT_TRUE(std::isfinite(out));
}

TEST_P(Gemm, BiasAndResidual) {
  const Weights w = weights(21, 64);
  const Weight m = packed(w);
  constexpr int64_t kTokens = 5;
  const auto x = random_floats(kTokens * w.columns, 14);
  const auto bias = random_floats(w.rows, 15);
  const auto residual = random_floats(kTokens * w.rows, 16);
  const auto plain = product({m}, x, kTokens);
  const auto both = product({m}, x, kTokens, {.bias = bias.data(), .residual = &residual});
  for (std::size_t i = 0; i < plain.size(); ++i)
    ASSERT_EQ(both[i], residual[i] + (plain[i] + bias[i % static_cast<std::size_t>(w.rows)]));
}

TEST_P(Gemm, NoTokensAndNoRows) {
  const Weights w = weights(5, 32), none = weights(0, 32);
  const Weight m = packed(w), empty = packed(none);
  EXPECT_TRUE(product({m}, {}, 0).empty());
  const auto x = random_floats(w.columns, 17);
  EXPECT_TRUE(product({empty}, x, 1).empty());
  EXPECT_EQ(product({empty, m, empty}, x, 1), product({m}, x, 1));
}

// Q, K and V of different types in one call equal three calls.
TEST(GemmStack, EqualsOneCallEach) {
  for (const std::uint32_t isa : instruction_sets()) {
    const int64_t columns = 256, tokens = 67;
    const auto x = random_floats(tokens * columns, 18);
    std::vector<Weight> matrices;
    for (const WeightType type : {WeightType::q4_k, WeightType::q6_k, WeightType::f16,
                                  WeightType::bf16, WeightType::q8_0, WeightType::q4_0}) {
      const auto mode = type == WeightType::q4_0 ? MatmulMode::exact : MatmulMode::normal;
      const int64_t rows = 13 + static_cast<int64_t>(matrices.size() % 3) * 8;
      matrices.push_back(pack(random_weights(type, rows, columns, matrices.size()), mode, isa));
    }
    int64_t rows = 0;
    for (const Weight& m : matrices) rows += m.rows;
    const auto bias = random_floats(rows, 19);
    const auto out = product(matrices, x, tokens, {.bias = bias.data()});
    int64_t first = 0;
    for (const Weight& m : matrices) {
      const auto one = product({m}, x, tokens, {.bias = bias.data() + first});
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t r = 0; r < m.rows; ++r)
          ASSERT_EQ(out[static_cast<std::size_t>(t * rows + first + r)],
                    one[static_cast<std::size_t>(t * m.rows + r)]);
      first += m.rows;
    }
  }
}

TEST(GemmPack, RefusesPartsOfBlocks) {
  auto result = pack_matrix(WeightType::q4_k, 4, 288, nullptr, MatmulMode::exact, device_with(0));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.failure().code, ErrorCode::unsupported);
  EXPECT_NE(result.failure().message.find("columns=288: Q4_K"), std::string::npos);
}

// Also on CPUs without bf16 dot products.
TEST(GemmPack, PairsOfColumnsLieSideBySide) {
  constexpr int kPanelRows = 4;
  constexpr int64_t kRows = 3, kColumns = 5;
  const gemm::Stored stored{WeightType::bf16, true};
  const Weights w = random_weights(WeightType::bf16, kRows, kColumns, 3);
  const auto* weights = reinterpret_cast<const std::byte*>(w.data.data());
  std::vector<std::uint16_t> panel(3 * kPanelRows * 2, 0xffff);
  ASSERT_EQ(gemm::panel_bytes(stored, kPanelRows, kColumns),
            static_cast<int64_t>(panel.size() * sizeof(std::uint16_t)));
  auto* bytes = reinterpret_cast<std::byte*>(panel.data());
  gemm::pack_panel(WeightType::bf16, stored, kPanelRows, kRows, kColumns, weights, bytes);
  for (int64_t row = 0; row < kPanelRows; ++row) {
    for (int64_t column = 0; column < kColumns + 1; ++column) {
      const auto i = static_cast<std::size_t>((column / 2 * kPanelRows + row) * 2 + column % 2);
      const bool exists = row < kRows && column < kColumns;
      const float expected =
          exists ? w.values[static_cast<std::size_t>(row * kColumns + column)] : 0.0f;
      EXPECT_EQ(float_from_bf16(panel[i]), expected) << "row " << row << " column " << column;
    }
  }
  std::array<float, kColumns> row;
  gemm::unpack_panel_row(stored, kPanelRows, 2, kColumns, bytes, row.data());
  for (std::size_t column = 0; column < row.size(); ++column)
    EXPECT_EQ(row[column], w.values[2 * kColumns + column]);
}

TEST(GemmScratch, NeverFallsWithTokens) {
  for (const int64_t columns : {32, 100, 576, 1536})
    for (int64_t tokens = 0; tokens < 300; ++tokens)
      EXPECT_LE(multiply_scratch_bytes(columns, tokens),
                multiply_scratch_bytes(columns, tokens + 1));
}

}  // namespace
}  // namespace headrace::cpu
