// The axes along which test cases differ, and the number that names a case: its axis values in
// mixed radix together with a 16-bit seed for everything else. Whoever has the number has the case.
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

// Values by name where the code asks for them; the others are plain numbers in the axis table.
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
  int plain_percent;  // how often a random case takes value 0: most features are off in most cases
};
std::span<const AxisInfo> axes();
inline int num_values(int axis) {
  return static_cast<int>(axes()[static_cast<std::size_t>(axis)].values.size());
}
// The number that a value of a numeric axis stands for: head_dim, batch, group, threads.
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

// Why no case can have both values; null where one can. The only rule about combinations: the
// generator and the pair table both ask here.
const char* impossible_pair(Axis a, int value_a, Axis b, int value_b);
bool is_possible(const AxisValues& values);

inline constexpr std::uint64_t kSeedsPerCase = 1 << 16;
std::uint64_t code_of(const AxisValues& values);  // without seed: equal for equal values
std::uint64_t case_id(const AxisValues& values, std::uint16_t seed);
struct CaseName {
  AxisValues values;
  std::uint16_t seed;
};
std::optional<CaseName> case_from_id(std::uint64_t id);  // none: no such case
CaseName random_case(Random& random);
// One that a kernel for plain scores takes, as tensor cores like it: a 16-bit format, head dims in
// eights up to 256, no softcap, ALiBi, bias, mask or dropout, aligned rows, something to compute.
CaseName plain_case(Random& random);
// The same with a softcap, or with ALiBi, a bias or both.
CaseName scored_case(Random& random);
// The same with one of softcap, ALiBi, bias and dropout alone.
CaseName one_feature_case(Random& random);
std::string describe(
    const AxisValues& values);  // "dtype=bf16 head_dim=64 ...", plain ones left out

}  // namespace headrace::testing
