// RoPE as appends to a cache apply it, of every instruction set of this machine, against double.
#include "core/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "backends/cpu/elementwise/elementwise.h"
#include "backends/cpu/simd/element.h"
#include "tests/support/instruction_sets.h"
#include "tests/support/random.h"

namespace headrace::cpu {
namespace {

constexpr float kUntouched = -777.0f;
using Floats = std::vector<float>;

struct Shape {
  std::int64_t num_heads, head_dim, rot_dim;
};
const Shape kShapes[] = {{1, 2, 2},   {2, 3, 2},    {3, 64, 64},  {2, 80, 80}, {2, 80, 32},
                         {1, 96, 96}, {2, 128, 64}, {1, 130, 90}, {2, 17, 14}, {1, 256, 256}};

class RopeKernel : public ::testing::TestWithParam<const ElementwiseOps*> {
 protected:
  const ElementwiseOps& ops = *GetParam();
  const std::vector<std::int32_t> positions = {5, 0, 99, 1};
  const std::int64_t n = 4;

  Floats input(const Shape& s) {
    testing::Random random(1);
    Floats x(static_cast<std::size_t>(n * s.num_heads * s.head_dim));
    for (float& value : x) value = static_cast<float>(random.normal());
    return x;
  }
  // Of queries [n, num_heads, head_dim], which go to `out`.
  KvAppendArgs call_of(const Shape& s, RopeLayout layout, const Floats& x, void* out,
                       DType dtype = DType::f32) {
    KvAppendArgs args;
    args.num_tokens = n;
    args.num_heads = s.num_heads;
    args.head_dim = s.head_dim;
    args.rot_dim = s.rot_dim;
    args.layout = layout;
    const std::int64_t stride = s.num_heads * s.head_dim;
    args.q = {const_cast<float*>(x.data()), DType::f32, stride, s.head_dim};
    args.q_out = {out, dtype, stride, s.head_dim};
    if (s.rot_dim == 0) return args;
    args.positions = positions.data();
    args.position_stride = 1;
    RopeOptions options;
    options.rot_dim = s.rot_dim;
    std::ranges::copy(rope_frequencies(options).value(), args.frequencies);
    return args;
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, RopeKernel,
                         ::testing::ValuesIn(testing::runnable(all_elementwise_ops())),
                         [](const auto& param) { return std::string(param.param->name); });

// The element paired with element i of a head, and whether i is the first of the pair.
struct Partner {
  std::int64_t idx, pair;
  bool is_first;
};
Partner partner_of(std::int64_t i, std::int64_t rot_dim, RopeLayout layout) {
  const std::int64_t half = rot_dim / 2;
  if (layout == RopeLayout::halves)
    return i < half ? Partner{i + half, i, true} : Partner{i - half, i - half, false};
  return i % 2 == 0 ? Partner{i + 1, i / 2, true} : Partner{i - 1, i / 2, false};
}

TEST_P(RopeKernel, RotatesEveryPairByItsAngle) {
  for (const Shape& s : kShapes) {
    const auto x = input(s);
    for (const RopeLayout layout : {RopeLayout::interleaved, RopeLayout::halves}) {
      Floats out(x.size());
      ops.kv_append(call_of(s, layout, x, out.data()), {0, n});
      for (std::size_t at = 0; at < x.size(); ++at) {
        const auto i = static_cast<std::int64_t>(at) % s.head_dim;
        if (i >= s.rot_dim) {
          ASSERT_EQ(out[at], x[at]);
          continue;
        }
        const auto row = at / static_cast<std::size_t>(s.num_heads * s.head_dim);
        const Partner p = partner_of(i, s.rot_dim, layout);
        const double frequency =
            std::pow(10000.0, -2.0 * static_cast<double>(p.pair) / static_cast<double>(s.rot_dim));
        const double angle = positions[row] * frequency;
        const double own = x[at], other = x[at + static_cast<std::size_t>(p.idx - i)];
        const double exact = p.is_first ? own * std::cos(angle) - other * std::sin(angle)
                                        : own * std::cos(angle) + other * std::sin(angle);
        // Two rounded angles, two products, a sum: 2.5 roundings of at most this size.
        ASSERT_NEAR(out[at], exact, 2.5 * 0x1p-24 * (std::abs(own) + std::abs(other)))
            << s.head_dim << " " << s.rot_dim << " element " << i;
      }
    }
  }
}

TEST_P(RopeKernel, HasTheSameBitsOnEveryInstructionSet) {
  for (const Shape& s : kShapes) {
    const auto x = input(s);
    for (const RopeLayout layout : {RopeLayout::interleaved, RopeLayout::halves}) {
      Floats out(x.size()), expected(x.size());
      ops.kv_append(call_of(s, layout, x, out.data()), {0, n});
      all_elementwise_ops().back()->kv_append(call_of(s, layout, x, expected.data()), {0, n});
      ASSERT_EQ(out, expected);
    }
  }
}

TEST_P(RopeKernel, InPlaceAndIntoSixteenBits) {
  for (const Shape& s : kShapes) {
    const auto x = input(s);
    for (const RopeLayout layout : {RopeLayout::interleaved, RopeLayout::halves}) {
      Floats out(x.size());
      ops.kv_append(call_of(s, layout, x, out.data()), {0, n});
      std::vector<std::uint16_t> half(x.size()), brain(x.size());
      ops.kv_append(call_of(s, layout, x, half.data(), DType::f16), {0, n});
      ops.kv_append(call_of(s, layout, x, brain.data(), DType::bf16), {0, n});
      auto in_place = x;
      ops.kv_append(call_of(s, layout, in_place, in_place.data()), {0, n});
      ASSERT_EQ(in_place, out);
      for (std::size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(half[i], f16_from_float(out[i]));
        ASSERT_EQ(brain[i], bf16_from_float(out[i]));
      }
    }
  }
}

// Writes to a cache [head, position, head_dim]: source and destination strides differ.
TEST_P(RopeKernel, WritesOnlyItsRowsOfACache) {
  const Shape s{2, 10, 6};
  const auto x = input(s);
  Floats dense(x.size()), cache(2 * 8 * 12, kUntouched);
  auto call = call_of(s, RopeLayout::halves, x, dense.data());
  ops.kv_append(call, {0, n});
  call.q_out = {cache.data() + 3 * 12, DType::f32, 12, 8 * 12};
  ops.kv_append(call, {1, 3});
  for (std::size_t head = 0; head < 2; ++head) {
    for (std::size_t position = 0; position < 8; ++position) {
      for (std::size_t i = 0; i < 12; ++i) {
        const bool is_written = (position == 4 || position == 5) && i < 10;
        ASSERT_EQ(cache[(head * 8 + position) * 12 + i],
                  is_written ? dense[((position - 3) * 2 + head) * 10 + i] : kUntouched);
      }
    }
  }
}

TEST_P(RopeKernel, RotDimZeroCopies) {
  const Shape s{3, 21, 0};
  const auto x = input(s);
  for (const RopeLayout layout : {RopeLayout::interleaved, RopeLayout::halves}) {
    Floats out(x.size());
    ops.kv_append(call_of(s, layout, x, out.data()), {0, n});
    EXPECT_EQ(out, x);
  }
}

TEST_P(RopeKernel, NanReachesItsPairOnly) {
  const Shape s{1, 64, 64};
  for (const RopeLayout layout : {RopeLayout::interleaved, RopeLayout::halves}) {
    auto x = input(s);
    x[64 + 6] = std::numeric_limits<float>::quiet_NaN();
    Floats out(x.size());
    ops.kv_append(call_of(s, layout, x, out.data()), {0, n});
    const auto other = static_cast<std::size_t>(64 + partner_of(6, 64, layout).idx);
    for (std::size_t i = 0; i < x.size(); ++i)
      EXPECT_EQ(std::isnan(out[i]), i == 64 + 6 || i == other) << i;
  }
}

}  // namespace
}  // namespace headrace::cpu
