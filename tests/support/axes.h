// The axes of test cases, and the number that identifies a case: its axis values in mixed radix and
// a 16-bit seed for everything else.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "support/random.h"

namespace headrace::testing {

enum class Axis : int {
  dtype,
  head_dim,
  head_dim_v,
  lengths,
  batch,
  group,
  causal,
  window,
  softcap,
  scale,
  alibi,
  bias,
  mask,
  tree_mask,
  sinks,
  dropout,
  ragged,
  layout,
  lse,
  threads,
  data,
  guard,
  strict_rows,
  num_splits,
};
inline constexpr int kNumAxes = static_cast<int>(Axis::num_splits) + 1;

// Named values of the axes that code refers to; other values are indices into the axis table.
enum class DimV : int { same, smaller, larger };
enum class Lengths : int {
  decode,
  brief,
  square,
  q_lt_k,
  q_gt_k,
  zero_q,
  zero_k,
  one,
  tile_edge,
  long_keys
};
enum class Window : int { none, left, right, both, zero };
enum class Scale : int { standard, custom, negative };
enum class Alibi : int { none, per_head, per_batch };
enum class Bias : int {
  none,
  f32_full,
  f32_batch,
  f32_head,
  f32_q,
  f32_k,
  full,
  batch,
  head,
  q,
  k
};
enum class Mask : int { none, full, batch, head, q, k, empty_rows };
enum class RaggedKind : int { dense, random, full, zeros };
enum class Layout : int { bshd, bhsd, packed, padded, negative, expanded, misaligned };
enum class Data : int { normal, scaled, negative, uniform, integer };

struct AxisInfo {
  Axis axis;
  const char* name;
  std::span<const char* const> values;
  int plain_percent;  // probability of value 0 in random cases: most features are off in most cases
};
std::span<const AxisInfo> axes();
inline int num_values(int axis) {
  return static_cast<int>(axes()[static_cast<std::size_t>(axis)].values.size());
}
// The number that a value of a numeric axis represents: head_dim, batch, group, threads.
int number_of(Axis axis, int value);

struct AxisValues {
  std::array<std::uint8_t, kNumAxes> value{};
  int operator[](Axis axis) const { return value[static_cast<std::size_t>(axis)]; }
  template <class E>
  E get(Axis axis) const {
    return static_cast<E>((*this)[axis]);
  }
  int number(Axis axis) const { return number_of(axis, (*this)[axis]); }
  bool operator==(const AxisValues&) const = default;
};

// Why no case can have both values; null if one can. The generator and the pair table both use this
// rule.
const char* impossible_pair(Axis a, int value_a, Axis b, int value_b);
bool is_possible(const AxisValues& values);

inline constexpr std::uint64_t kSeedsPerCase = 1 << 16;
std::uint64_t code_of(const AxisValues& values);  // without the seed: equal for equal values
std::uint64_t case_id(const AxisValues& values, std::uint16_t seed);
struct CaseName {
  AxisValues values;
  std::uint16_t seed;
};
std::optional<CaseName> case_from_id(std::uint64_t id);  // nullopt: no such case
CaseName random_case(Random& random);
// A case for tensor-core kernels for plain scores: a 16-bit dtype, head dims that are multiples of
// 8 up to 256, no softcap, ALiBi, bias, mask or dropout, aligned rows, a non-empty result.
CaseName plain_case(Random& random);
// The same with a softcap, or with ALiBi, a bias or both.
CaseName scored_case(Random& random);
// The same with exactly one of softcap, ALiBi, bias and dropout.
CaseName one_feature_case(Random& random);
std::string describe(
    const AxisValues& values);  // "dtype=bf16 head_dim=64 ...", without plain values

}  // namespace headrace::testing
