// View operations against enumerating every index: each element must be the one that the
// definition of the operation names.
#include "headrace/tensor.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace headrace {
namespace {

using Offsets = std::vector<std::int64_t>;

// Byte offsets from `base` of all elements, in row-major order of the view.
Offsets offsets_of(const TensorView& view, const void* base) {
  Offsets offsets;
  std::int64_t count = 1;
  for (int i = 0; i < view.rank; ++i) count *= view.shape[i];
  for (std::int64_t flat = 0; flat < count; ++flat) {
    std::int64_t rest = flat, offset = 0;
    for (int i = view.rank - 1; i >= 0; --i) {
      offset += rest % view.shape[i] * view.strides[i];
      rest /= view.shape[i];
    }
    offsets.push_back(static_cast<const char*>(view.data) - static_cast<const char*>(base) +
                      offset * static_cast<std::int64_t>(dtype_bytes(view.type())));
  }
  return offsets;
}

struct Maker {
  std::mt19937 random{11};
  std::vector<char> memory = std::vector<char>(1 << 16);

  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(n));
  }

  // A contiguous tensor, then a few random steps away from it.
  TensorView view() {
    TensorView v(memory.data() + (1 << 15), random() % 2 ? DType::f32 : DType::f16, {});
    v.rank = static_cast<int>(below(5));
    std::int64_t stride = 1;
    for (int i = v.rank - 1; i >= 0; --i) {
      v.shape[i] = below(12) == 0 ? 0 : 1 + below(4);
      v.strides[i] = below(8) == 0 ? 0 : stride * (below(4) == 0 ? 2 : 1);
      stride = std::max<std::int64_t>(1, v.shape[i]) * std::max<std::int64_t>(1, v.strides[i]);
    }
    for (int i = 0; i + 1 < v.rank; ++i) {
      if (below(4) != 0) continue;
      std::swap(v.shape[i], v.shape[i + 1]);
      std::swap(v.strides[i], v.strides[i + 1]);
    }
    return v;
  }
};

TEST(TensorView, SliceSelectsTheGivenIndices) {
  Maker make;
  for (int round = 0; round < 20000; ++round) {
    const TensorView v = make.view();
    if (v.rank == 0) continue;
    const int axis = static_cast<int>(make.below(v.rank));
    const std::int64_t start = make.below(8) - 2, stop = make.below(8) - 2;
    const std::int64_t step = make.below(7) - 3;
    std::vector<std::int64_t> indices;
    bool legal = step != 0;
    const std::int64_t n = v.shape[axis];
    if (step > 0) legal = 0 <= start && start <= stop && stop <= n;
    if (step < 0) legal = -1 <= stop && stop <= start && start < std::max<std::int64_t>(n, 0);
    if (step < 0 && n == 0) legal = start == -1 && stop == -1;
    // An empty reversed range may start at -1.
    if (step < 0 && start == -1 && stop == -1) legal = true;
    const auto slice = v.slice(axis, start, stop, step);
    ASSERT_EQ(slice.has_value(), legal)
        << "n " << n << " start " << start << " stop " << stop << " step " << step;
    if (!legal) continue;
    for (std::int64_t i = start; step > 0 ? i < stop : i > stop; i += step) indices.push_back(i);
    ASSERT_EQ(slice->shape[axis], static_cast<std::int64_t>(indices.size()));
    // Move the axis to the front on both sides, then compare slices.
    Offsets expected, arrived;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const Offsets slab = offsets_of(*v.select(axis, indices[i]), make.memory.data());
      expected.insert(expected.end(), slab.begin(), slab.end());
      const Offsets other =
          offsets_of(*slice->select(axis, static_cast<std::int64_t>(i)), make.memory.data());
      arrived.insert(arrived.end(), other.begin(), other.end());
    }
    ASSERT_EQ(arrived, expected);
  }
}

TEST(TensorView, SelectRemovesTheAxis) {
  Maker make;
  for (int round = 0; round < 5000; ++round) {
    const TensorView v = make.view();
    if (v.rank == 0) continue;
    const int axis = static_cast<int>(make.below(v.rank));
    const std::int64_t index = make.below(7) - 1;
    const auto selected = v.select(axis, index);
    ASSERT_EQ(selected.has_value(), 0 <= index && index < v.shape[axis]);
    if (!selected) continue;
    Offsets expected;
    const Offsets all = offsets_of(v, make.memory.data());
    std::int64_t inner = 1;
    for (int i = axis + 1; i < v.rank; ++i) inner *= v.shape[i];
    for (std::size_t flat = 0; flat < all.size(); ++flat)
      if (static_cast<std::int64_t>(flat) / std::max<std::int64_t>(inner, 1) % v.shape[axis] ==
          index)
        expected.push_back(all[flat]);
    ASSERT_EQ(offsets_of(*selected, make.memory.data()), expected);
  }
  EXPECT_FALSE(TensorView(nullptr, DType::f32, {2}).select(1, 0).has_value());
  EXPECT_FALSE(TensorView(nullptr, DType::f32, {2}).select(-1, 0).has_value());
}

TEST(TensorView, PermuteAndBack) {
  Maker make;
  for (int round = 0; round < 2000; ++round) {
    TensorView v = make.view();
    v.rank = 3;
    for (int i = 0; i < 3; ++i) {
      v.shape[i] = 1 + make.below(4);
      v.strides[i] = make.below(50) - 25;
    }
    const auto turned = v.permute({2, 0, 1});
    ASSERT_TRUE(turned.has_value());
    for (std::int64_t a = 0; a < v.shape[0]; ++a)
      for (std::int64_t b = 0; b < v.shape[1]; ++b)
        for (std::int64_t c = 0; c < v.shape[2]; ++c)
          ASSERT_EQ(v.select(0, a)->select(0, b)->select(0, c)->data,
                    turned->select(0, c)->select(0, a)->select(0, b)->data);
    const auto back = turned->permute({1, 2, 0});
    ASSERT_EQ(offsets_of(*back, make.memory.data()), offsets_of(v, make.memory.data()));
  }
  const TensorView v(nullptr, DType::f32, {2, 3});
  EXPECT_FALSE(v.permute({0}).has_value());
  EXPECT_FALSE(v.permute({0, 0}).has_value());
  EXPECT_FALSE(v.permute({0, 2}).has_value());
  EXPECT_FALSE(v.permute({0, -1}).has_value());
}

// If reshape succeeds, the elements keep their order; if it fails, no strides could express it.
TEST(TensorView, ReshapeKeepsTheElementsInOrder) {
  Maker make;
  int num_done = 0, num_refused = 0;
  for (int round = 0; round < 40000; ++round) {
    const TensorView v = make.view();
    std::int64_t sizes[3] = {1 + make.below(4), 1 + make.below(4), 1};
    const std::int64_t count = v.num_elements();
    if (count % (sizes[0] * sizes[1]) != 0) continue;
    sizes[2] = count / (sizes[0] * sizes[1]);
    std::swap(sizes[2], sizes[make.below(3)]);
    const auto shaped = v.reshape({sizes[0], sizes[1], sizes[2]});
    const Offsets expected = offsets_of(v, make.memory.data());
    if (shaped) {
      ++num_done;
      ASSERT_EQ(offsets_of(*shaped, make.memory.data()), expected);
      continue;
    }
    ++num_refused;
    // The strides that the first step along each axis implies must misplace some element.
    TensorView best = v;
    best.rank = 3;
    std::int64_t inner = 1;
    const auto bytes = static_cast<std::int64_t>(dtype_bytes(v.type()));
    for (int i = 2; i >= 0; --i) {
      best.shape[i] = sizes[i];
      best.strides[i] =
          sizes[i] > 1 ? (expected[static_cast<std::size_t>(inner)] - expected[0]) / bytes : 0;
      inner *= sizes[i];
    }
    ASSERT_NE(offsets_of(best, make.memory.data()), expected) << "a view was possible";
  }
  EXPECT_GT(num_done, 1000);
  EXPECT_GT(num_refused, 100);
}

TEST(TensorView, ContiguousMeansNoGaps) {
  Maker make;
  int num_contiguous = 0;
  for (int round = 0; round < 10000; ++round) {
    const TensorView v = make.view();
    const Offsets offsets = offsets_of(v, v.data);
    bool expected = true;
    for (std::size_t i = 0; i < offsets.size(); ++i)
      expected = expected && offsets[i] == static_cast<std::int64_t>(i * dtype_bytes(v.type()));
    ASSERT_EQ(v.is_contiguous(), expected);
    num_contiguous += expected;
  }
  EXPECT_GT(num_contiguous, 100);
}

TEST(TensorView, OverflowingSizesAreSafe) {
  const std::int64_t big = std::int64_t{1} << 32;
  const TensorView v(nullptr, DType::f32, {big, big});
  EXPECT_FALSE(v.is_contiguous() && v.num_elements() == 1);
  EXPECT_FALSE(v.reshape({0}).has_value()) << "2^64 elements are not 0";
  EXPECT_TRUE(TensorView(nullptr, DType::f32, {big, big, 0}).reshape({0, 5}).has_value());
  EXPECT_FALSE(TensorView(nullptr, DType::f32, {4}).reshape({-4}).has_value());
  EXPECT_FALSE(TensorView(nullptr, DType::f32, {4}).slice(0, 0, 4, INT64_MIN).has_value());
  EXPECT_EQ(TensorView(nullptr, DType::f32, {4, 8}).slice(0, 0, 4, INT64_MAX)->shape[0], 1);
  EXPECT_EQ(TensorView(nullptr, DType::f32, {1, 1, 1, 1, 1, 1, 1, 1}).rank, HEADRACE_MAX_RANK);
}

}  // namespace
}  // namespace headrace
