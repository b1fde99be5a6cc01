// Products on a GPU: against double, and the bits of a token, which do not depend on the number of
// tokens beside it nor on the kernel.
#include "backends/cuda/gemm/gemm.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define HAS_CUBLASLT_HEADER 1
#endif

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "backends/cuda/backend.h"
#include "backends/cuda/elementwise/decoder_ops.h"
#include "backends/cuda/gemm/cublaslt_api.h"
#include "backends/cuda/gemm/tiles.h"
#include "backends/cuda/gemm/wide.h"
#include "core/dtype.h"
#include "cuda/gpu.h"
#include "support/random.h"

namespace headrace::testing {
namespace {

using cuda::Matrix;
using cuda::Product;

#ifdef HAS_CUBLASLT_HEADER
static_assert(cuda::cublaslt::kCompute32F == CUBLAS_COMPUTE_32F);
static_assert(cuda::cublaslt::kReal32F == CUDA_R_32F && cuda::cublaslt::kReal16F == CUDA_R_16F &&
              cuda::cublaslt::kReal16BF == CUDA_R_16BF);
static_assert(cuda::cublaslt::kTransposed == CUBLAS_OP_T);
static_assert(cuda::cublaslt::kTransA == CUBLASLT_MATMUL_DESC_TRANSA);
static_assert(cuda::cublaslt::kMaxWorkspaceBytes == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(cuda::cublaslt::kReductionSchemes == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
static_assert(cuda::cublaslt::kFloatReductions ==
              (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
static_assert(cuda::cublaslt::kMinAlignmentOfA == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(cuda::cublaslt::kMinAlignmentOfA + 3 == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
static_assert(sizeof(cuda::cublaslt::Heuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(cuda::cublaslt::Heuristic, state) ==
              offsetof(cublasLtMatmulHeuristicResult_t, state));
#endif

// Numbers of dtype on the host, as doubles and as the bytes that the device gets.
struct Numbers {
  std::vector<double> values;
  std::vector<std::uint16_t> stored;

  Numbers(DType dtype, std::int64_t count, std::uint64_t seed, double size) {
    Random random(seed);
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint16_t element = 0;
      store_from_double(dtype, &element, 0, size * random.normal());
      stored.push_back(element);
      values.push_back(load_as_double(dtype, &element, 0));
    }
  }
};

struct Shape {
  std::vector<std::int64_t> rows;  // of the stacked matrices
  std::int64_t columns;
};

// Weights on the device and on the host, products with the first tokens of one x. size: the
// standard deviation of both.
class Weights {
 public:
  static constexpr std::int64_t kMaxTokens = 300, kPadding = 8;

  Weights(DType dtype, const Shape& shape, double size = 1)
      : dtype_(dtype),
        shape_(shape),
        x_(dtype, kMaxTokens * x_stride(), 1, size),
        x_device_(x_.stored) {
    for (const std::int64_t rows : shape.rows) {
      w_.emplace_back(dtype, rows * shape.columns, 2 + w_.size(), size);
      num_rows_ += rows;
    }
    Random random(9);
    for (std::int64_t i = 0; i < num_rows_; ++i)
      bias_.push_back(static_cast<float>(random.normal()));
  }

  std::int64_t num_rows() const { return num_rows_; }
  std::int64_t x_stride() const { return shape_.columns + kPadding; }

  struct Options {
    bool has_bias = false, adds = false;
    DType out_dtype = DType::bf16;
    std::int64_t first_token = 0;
    std::int32_t sm = 0, num_units = 0;  // 0: of the device
    bool has_swiglu = false;
    cuda::CublasLt* library = nullptr;  // instead of multiply()
    enum class Norm { none, before, within } norm = Norm::none;
  };
  std::int64_t out_rows(const Options& options) const {
    return options.has_swiglu ? num_rows_ / 2 : num_rows_;
  }
  // [num_tokens, rows] and a row of what was there before.
  std::vector<unsigned char> run(std::int64_t num_tokens, const Options& options) const {
    const std::size_t bytes = options.out_dtype == DType::f32 ? 4 : 2;
    const std::int64_t rows = out_rows(options);
    std::vector<unsigned char> before(static_cast<std::size_t>((num_tokens + 1) * rows) * bytes);
    for (std::size_t i = 0; i < before.size() / bytes; ++i)
      store_from_double(options.out_dtype, before.data(), static_cast<std::int64_t>(i),
                        old_value(i));
    const OnDevice<unsigned char> out(before);
    const OnDevice<float> bias(bias_);
    std::vector<std::unique_ptr<OnDevice<std::uint16_t>>> w;
    std::vector<Matrix> matrices;
    for (std::size_t i = 0; i < w_.size(); ++i) {
      w.push_back(std::make_unique<OnDevice<std::uint16_t>>(w_[i].stored));
      matrices.push_back({w.back()->data(), shape_.rows[i]});
    }
    DeviceInfo device = cuda::device_info(0).value();
    if (options.sm > 0) device.sm = options.sm;
    if (options.num_units > 0) device.num_units = options.num_units;
    const Product product{.dtype = dtype_,
                          .matrices = matrices,
                          .columns = shape_.columns,
                          .num_tokens = num_tokens,
                          .x = x_device_.data() + options.first_token * x_stride(),
                          .x_stride = x_stride(),
                          .bias = options.has_bias ? bias.data() : nullptr,
                          .out = out.data(),
                          .out_dtype = options.out_dtype,
                          .out_stride = rows,
                          .adds_to_out = options.adds,
                          .has_swiglu = options.has_swiglu};
    const Status failed = options.norm != Options::Norm::none
                              ? multiply_with_norm(product, device, options)
                          : options.library == nullptr
                              ? cuda::multiply(product, device, nullptr)
                              : cuda::multiply_by_cublaslt(*options.library, product, nullptr);
    EXPECT_FALSE(failed.has_value()) << failed->message;
    return out.read();
  }

  // Of the definition, in double.
  double expected(std::int64_t token, std::int64_t row, const Options& options) const {
    double sum = options.has_bias ? bias_[static_cast<std::size_t>(row)] : 0;
    if (options.adds) sum += old_value(static_cast<std::size_t>(token * num_rows_ + row));
    std::size_t matrix = 0;
    std::int64_t r = row;
    while (r >= shape_.rows[matrix]) r -= shape_.rows[matrix++];
    for (std::int64_t c = 0; c < shape_.columns; ++c)
      sum += x_.values[static_cast<std::size_t>((options.first_token + token) * x_stride() + c)] *
             w_[matrix].values[static_cast<std::size_t>(r * shape_.columns + c)];
    return sum;
  }
  static double old_value(std::size_t i) { return static_cast<double>(i % 7) - 3; }

 private:
  // Of the rows of x within the product, or of a copy of them before it.
  Status multiply_with_norm(Product product, const DeviceInfo& device,
                            const Options& options) const {
    constexpr float kEps = 1e-5f;
    Random random(11);
    std::vector<float> weight;
    for (std::int64_t i = 0; i < shape_.columns; ++i)
      weight.push_back(static_cast<float>(random.normal()));
    const OnDevice<float> norm(weight);
    if (options.norm == Options::Norm::within) {
      product.norm = {norm.data(), kEps};
      return cuda::multiply(product, device, nullptr);
    }
    std::vector<std::uint16_t> rows;
    for (std::int64_t token = 0; token < product.num_tokens; ++token) {
      const auto row = x_.stored.begin() + (options.first_token + token) * x_stride();
      rows.insert(rows.end(), row, row + shape_.columns);
    }
    const OnDevice<std::uint16_t> normed(rows);
    if (Status failed = cuda::rms_norm({.x = normed.data(),
                                        .weight = norm.data(),
                                        .eps = kEps,
                                        .out = normed.data(),
                                        .num_rows = product.num_tokens,
                                        .width = shape_.columns},
                                       0, nullptr))
      return failed;
    product.x = normed.data();
    product.x_stride = shape_.columns;
    return cuda::multiply(product, device, nullptr);
  }

  const DType dtype_;
  const Shape shape_;
  const Numbers x_;
  const OnDevice<std::uint16_t> x_device_;
  std::vector<Numbers> w_;
  std::vector<float> bias_;
  std::int64_t num_rows_ = 0;
};

// Sizes around tiles of 16 to 256 rows and stages of 64 and 256 columns; one row,
// matrices of few rows beside large ones, more rows than one round of a CTA's warps. Two chains of
// few and of many steps, up to the most rows that have them, and one chain from the next row on.
const std::vector<Shape>& all_shapes() {
  static const std::vector<Shape> all = {
      {{1}, 8},          {{15, 17, 3}, 64},    {{64}, 72},     {{576, 192, 192}, 576},
      {{257, 127}, 200}, {{130, 1, 65}, 1000}, {{40000}, 128}, {{300}, 4104},
      {{576}, 1536},     {{1536}, 8960},       {{2048}, 72},   {{2399}, 576},
      {{2400}, 72},      {{2300, 99, 1}, 576}, {{2560}, 1536},
  };
  return all;
}
constexpr std::int64_t kTokens[] = {1,  2,  7,  8,  9,   15,  16,  17,  24,
                                    33, 63, 64, 65, 100, 127, 128, 129, 257};

class GemmOnGpu : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override { HEADRACE_NEEDS_GPU(80); }
};

// Float sums of normal numbers, each k steps of 2^-23 at most, and the rounding of out.
void expect_close(const Weights& weights, DType dtype, std::int64_t columns, std::int64_t tokens,
                  const Weights::Options& options) {
  const auto got = weights.run(tokens, options);
  const std::int64_t rows = weights.num_rows();
  const double rounding =
      options.out_dtype == DType::f32 ? 0x1p-22 : (dtype == DType::bf16 ? 0x1p-8 : 0x1p-11);
  // cuBLASLt may round the sum before it adds out, of up to 3, and the result again.
  const bool is_twice = options.library != nullptr;
  for (std::int64_t i = 0; i < tokens * rows; i += std::max<std::int64_t>(1, tokens * rows / 997)) {
    const double want = weights.expected(i / rows, i % rows, options);
    ASSERT_NEAR(load_as_double(options.out_dtype, got.data(), i), want,
                static_cast<double>(columns) * 0x1p-21 +
                    rounding * (is_twice ? 2 * std::abs(want) + 4 : std::abs(want) + 1))
        << columns << " columns, " << tokens << " tokens, element " << i;
  }
  for (std::int64_t i = tokens * rows; i < (tokens + 1) * rows; ++i)
    ASSERT_EQ(load_as_double(options.out_dtype, got.data(), i),
              Weights::old_value(static_cast<std::size_t>(i)))
        << "written after the last token";
}

TEST_P(GemmOnGpu, IsThatOfTheDefinition) {
  for (const Shape& shape : all_shapes()) {
    const Weights weights(GetParam(), shape);
    for (const std::int64_t tokens : {1, 8, 16, 40, 130})
      for (const DType out_dtype : {GetParam(), DType::f32})
        for (const bool has_bias : {false, true})
          for (const bool adds : {false, true})
            expect_close(weights, GetParam(), shape.columns, tokens,
                         {.has_bias = has_bias, .adds = adds, .out_dtype = out_dtype});
  }
}

// Twice, as the second call finds its plan; results of stacked matrices that begin anywhere.
TEST_P(GemmOnGpu, ByCublasLtItIsThatOfTheDefinition) {
  const auto library = cuda::make_cublaslt(0);
  if (!library.ok()) GTEST_SKIP() << library.failure().message;
  for (const Shape& shape :
       {Shape{{576, 192, 192}, 576}, {{257, 127}, 200}, {{40000}, 128}, {{300}, 4104}}) {
    const Weights weights(GetParam(), shape);
    for (const std::int64_t tokens : {129, 257, 129})
      for (const DType out_dtype : {GetParam(), DType::f32})
        for (const bool adds : {false, true})
          expect_close(weights, GetParam(), shape.columns, tokens,
                       {.adds = adds, .out_dtype = out_dtype, .library = library.value().get()});
  }
}

// Of a whole product, of any of its tokens alone or beside others, of the portable kernel.
void expect_equal_bits(const Weights& weights, const Weights::Options& options) {
  const std::size_t row_bytes = static_cast<std::size_t>(weights.out_rows(options)) *
                                (options.out_dtype == DType::f32 ? 4 : 2);
  const auto whole = weights.run(Weights::kMaxTokens, options);
  // What is added to depends on the token's place in out, so only the first tokens compare then.
  for (const std::int64_t tokens : kTokens)
    for (const std::int64_t first : {std::int64_t{0}, Weights::kMaxTokens - tokens}) {
      if (options.adds && first != 0) continue;
      Weights::Options part = options;
      part.first_token = first;
      const auto got = weights.run(tokens, part);
      ASSERT_TRUE(std::equal(
          got.begin(),
          got.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(tokens) * row_bytes),
          whole.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first) * row_bytes)))
          << tokens << " tokens from " << first;
    }
  if (!has_gpu(90)) return;
  Weights::Options portable = options;
  portable.sm = 80;
  EXPECT_EQ(weights.run(Weights::kMaxTokens, portable), whole) << "the portable kernel";
}

TEST_P(GemmOnGpu, ATokensBitsDependOnNothingElse) {
  for (const Shape& shape : all_shapes()) {
    SCOPED_TRACE(std::to_string(shape.columns) + " columns");
    const Weights weights(GetParam(), shape);
    expect_equal_bits(weights, {.has_bias = true, .out_dtype = DType::f32});
    expect_equal_bits(weights, {.adds = true, .out_dtype = GetParam()});
  }
}

// Products of `num_chains` chains for which is_chosen(product, multiprocessors), one for each
// number of tokens, have the bits of the portable kernel. Few rows have large tiles only where
// plans are made for few multiprocessors.
template <class IsChosen>
void expect_bits_of_portable(DType dtype, int num_chains, std::span<const std::int64_t> all_tokens,
                             IsChosen is_chosen) {
  const auto find = [&](std::int64_t tokens) {
    for (const int num_units : {132, 40, 18, 16})
      for (std::int64_t rows = num_chains == 2 ? 111 : 2519; rows < 40000; rows += 504) {
        const Matrix matrix{nullptr, rows};
        Product product{};
        product.matrices = {&matrix, 1};
        product.columns = 200;
        product.num_tokens = tokens;
        if (cuda::num_chains(product) == num_chains && is_chosen(product, num_units))
          return std::pair(rows, num_units);
      }
    return std::pair(std::int64_t{0}, 0);
  };
  int num_found = 0;
  for (const std::int64_t tokens : all_tokens) {
    const auto [rows, num_units] = find(tokens);
    if (rows == 0) continue;
    ++num_found;
    const Weights weights(dtype, {{rows}, 200});
    for (const bool adds : {false, true}) {
      Weights::Options options{
          .has_bias = !adds, .adds = adds, .out_dtype = dtype, .num_units = num_units};
      const auto got = weights.run(tokens, options);
      options.sm = 80;
      ASSERT_EQ(got, weights.run(tokens, options)) << tokens << " tokens, " << rows << " rows";
    }
  }
  EXPECT_GT(num_found, 0);
}

TEST_P(GemmOnGpu, EveryTileShapeHasTheBitsOfThePortableKernel) {
  HEADRACE_NEEDS_GPU(90);
  constexpr std::int64_t kAllTokens[] = {129, 130, 192, 250, 255, 256, 257, 300};
  for (const cuda::gemm::TileShape& tile : cuda::gemm::kTileShapes)
    for (int num_chains = 1; num_chains <= tile.most_chains(); ++num_chains) {
      SCOPED_TRACE(std::to_string(tile.rows) + (tile.is_ping_pong ? " in turns, " : " together, ") +
                   std::to_string(num_chains) + " chains");
      expect_bits_of_portable(GetParam(), num_chains, kAllTokens,
                              [&](const Product& product, int num_units) {
                                return cuda::gemm::choose_tile_shape(product, num_units) == tile;
                              });
    }
}

TEST_P(GemmOnGpu, EveryTileOfFewTokensHasTheBitsOfThePortableKernel) {
  HEADRACE_NEEDS_GPU(90);
  constexpr std::int64_t kAllTokens[] = {17, 40, 64, 65, 128};
  for (const int tile_rows : cuda::gemm::kWideRows)
    for (const int num_chains : {1, 2}) {
      SCOPED_TRACE(std::to_string(tile_rows) + " rows, " + std::to_string(num_chains) + " chains");
      expect_bits_of_portable(
          GetParam(), num_chains, kAllTokens, [&](const Product& product, int num_units) {
            return cuda::gemm::WidePlan::of(product, num_units).rows == tile_rows;
          });
    }
}

// Products of 2^-160 are 0 as floats. Kernels differ in the steps of zeros behind the last column,
// which add 0 to sums that may be -0.
TEST_P(GemmOnGpu, TinySumsOfTwoChainsHaveNoSign) {
  if (GetParam() != DType::bf16) GTEST_SKIP() << "f16 has no such numbers";
  for (const std::int64_t columns : {8, 72, 136}) {
    const Weights weights(DType::bf16, {{300}, columns}, 0x1p-80);
    const Weights::Options options{.out_dtype = DType::f32};
    expect_equal_bits(weights, options);
    const auto got = weights.run(Weights::kMaxTokens, options);
    for (std::int64_t i = 0; i < Weights::kMaxTokens * weights.num_rows(); ++i) {
      const double sum = load_as_double(DType::f32, got.data(), i);
      ASSERT_FALSE(sum == 0 && std::signbit(sum)) << columns << " columns, element " << i;
    }
  }
}

// Of a product of gate and up with SwiGLU in its epilogue. Rows around tiles, and of no whole
// groups of 8.
TEST_P(GemmOnGpu, SwiGluIsThatOfTheProductAndItsBitsDependOnNothingElse) {
  for (const Shape& shape :
       {Shape{{1, 1}, 8}, Shape{{24, 24}, 64}, Shape{{61, 61}, 72}, Shape{{576, 576}, 576},
        Shape{{1544, 1544}, 200}, Shape{{15000, 15000}, 64}, Shape{{1199, 1199}, 1032},
        Shape{{1200, 1200}, 1032}}) {
    SCOPED_TRACE(std::to_string(shape.rows[0]) + " rows");
    const Weights weights(GetParam(), shape);
    const std::int64_t half = shape.rows[0];
    for (const bool has_bias : {false, true})
      for (const DType out_dtype : {DType::f32, GetParam()}) {
        const Weights::Options fused{
            .has_bias = has_bias, .out_dtype = out_dtype, .has_swiglu = true};
        expect_equal_bits(weights, fused);
        Weights::Options plain{.has_bias = has_bias, .out_dtype = DType::f32};
        for (const std::int64_t tokens : {1, 9, 33, 130}) {
          const auto got = weights.run(tokens, fused), parts = weights.run(tokens, plain);
          for (std::int64_t i = 0; i < tokens * half; i += std::max<std::int64_t>(1, half / 97)) {
            const std::int64_t at = i / half * 2 * half + i % half;
            const double gate = load_as_double(DType::f32, parts.data(), at),
                         up = load_as_double(DType::f32, parts.data(), at + half);
            const double want = gate / (1 + std::exp(-gate)) * up;
            const double rounding = out_dtype == DType::f32    ? 0x1p-20
                                    : out_dtype == DType::bf16 ? 0x1p-8
                                                               : 0x1p-10;
            ASSERT_NEAR(load_as_double(out_dtype, got.data(), i), want,
                        rounding * (std::abs(want) + 0x1p-10))
                << tokens << " tokens, element " << i;
          }
          for (std::int64_t i = tokens * half; i < (tokens + 1) * half; ++i)
            ASSERT_EQ(load_as_double(out_dtype, got.data(), i),
                      Weights::old_value(static_cast<std::size_t>(i)))
                << "written after the last token";
        }
      }
  }
}

// Columns around stages and vectors of a norm, up to the most; a product that has no norm refuses.
TEST(GemmOnGpuNorm, HasTheBitsOfANormBeforeTheProduct) {
  HEADRACE_NEEDS_GPU(90);
  using Norm = Weights::Options::Norm;
  for (const Shape& shape :
       {Shape{{576, 192, 192}, 576}, Shape{{1}, 8}, Shape{{257, 127}, 200}, Shape{{64, 64}, 1032},
        Shape{{300}, 2056}, Shape{{70, 70}, 4096}, Shape{{40000}, 128}, Shape{{15000, 15000}, 64},
        Shape{{2048}, 1536}, Shape{{1536, 256, 256}, 1536}, Shape{{2400}, 1536}}) {
    const Weights weights(DType::bf16, shape);
    const bool is_pair = shape.rows.size() == 2 && shape.rows[0] == shape.rows[1];
    std::int64_t num_compared = 0;
    for (const std::int64_t tokens : {1, 2, 3, 5, 7, 8}) {
      if (!cuda::takes_norm(90, tokens, shape.columns)) continue;
      for (const DType out_dtype : {DType::bf16, DType::f32})
        for (const bool has_bias : {false, true}) {
          Weights::Options options{.has_bias = has_bias,
                                   .adds = !is_pair && has_bias,
                                   .out_dtype = out_dtype,
                                   .first_token = 3 * tokens,
                                   .has_swiglu = is_pair,
                                   .norm = Norm::before};
          const auto before = weights.run(tokens, options);
          options.norm = Norm::within;
          ASSERT_EQ(weights.run(tokens, options), before)
              << shape.columns << " columns, " << tokens << " tokens";
          ++num_compared;
        }
    }
    EXPECT_GT(num_compared, 0) << shape.columns;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GemmOnGpu, ::testing::Values(DType::bf16, DType::f16),
                         [](const auto& test) { return dtype_name(test.param); });

TEST(GemmOnGpuArguments, AreRefused) {
  HEADRACE_NEEDS_GPU(80);
  const OnDevice<std::uint16_t> memory(std::vector<std::uint16_t>(4096));
  const Matrix matrix{memory.data(), 16};
  const Product good{.dtype = DType::bf16,
                     .matrices = {&matrix, 1},
                     .columns = 64,
                     .num_tokens = 1,
                     .x = memory.data() + 2048,
                     .x_stride = 64,
                     .bias = nullptr,
                     .out = memory.data() + 3072,
                     .out_dtype = DType::bf16,
                     .out_stride = 16,
                     .adds_to_out = false};
  const DeviceInfo device = cuda::device_info(0).value();
  EXPECT_FALSE(cuda::multiply(good, device, nullptr).has_value());
  const Matrix misaligned{memory.data() + 1, 16}, none{memory.data(), 0};
  const Matrix four[4] = {matrix, matrix, matrix, matrix};
  const OnDevice<float> norm(std::vector<float>(128));
  std::vector<Product> bad(13, good);
  bad[0].dtype = DType::f32;
  bad[1].out_dtype = DType::f16;
  bad[2].columns = 60;
  bad[3].x_stride = 68;
  bad[4].x_stride = 56;
  bad[5].x = memory.data() + 2049;
  bad[6].matrices = {&misaligned, 1};
  bad[7].matrices = {&none, 1};
  bad[8].matrices = four;
  bad[9].has_swiglu = true;  // of one matrix
  for (const int i : {10, 11, 12}) bad[static_cast<std::size_t>(i)].norm = {norm.data(), 1e-5f};
  bad[10].num_tokens = 9;
  bad[11].norm.weight = norm.data() + 1;
  bad[12].dtype = bad[12].out_dtype = DType::f16;
  for (std::size_t i = 0; i < bad.size(); ++i) {
    const Status failed = cuda::multiply(bad[i], device, nullptr);
    ASSERT_TRUE(failed.has_value()) << i;
    EXPECT_EQ(failed->code, ErrorCode::unsupported) << failed->message;
  }
}

}  // namespace
}  // namespace headrace::testing
