// Softmax of every instruction set of this machine, over dtypes, axes, layouts and lengths, against
// double; and calls of the operator.
#include "ops/softmax.h"

#include <gtest/gtest.h>

#include <string>

#include "backends/cpu/softmax/softmax.h"
#include "ops/softmax_test_tensor.h"
#include "tests/support/instruction_sets.h"
#include "tests/support/random.h"

namespace headrace {
namespace {

using testing::Doubles;
using testing::Layout;
using testing::Shape;
using testing::Tensor;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr DType kDtypes[] = {DType::f32, DType::f16, DType::bf16};
constexpr std::int64_t kLengths[] = {0, 1, 2, 7, 31, 32, 33, 255, 1000, 4096, 4097, 65537};
constexpr headrace_softmax_algorithm kAlgorithms[] = {HEADRACE_SOFTMAX_SAFE,
                                                      HEADRACE_SOFTMAX_ONLINE};

const std::vector<const cpu::SoftmaxOps*> kRunnable = testing::runnable(cpu::all_softmax_ops());

// Values that the dtype holds exactly.
Doubles random_values(DType dtype, std::int64_t count, std::uint64_t seed, double size) {
  testing::Random random(seed);
  Doubles values(static_cast<std::size_t>(count));
  std::uint64_t element = 0;
  for (double& value : values) {
    store_from_double(dtype, &element, 0, random.normal() * size);
    value = load_as_double(dtype, &element, 0);
  }
  return values;
}

Shape shape_of(std::int64_t length, std::size_t axis) {
  Shape shape = length > 5000 ? Shape{2, 1, 1} : Shape{3, 2, 5};
  shape[axis] = length;
  return shape;
}

Shape without(Shape shape, std::size_t axis) {
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(axis));
  return shape;
}

headrace_softmax_options options_of(std::size_t axis, std::int32_t algorithm, double scale) {
  headrace_softmax_options options = default_softmax_options();
  options.axis = static_cast<std::int32_t>(axis);
  options.algorithm = algorithm;
  options.scale = scale;
  return options;
}

struct Setting {
  DType dtype;
  Shape shape;
  std::size_t axis;
  double scale = 1;
};

struct Outputs {
  Doubles y, lse;
};

Outputs forward(const cpu::SoftmaxOps& ops, const Setting& p, const Doubles& x, Layout x_layout,
                Layout y_layout, std::int32_t algorithm) {
  const Tensor tensor_x(p.dtype, p.shape, x_layout, x);
  const Tensor tensor_y(p.dtype, p.shape, y_layout);
  const Tensor lse(DType::f32, without(p.shape, p.axis), y_layout);
  headrace_softmax_tensors t{
      .struct_size = sizeof t, .x = tensor_x.view(), .y = tensor_y.view(), .lse = lse.view()};
  Result<SoftmaxForwardArgs> args = validate_softmax(t, options_of(p.axis, algorithm, p.scale));
  EXPECT_TRUE(args.ok()) << args.failure().message;
  if (!args.ok()) return {};
  ops.forward(args.value(), {0, args.value().rows.num_rows});
  EXPECT_TRUE(tensor_y.has_kept_gaps());
  EXPECT_TRUE(lse.has_kept_gaps());
  return {tensor_y.values(), lse.values()};
}

void expect_softmax(const Setting& p, const Doubles& x, const Outputs& result) {
  testing::for_rows(p.shape, p.axis, [&](std::size_t row, std::size_t first, std::size_t stride) {
    Doubles values(static_cast<std::size_t>(p.shape[p.axis]));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = x[first + i * stride];
    const auto expected = testing::expected_row(values, static_cast<float>(p.scale), p.dtype);
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_LE(std::abs(result.y[first + i * stride] - expected.y[i]), expected.tolerance[i])
          << "row " << row << ", element " << i << ": " << result.y[first + i * stride] << ", not "
          << expected.y[i];
    if (values.empty()) {
      ASSERT_EQ(result.lse[row], -kInf);
    } else {
      ASSERT_LE(std::abs(result.lse[row] - expected.lse), expected.lse_tolerance) << "row " << row;
    }
  });
}

void expect_same(const Doubles& a, const Doubles& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    ASSERT_TRUE(testing::is_same(a[i], b[i])) << "element " << i << ": " << a[i] << ", " << b[i];
}

template <class Body>
void for_problems(Body body) {
  for (const DType dtype : kDtypes)
    for (const std::int64_t length : kLengths)
      for (std::size_t axis = 0; axis < 3; ++axis) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + ", length " + std::to_string(length) +
                     ", axis " + std::to_string(axis));
        body(Setting{dtype, shape_of(length, axis), axis, axis == 1 ? -0.37 : 1.0});
        if (::testing::Test::HasFatalFailure()) return;
      }
}

TEST(Softmax, EqualsDoubleWithTheSameBitsFromEveryInstructionSetAndLayout) {
  for_problems([](const Setting& p) {
    const Doubles x = random_values(p.dtype, testing::count_of(p.shape), 7, 4);
    for (const auto algorithm : kAlgorithms) {
      const Outputs result = forward(*cpu::all_softmax_ops().back(), p, x, Layout::contiguous,
                                     Layout::contiguous, algorithm);
      ASSERT_NO_FATAL_FAILURE(expect_softmax(p, x, result));
      for (const cpu::SoftmaxOps* ops : kRunnable)
        for (const Layout layout : testing::kLayouts) {
          SCOPED_TRACE(ops->name);
          const Layout other = layout == Layout::gapped ? Layout::transposed : layout;
          const Outputs again = forward(*ops, p, x, layout, other, algorithm);
          ASSERT_NO_FATAL_FAILURE(expect_same(again.y, result.y));
          ASSERT_NO_FATAL_FAILURE(expect_same(again.lse, result.lse));
        }
    }
  });
}

TEST(Softmax, TakesHugeValuesWithoutOverflow) {
  for (const DType dtype : kDtypes) {
    const double largest = dtype == DType::f16 ? 65504 : 0x1.fep127;
    for (const auto algorithm : kAlgorithms)
      for (const cpu::SoftmaxOps* ops : kRunnable) {
        const Setting p{dtype, {1, 300}, 1};
        Doubles x = random_values(dtype, 300, 3, 1);
        x[3] = -largest;
        ASSERT_NO_FATAL_FAILURE(expect_softmax(
            p, x, forward(*ops, p, x, Layout::contiguous, Layout::contiguous, algorithm)));
        x[290] = x[17] = largest;  // two of them share the row
        const Outputs result =
            forward(*ops, p, x, Layout::contiguous, Layout::contiguous, algorithm);
        EXPECT_EQ(result.y[17], 0.5);
        EXPECT_EQ(result.y[290], 0.5);
        EXPECT_EQ(result.y[0], 0);
        EXPECT_NEAR(result.lse[0], largest + std::log(2.0), largest * 0x1p-23);
      }
  }
}

TEST(Softmax, RowsWithInfinityAndNanFollowTheContract) {
  for (const cpu::SoftmaxOps* ops : kRunnable)
    for (const auto algorithm : kAlgorithms)
      for (const std::int64_t length : {1, 5, 40, 300, 5000}) {
        const Setting p{DType::f32, {5, length}, 1};
        const auto n = static_cast<std::size_t>(length);
        Doubles x = random_values(DType::f32, 5 * length, 5, 2);
        const std::size_t at = n - 1;
        std::fill_n(x.begin(), n, -kInf);                        // row 0: nothing but -inf
        x[n + at] = kNan;                                        // row 1
        x[2 * n + at] = kInf;                                    // row 2
        std::fill_n(x.begin() + 3 * length, length - 1, -kInf);  // row 3: the last one counts
        for (const Layout layout : {Layout::contiguous, Layout::transposed}) {
          const Outputs r = forward(*ops, p, x, layout, layout, algorithm);
          for (std::size_t i = 0; i < n; ++i) {
            EXPECT_EQ(r.y[i], 0);
            EXPECT_TRUE(std::isnan(r.y[n + i]));
            EXPECT_TRUE(std::isnan(r.y[2 * n + i]));
            EXPECT_EQ(r.y[3 * n + i], i == at ? 1 : 0);
            EXPECT_FALSE(std::isnan(r.y[4 * n + i]));
          }
          EXPECT_EQ(r.lse[0], -kInf);
          EXPECT_TRUE(std::isnan(r.lse[1]));
          EXPECT_TRUE(std::isnan(r.lse[2]));
          EXPECT_EQ(r.lse[3], x[4 * n - 1]);
        }
      }
}

TEST(Softmax, AscendingRowsDoNotLosePrecisionOnline) {
  Doubles x(65537);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) * 0x1p-12f;
  const Setting p{DType::f32, {65537}, 0};
  expect_softmax(p, x,
                 forward(*kRunnable.front(), p, x, Layout::contiguous, Layout::contiguous,
                         HEADRACE_SOFTMAX_ONLINE));
}

// ---- backward ----

Doubles backward(const cpu::SoftmaxOps& ops, const Setting& p, const Doubles& y, const Doubles& dy,
                 Layout y_layout, Layout dx_layout) {
  const Tensor tensor_y(p.dtype, p.shape, y_layout, y), tensor_dy(p.dtype, p.shape, y_layout, dy);
  const Tensor dx(p.dtype, p.shape, dx_layout);
  headrace_softmax_backward_tensors t{
      .struct_size = sizeof t, .y = tensor_y.view(), .dy = tensor_dy.view(), .dx = dx.view()};
  Result<SoftmaxBackwardArgs> args =
      validate_softmax_backward(t, options_of(p.axis, HEADRACE_SOFTMAX_AUTO, p.scale));
  EXPECT_TRUE(args.ok()) << args.failure().message;
  if (!args.ok()) return {};
  ops.backward(args.value(), {0, args.value().rows.num_rows});
  EXPECT_TRUE(dx.has_kept_gaps());
  return dx.values();
}

// The sum loses 14 roundings of its terms, the difference, the products and the result one each.
void expect_gradient(const Setting& p, const Doubles& y, const Doubles& dy, const Doubles& dx) {
  constexpr double kEps = 0x1p-24;
  const double scale = static_cast<float>(p.scale);
  testing::for_rows(p.shape, p.axis, [&](std::size_t row, std::size_t first, std::size_t stride) {
    double sum = 0, size = 0;
    const auto end = first + static_cast<std::size_t>(p.shape[p.axis]) * stride;
    for (std::size_t i = first; i < end; i += stride) {
      sum += y[i] * dy[i];
      size += std::abs(y[i] * dy[i]);
    }
    for (std::size_t i = first; i < end; i += stride) {
      const double expected = scale * y[i] * (dy[i] - sum);
      const double error =
          std::abs(scale) * y[i] * kEps * (15 * size + 4 * (std::abs(dy[i]) + std::abs(sum))) +
          0x1p-140;
      ASSERT_LE(std::abs(dx[i] - expected),
                error + testing::rounding_of(p.dtype, std::abs(expected) + error))
          << "row " << row << ", element " << (i - first) / stride;
    }
  });
}

TEST(SoftmaxBackward, EqualsDoubleWithTheSameBitsFromEveryInstructionSetAndLayout) {
  for_problems([](const Setting& p) {
    const std::int64_t count = testing::count_of(p.shape);
    const cpu::SoftmaxOps& scalar = *cpu::all_softmax_ops().back();
    const Doubles y = forward(scalar, p, random_values(p.dtype, count, 1, 2), Layout::contiguous,
                              Layout::contiguous, HEADRACE_SOFTMAX_SAFE)
                          .y;
    const Doubles dy = random_values(p.dtype, count, 2, 3);
    const Doubles dx = backward(scalar, p, y, dy, Layout::contiguous, Layout::contiguous);
    ASSERT_NO_FATAL_FAILURE(expect_gradient(p, y, dy, dx));
    for (const cpu::SoftmaxOps* ops : kRunnable)
      for (const Layout layout : testing::kLayouts) {
        SCOPED_TRACE(ops->name);
        const Layout other = layout == Layout::transposed ? Layout::gapped : layout;
        ASSERT_NO_FATAL_FAILURE(expect_same(backward(*ops, p, y, dy, layout, other), dx));
      }
  });
}

TEST(SoftmaxBackward, IsTheDerivativeOfTheForward) {
  const Setting p{DType::f32, {3, 20}, 1, 0.5};
  const cpu::SoftmaxOps& ops = *kRunnable.front();
  const Doubles x = random_values(DType::f32, 60, 1, 1), dy = random_values(DType::f32, 60, 2, 1);
  const auto loss = [&](const Doubles& at) {
    double sum = 0;
    testing::for_rows(p.shape, p.axis, [&](std::size_t, std::size_t first, std::size_t stride) {
      Doubles row(20), s(20);
      for (std::size_t i = 0; i < 20; ++i) s[i] = std::exp(p.scale * at[first + i * stride]);
      double total = 0;
      for (const double e : s) total += e;
      for (std::size_t i = 0; i < 20; ++i) sum += s[i] / total * dy[first + i * stride];
    });
    return sum;
  };
  const Doubles y =
      forward(ops, p, x, Layout::contiguous, Layout::contiguous, HEADRACE_SOFTMAX_AUTO).y;
  const Doubles dx = backward(ops, p, y, dy, Layout::contiguous, Layout::contiguous);
  for (std::size_t i = 0; i < x.size(); ++i) {
    constexpr double kStep = 0x1p-13;
    Doubles up = x, down = x;
    up[i] += kStep;
    down[i] -= kStep;
    // The third derivative is below 1, so the difference quotient is off by kStep^2 at most.
    EXPECT_NEAR(dx[i], (loss(up) - loss(down)) / (2 * kStep), 1e-6);
  }
}

TEST(SoftmaxBackward, OfAnEmptyRowIsZero) {
  const Setting p{DType::f32, {1, 40}, 1};
  const Doubles zeros(40), dy = random_values(DType::f32, 40, 2, 3);
  expect_same(backward(*kRunnable.front(), p, zeros, dy, Layout::contiguous, Layout::contiguous),
              zeros);
}

// ---- calls ----

TEST(Softmax, BitsDoNotDependOnTheThreads) {
  for (const Shape& shape : {Shape{517, 67}, Shape{3, 70000}, Shape{70, 100, 3}}) {
    const DType dtype = DType::bf16;
    const Doubles x = random_values(dtype, testing::count_of(shape), 9, 3);
    for (const std::size_t axis : {std::size_t{0}, shape.size() - 1}) {
      Doubles first;
      for (const int threads : {1, 2, 3, 7}) {
        const Tensor tensor_x(dtype, shape, Layout::contiguous, x);
        const Tensor y(dtype, shape, Layout::contiguous);
        const headrace_softmax_tensors t{
            .struct_size = sizeof t, .x = tensor_x.view(), .y = y.view(), .lse = TensorView()};
        DeviceInfo device = cpu_info().value();
        device.num_units = threads;
        ASSERT_FALSE(
            cpu::softmax_forward(validate_softmax(t, options_of(axis, 0, 1)).value(), device));
        if (threads == 1) first = y.values();
        ASSERT_NO_FATAL_FAILURE(expect_same(y.values(), first));
      }
    }
  }
}

TEST(Softmax, WorksInPlaceForwardAndBackward) {
  for (const Layout layout : testing::kLayouts) {
    const Shape shape{3, 300, 5};
    const Doubles x = random_values(DType::f32, testing::count_of(shape), 1, 2);
    const Doubles dy = random_values(DType::f32, testing::count_of(shape), 2, 2);
    const Setting p{DType::f32, shape, 1, 2.0};
    const cpu::SoftmaxOps& ops = *kRunnable.front();
    const Doubles y = forward(ops, p, x, layout, layout, 0).y;
    const Tensor both(DType::f32, shape, layout, x);
    headrace_softmax_tensors t{
        .struct_size = sizeof t, .x = both.view(), .y = both.view(), .lse = TensorView()};
    ASSERT_FALSE(softmax_forward(t, options_of(1, 0, 2.0), nullptr));
    expect_same(both.values(), y);
    const Doubles dx = backward(ops, p, y, dy, layout, layout);
    const Tensor gradient(DType::f32, shape, layout, dy);
    headrace_softmax_backward_tensors b{
        .struct_size = sizeof b, .y = both.view(), .dy = gradient.view(), .dx = gradient.view()};
    ASSERT_FALSE(softmax_backward(b, options_of(1, 0, 2.0), nullptr));
    expect_same(gradient.values(), dx);
  }
}

TEST(Softmax, ReadsBroadcastInputs) {
  const Doubles x = random_values(DType::f32, 12, 4, 2);
  const Tensor one(DType::f32, {1, 12}, Layout::contiguous, x);
  TensorView broadcast = one.view();
  broadcast.shape[0] = 3;
  broadcast.strides[0] = 0;
  const Tensor y(DType::f32, {3, 12}, Layout::contiguous);
  const headrace_softmax_tensors t{
      .struct_size = sizeof t, .x = broadcast, .y = y.view(), .lse = TensorView()};
  ASSERT_FALSE(softmax_forward(t, options_of(1, 0, 1), nullptr));
  const Doubles got = y.values();
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(got[i], got[12 + i]);
    EXPECT_EQ(got[i], got[24 + i]);
  }
}

TEST(Softmax, TakesEveryRankAndEmptyTensors) {
  for (const Shape& shape :
       {Shape{9}, Shape{2, 3, 1, 4, 2, 5}, Shape{0, 4}, Shape{4, 0}, Shape{0}}) {
    const Doubles x = random_values(DType::f32, testing::count_of(shape), 4, 2);
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      const Setting p{DType::f32, shape, axis};
      expect_softmax(p, x,
                     forward(*kRunnable.front(), p, x, Layout::contiguous, Layout::contiguous, 0));
    }
  }
}

}  // namespace
}  // namespace headrace
