// Softmax on a GPU over dtypes, axes, layouts and lengths, against double.
#include "backends/cuda/softmax/softmax.h"

#include <cuda_runtime_api.h>

#include <string>

#include "cuda/gpu.h"
#include "ops/softmax.h"
#include "ops/softmax_test_tensor.h"
#include "support/random.h"

namespace headrace::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr DType kDtypes[] = {DType::f32, DType::f16, DType::bf16};
// Around the limits of every path: 256, 512, 1024, 16384, 32768.
constexpr std::int64_t kLengths[] = {0,    1,     2,     7,     31,    32,   33,   255,
                                     256,  257,   512,   520,   1000,  1024, 1032, 4096,
                                     4097, 16384, 16392, 32768, 32776, 65537};

// A tensor and its device copy, copied back on destruction.
class Copied {
 public:
  explicit Copied(Tensor& tensor) : tensor_(tensor), copy_(tensor.bytes()) {}
  Copied(const Copied&) = delete;
  ~Copied() {
    const std::vector<unsigned char> bytes = copy_.read();
    std::copy(bytes.begin(), bytes.end(), tensor_.bytes().begin());  // views stay valid
  }
  TensorView view() const {
    TensorView view = tensor_.view_at(copy_.data());
    view.device_type = HEADRACE_CUDA;
    return view;
  }

 private:
  Tensor& tensor_;
  OnDevice<unsigned char> copy_;
};

Doubles random_values(DType dtype, std::int64_t count, std::uint64_t seed, double size) {
  Random random(seed);
  Doubles values(static_cast<std::size_t>(count));
  std::uint64_t element = 0;
  for (double& value : values) {
    store_from_double(dtype, &element, 0, random.normal() * size);
    value = load_as_double(dtype, &element, 0);
  }
  return values;
}

struct Setting {
  DType dtype;
  Shape shape;
  std::size_t axis;
  double scale = 1;
  Layout layout = Layout::contiguous;
  std::int32_t algorithm = HEADRACE_SOFTMAX_AUTO;
  std::int64_t length() const { return shape[axis]; }
  headrace_softmax_options options() const {
    headrace_softmax_options options = default_softmax_options();
    options.axis = static_cast<std::int32_t>(axis);
    options.scale = scale;
    options.algorithm = algorithm;
    return options;
  }
};

struct Outputs {
  Doubles y, lse;
};

Outputs forward(const Setting& p, const Doubles& x) {
  Shape rows = p.shape;
  rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(p.axis));
  Tensor tensor_x(p.dtype, p.shape, p.layout, x), y(p.dtype, p.shape, p.layout);
  Tensor lse(DType::f32, rows, p.layout);
  {
    const Copied on_x(tensor_x), on_y(y), on_lse(lse);
    const headrace_softmax_tensors t{
        .struct_size = sizeof t, .x = on_x.view(), .y = on_y.view(), .lse = on_lse.view()};
    const Status bad = softmax_forward(t, p.options(), nullptr);
    EXPECT_FALSE(bad) << bad->message;
    HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  }
  EXPECT_TRUE(y.has_kept_gaps());
  EXPECT_TRUE(lse.has_kept_gaps());
  return {y.values(), lse.values()};
}

Doubles backward(const Setting& p, const Doubles& y, const Doubles& dy) {
  Tensor tensor_y(p.dtype, p.shape, p.layout, y), tensor_dy(p.dtype, p.shape, p.layout, dy);
  Tensor dx(p.dtype, p.shape, p.layout);
  {
    const Copied on_y(tensor_y), on_dy(tensor_dy), on_dx(dx);
    const headrace_softmax_backward_tensors t{
        .struct_size = sizeof t, .y = on_y.view(), .dy = on_dy.view(), .dx = on_dx.view()};
    const Status bad = softmax_backward(t, p.options(), nullptr);
    EXPECT_FALSE(bad) << bad->message;
    HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  }
  EXPECT_TRUE(dx.has_kept_gaps());
  return dx.values();
}

// A thread sums at most a sixteenth of a row; then the threads' sums are reduced.
double sum_roundings(std::int64_t length) { return static_cast<double>(length) / 16 + 64; }

void expect_softmax(const Setting& p, const Doubles& x, const Outputs& result) {
  for_rows(p.shape, p.axis, [&](std::size_t row, std::size_t first, std::size_t stride) {
    Doubles values(static_cast<std::size_t>(p.length()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = x[first + i * stride];
    const ExpectedRow expected = expected_row(values, static_cast<float>(p.scale), p.dtype,
                                              {.of_term = 12, .of_sum = sum_roundings(p.length())});
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_LE(std::abs(result.y[first + i * stride] - expected.y[i]), expected.tolerance[i])
          << "row " << row << ", element " << i;
    if (values.empty()) {
      ASSERT_EQ(result.lse[row], -kInf);
    } else {
      ASSERT_LE(std::abs(result.lse[row] - expected.lse), expected.lse_tolerance) << "row " << row;
    }
  });
}

void expect_gradient(const Setting& p, const Doubles& y, const Doubles& dy, const Doubles& dx) {
  constexpr double kEps = 0x1p-24;
  const double scale = static_cast<float>(p.scale);
  for_rows(p.shape, p.axis, [&](std::size_t row, std::size_t first, std::size_t stride) {
    double sum = 0, size = 0;
    const auto end = first + static_cast<std::size_t>(p.length()) * stride;
    for (std::size_t i = first; i < end; i += stride) {
      sum += y[i] * dy[i];
      size += std::abs(y[i] * dy[i]);
    }
    for (std::size_t i = first; i < end; i += stride) {
      const double expected = scale * y[i] * (dy[i] - sum);
      const double error =
          std::abs(scale) * y[i] * kEps *
              (sum_roundings(p.length()) * size + 4 * (std::abs(dy[i]) + std::abs(sum))) +
          0x1p-140;
      ASSERT_LE(std::abs(dx[i] - expected),
                error + rounding_of(p.dtype, std::abs(expected) + error))
          << "row " << row << ", element " << (i - first) / stride;
    }
  });
}

template <class Body>
void for_settings(Body body) {
  for (const DType dtype : kDtypes)
    for (const std::int64_t length : kLengths)
      for (std::size_t axis = 0; axis < 3; ++axis)
        for (const Layout layout : kLayouts) {
          SCOPED_TRACE(std::string(dtype_name(dtype)) + ", length " + std::to_string(length) +
                       ", axis " + std::to_string(axis) + ", layout " +
                       std::to_string(static_cast<int>(layout)));
          Shape shape = length > 5000 ? Shape{2, 3, 1} : Shape{3, 2, 37};
          shape[axis] = length;
          body(Setting{dtype, shape, axis, axis == 1 ? -0.37 : 1.0, layout});
          if (::testing::Test::HasFatalFailure()) return;
        }
}

TEST(CudaSoftmax, EqualsDouble) {
  HEADRACE_NEEDS_GPU(80);
  for_settings([](Setting p) {
    const Doubles x = random_values(p.dtype, count_of(p.shape), 7, 4);
    for (const auto algorithm : {HEADRACE_SOFTMAX_SAFE, HEADRACE_SOFTMAX_ONLINE}) {
      p.algorithm = algorithm;
      ASSERT_NO_FATAL_FAILURE(expect_softmax(p, x, forward(p, x)));
    }
  });
}

TEST(CudaSoftmax, BackwardEqualsDouble) {
  HEADRACE_NEEDS_GPU(80);
  for_settings([](const Setting& p) {
    Doubles y = random_values(p.dtype, count_of(p.shape), 1, 1);
    for (double& value : y) value = std::abs(value);
    const Doubles dy = random_values(p.dtype, count_of(p.shape), 2, 3);
    ASSERT_NO_FATAL_FAILURE(expect_gradient(p, y, dy, backward(p, y, dy)));
  });
}

TEST(CudaSoftmax, RowsWithInfinityAndNanFollowTheContract) {
  HEADRACE_NEEDS_GPU(80);
  for (const auto algorithm : {HEADRACE_SOFTMAX_SAFE, HEADRACE_SOFTMAX_ONLINE})
    for (const std::int64_t length : {1, 5, 40, 300, 1000, 5000, 40000})
      for (const Layout layout : {Layout::contiguous, Layout::transposed}) {
        const Setting p{DType::f32, {5, length}, 1, 1, layout, algorithm};
        const auto n = static_cast<std::size_t>(length);
        Doubles x = random_values(DType::f32, 5 * length, 5, 2);
        std::fill_n(x.begin(), n, -kInf);
        x[2 * n - 1] = kNan;
        x[3 * n - 1] = kInf;
        std::fill_n(x.begin() + 3 * length, length - 1, -kInf);
        const Outputs r = forward(p, x);
        for (std::size_t i = 0; i < n; ++i) {
          ASSERT_EQ(r.y[i], 0);
          ASSERT_TRUE(std::isnan(r.y[n + i]));
          ASSERT_TRUE(std::isnan(r.y[2 * n + i]));
          ASSERT_EQ(r.y[3 * n + i], i == n - 1 ? 1 : 0);
          ASSERT_FALSE(std::isnan(r.y[4 * n + i]));
        }
        EXPECT_EQ(r.lse[0], -kInf);
        EXPECT_TRUE(std::isnan(r.lse[1]));
        EXPECT_TRUE(std::isnan(r.lse[2]));
        EXPECT_EQ(r.lse[3], x[4 * n - 1]);
      }
}

TEST(CudaSoftmax, TakesHugeValuesWithoutOverflow) {
  HEADRACE_NEEDS_GPU(80);
  for (const auto algorithm : {HEADRACE_SOFTMAX_SAFE, HEADRACE_SOFTMAX_ONLINE}) {
    const Setting p{DType::f32, {1, 300}, 1, 1, Layout::contiguous, algorithm};
    Doubles x = random_values(DType::f32, 300, 3, 1);
    x[3] = -0x1.fep127;
    x[17] = x[290] = 0x1.fep127;
    const Outputs r = forward(p, x);
    EXPECT_EQ(r.y[17], 0.5);
    EXPECT_EQ(r.y[290], 0.5);
    EXPECT_EQ(r.y[0], 0);
  }
}

TEST(CudaSoftmax, WorksInPlace) {
  HEADRACE_NEEDS_GPU(80);
  for (const std::int64_t length : {100, 1000, 20000, 50000}) {
    const Setting p{DType::bf16, {3, length}, 1};
    const Doubles x = random_values(p.dtype, count_of(p.shape), 3, 2);
    const Doubles y = forward(p, x).y;
    Tensor both(p.dtype, p.shape, p.layout, x);
    {
      const Copied on_both(both);
      const headrace_softmax_tensors t{
          .struct_size = sizeof t, .x = on_both.view(), .y = on_both.view(), .lse = TensorView()};
      EXPECT_FALSE(softmax_forward(t, p.options(), nullptr));
      HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
    }
    EXPECT_EQ(both.values(), y);
  }
}

TEST(CudaSoftmax, RefusesHostMemoryWithItsReason) {
  HEADRACE_NEEDS_GPU(80);
  const Tensor x(DType::f32, {2, 3}, Layout::contiguous), y(DType::f32, {2, 3}, Layout::contiguous);
  headrace_softmax_tensors t{
      .struct_size = sizeof t, .x = x.view(), .y = y.view(), .lse = TensorView()};
  t.x.device_type = t.y.device_type = HEADRACE_CUDA;
  const Status bad = softmax_forward(t, default_softmax_options(), nullptr);
  ASSERT_TRUE(bad);
  EXPECT_NE(bad->message.find("x.data="), std::string::npos) << bad->message;
}

}  // namespace
}  // namespace headrace::testing
