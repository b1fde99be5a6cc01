// Tensors of any layout for the tests of operators, and softmax in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/dtype.h"
#include "headrace/tensor.hpp"

namespace headrace::testing {

using Shape = std::vector<std::int64_t>;
using Doubles = std::vector<double>;

// Memory layouts: order of the axes, gaps between elements, negative strides.
enum class Layout { contiguous, transposed, gapped, backwards };
inline constexpr Layout kLayouts[] = {Layout::contiguous, Layout::transposed, Layout::gapped,
                                      Layout::backwards};

inline std::int64_t count_of(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

// Calls body(i, offset) for every element in row-major order.
template <class Body>
void for_elements(const TensorView& view, Body body) {
  std::int64_t idx[HEADRACE_MAX_RANK] = {};
  const std::int64_t count = view.num_elements();
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t offset = 0;
    for (int a = 0; a < view.rank; ++a) offset += idx[a] * view.strides[a];
    body(i, offset);
    for (int a = view.rank - 1; a >= 0 && ++idx[a] == view.shape[a]; --a) idx[a] = 0;
  }
}

// Owns its memory; bytes between the elements have all bits set (NaN).
class Tensor {
 public:
  Tensor(DType dtype, const Shape& shape, Layout layout) {
    view_ = TensorView(nullptr, dtype, {});
    view_.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), view_.shape);
    std::int64_t stride = layout == Layout::gapped ? 3 : 1, first = 0;
    for (int i = 0; i < view_.rank; ++i) {
      const int axis = layout == Layout::transposed ? i : view_.rank - 1 - i;
      const std::int64_t reach = stride * std::max<std::int64_t>(view_.shape[axis], 1);
      view_.strides[axis] = layout == Layout::backwards ? -stride : stride;
      if (layout == Layout::backwards && view_.shape[axis] > 0)
        first += (view_.shape[axis] - 1) * stride;
      stride = reach + (layout == Layout::gapped ? 2 : 0);
    }
    bytes_.assign(static_cast<std::size_t>(stride + 16) * dtype_bytes(dtype), 0xFF);
    view_.data = bytes_.data() + static_cast<std::size_t>(first) * dtype_bytes(dtype);
  }
  Tensor(DType dtype, const Shape& shape, Layout layout, const Doubles& values)
      : Tensor(dtype, shape, layout) {
    set(values);
  }
  // The axes in memory order, outermost first, with `gap` elements after each but the last.
  Tensor(DType dtype, const Shape& shape, const std::vector<int>& order, std::int64_t gap) {
    view_ = TensorView(nullptr, dtype, {});
    view_.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), view_.shape);
    std::int64_t stride = 1;
    for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
      view_.strides[*axis] = stride;
      stride = stride * std::max<std::int64_t>(view_.shape[*axis], 1) + gap;
    }
    bytes_.assign(static_cast<std::size_t>(stride) * dtype_bytes(dtype), 0xFF);
    view_.data = bytes_.data();
  }
  Tensor(const Tensor&) = delete;

  const TensorView& view() const { return view_; }
  // The same view of a copy of the memory.
  TensorView view_at(void* copy) const {
    TensorView view = view_;
    const auto offset = static_cast<unsigned char*>(view_.data) - bytes_.data();
    view.data = static_cast<unsigned char*>(copy) + offset;
    return view;
  }
  std::vector<unsigned char>& bytes() { return bytes_; }
  void set(const Doubles& values) {
    for_elements(view_, [&](std::int64_t i, std::int64_t offset) {
      store_from_double(view_.type(), view_.data, offset, values[static_cast<std::size_t>(i)]);
    });
  }
  Doubles values() const {
    Doubles all(static_cast<std::size_t>(view_.num_elements()));
    for_elements(view_, [&](std::int64_t i, std::int64_t offset) {
      all[static_cast<std::size_t>(i)] = load_as_double(view_.type(), view_.data, offset);
    });
    return all;
  }
  // Whether the bytes between and after the elements are unchanged.
  bool has_kept_gaps() const {
    std::vector<unsigned char> copy = bytes_;
    const std::size_t size = dtype_bytes(view_.type());
    const auto base = static_cast<const unsigned char*>(view_.data) - bytes_.data();
    for_elements(view_, [&](std::int64_t, std::int64_t offset) {
      std::memset(copy.data() + base + offset * static_cast<std::int64_t>(size), 0xFF, size);
    });
    return std::all_of(copy.begin(), copy.end(), [](unsigned char b) { return b == 0xFF; });
  }

 private:
  std::vector<unsigned char> bytes_;
  TensorView view_;
};

// The rows of a row-major shape along an axis: body(row, first, stride), rows in row-major order of
// the other axes.
template <class Body>
void for_rows(const Shape& shape, std::size_t axis, Body body) {
  std::int64_t inner = 1, outer = 1;
  for (std::size_t i = 0; i < axis; ++i) outer *= shape[i];
  for (std::size_t i = axis + 1; i < shape.size(); ++i) inner *= shape[i];
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t i = 0; i < inner; ++i)
      body(static_cast<std::size_t>(o * inner + i),
           static_cast<std::size_t>(o * shape[axis] * inner + i), static_cast<std::size_t>(inner));
}

// Half the distance of neighbouring numbers around `value`.
inline double rounding_of(DType dtype, double value) {
  const double size = std::abs(value);
  if (dtype == DType::f16) return std::max(size * 0x1p-11, 0x1p-25);
  if (dtype == DType::bf16) return std::max(size * 0x1p-8, 0x1p-134);
  return std::max(size * 0x1p-24, 0x1p-150);
}

// Float roundings of one term (without the difference to the maximum) and of the sum.
struct Roundings {
  double of_term = 5;  // the exponential two, the quotient two, one to spare
  double of_sum = 17;  // 13 of a block, the exponential two, the conversion one
};

// The expected row and its error bound in float. An exponent loses half an ulp of its distance to
// the maximum; terms below 2^-126 may be flushed to zero.
struct ExpectedRow {
  Doubles y, tolerance;
  double lse, lse_tolerance;
};
inline ExpectedRow expected_row(const Doubles& x, float scale, DType dtype,
                                const Roundings& roundings = {}) {
  constexpr double kEps = 0x1p-24;
  ExpectedRow row{Doubles(x.size()), Doubles(x.size()), 0, 0};
  Doubles s(x.size());
  double max = -std::numeric_limits<double>::infinity(), sum = 0, loss = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    s[i] = static_cast<double>(scale * static_cast<float>(x[i]));  // rounded, as the contract says
    if (s[i] > max) max = s[i];
  }
  const double reference = std::isinf(max) && max < 0 ? 0 : max;
  for (const double value : s) sum += std::exp(value - reference);
  const auto distance = [&](double value) { return std::min(std::abs(value - reference), 104.0); };
  for (const double value : s)
    if (sum != 0) loss += std::exp(value - reference) / sum * distance(value);
  const double sum_error =
      (loss + roundings.of_sum) * kEps + static_cast<double>(x.size()) * 0x1p-126;
  for (std::size_t i = 0; i < x.size(); ++i) {
    row.y[i] = sum == 0 ? 0 : std::exp(s[i] - reference) / sum;
    const double error = row.y[i] * ((distance(s[i]) + roundings.of_term) * kEps + sum_error);
    row.tolerance[i] = error + rounding_of(dtype, row.y[i] + error) + 0x1p-126;
  }
  row.lse = max + std::log(sum);
  row.lse_tolerance = sum_error + std::abs(row.lse) * kEps;
  return row;
}

inline bool is_same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

}  // namespace headrace::testing
