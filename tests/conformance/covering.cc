#include "conformance/covering.h"

#include <unordered_set>

namespace headrace::testing {
namespace {

constexpr int kMaxValues = 32;

std::size_t pair_index(int a, int value_a, int b, int value_b) {
  return static_cast<std::size_t>(((a * kMaxValues + value_a) * kNumAxes + b) * kMaxValues +
                                  value_b);
}

// Calls visit(a, value_a, b, value_b) for every possible pair, a < b.
template <class Visit>
void for_each_pair(Visit visit) {
  for (int a = 0; a < kNumAxes; ++a)
    for (int value_a = 0; value_a < num_values(a); ++value_a)
      for (int b = a + 1; b < kNumAxes; ++b)
        for (int value_b = 0; value_b < num_values(b); ++value_b)
          if (impossible_pair(static_cast<Axis>(a), value_a, static_cast<Axis>(b), value_b) ==
              nullptr)
            visit(a, value_a, b, value_b);
}

// Fills the axes of `name` in random order, each with the value that covers the most new pairs with
// the axes already chosen. `is_fixed` axes are kept.
void complete(Random& random, const std::vector<bool>& seen, std::vector<bool> is_fixed,
              AxisValues& values) {
  const int start = static_cast<int>(random.between(0, kNumAxes - 1));
  for (int n = 0; n < kNumAxes; ++n) {
    const int axis = (start + n * 7) % kNumAxes;  // 7 is coprime to the number of axes
    if (is_fixed[static_cast<std::size_t>(axis)]) continue;
    int best = -1, best_gain = -1;
    const int offset = static_cast<int>(random.between(0, num_values(axis) - 1));
    for (int i = 0; i < num_values(axis); ++i) {
      const int value = (offset + i) % num_values(axis);
      int gain = 0;
      for (int other = 0; other < kNumAxes && gain >= 0; ++other) {
        if (!is_fixed[static_cast<std::size_t>(other)]) continue;
        const int other_value = values.value[static_cast<std::size_t>(other)];
        if (impossible_pair(static_cast<Axis>(axis), value, static_cast<Axis>(other),
                            other_value) != nullptr) {
          gain = -1;
        } else {
          const std::size_t index = axis < other ? pair_index(axis, value, other, other_value)
                                                 : pair_index(other, other_value, axis, value);
          gain += seen[index] ? 0 : 1;
        }
      }
      if (gain > best_gain) {
        best = value;
        best_gain = gain;
      }
    }
    values.value[static_cast<std::size_t>(axis)] = static_cast<std::uint8_t>(best < 0 ? 0 : best);
    is_fixed[static_cast<std::size_t>(axis)] = true;
  }
}

// A case without a result to compare only covers pairs with its lengths.
bool is_counted(int a, int b, bool is_live) {
  return is_live || a == static_cast<int>(Axis::lengths) || b == static_cast<int>(Axis::lengths);
}

void mark(std::vector<bool>& seen, const AxisValues& values, bool is_live) {
  for (int a = 0; a < kNumAxes; ++a)
    for (int b = a + 1; b < kNumAxes; ++b)
      if (is_counted(a, b, is_live))
        seen[pair_index(a, values.value[static_cast<std::size_t>(a)], b,
                        values.value[static_cast<std::size_t>(b)])] = true;
}

bool is_possible_so_far(const AxisValues& values, const std::vector<bool>& is_fixed) {
  constexpr int kLengths = static_cast<int>(Axis::lengths);
  for (int other = 0; other < kNumAxes; ++other)
    if (is_fixed[static_cast<std::size_t>(other)] &&
        impossible_pair(Axis::lengths, values[Axis::lengths], static_cast<Axis>(other),
                        values.value[static_cast<std::size_t>(other)]) != nullptr)
      return other == kLengths;
  return true;
}

constexpr std::size_t kTableSize = kNumAxes * kMaxValues * kNumAxes * kMaxValues;
static_assert(kNumAxes % 7 != 0);

}  // namespace

bool has_lengths(const AxisValues& values) {
  const auto lengths = values.get<Lengths>(Axis::lengths);
  return lengths != Lengths::zero_q && lengths != Lengths::zero_k;
}

namespace {

// A case with the given pair and as many uncovered pairs as possible.
CaseName case_with(Random& random, const std::vector<bool>& seen, int a, int value_a, int b,
                   int value_b) {
  CaseName name{};
  std::vector<bool> is_fixed(kNumAxes, false);
  name.values.value[static_cast<std::size_t>(a)] = static_cast<std::uint8_t>(value_a);
  name.values.value[static_cast<std::size_t>(b)] = static_cast<std::uint8_t>(value_b);
  is_fixed[static_cast<std::size_t>(a)] = is_fixed[static_cast<std::size_t>(b)] = true;
  // Any pair without the lengths axis needs non-empty sequences.
  constexpr auto kLengths = static_cast<std::size_t>(Axis::lengths);
  if (!is_fixed[kLengths]) {
    const int count = num_values(static_cast<int>(kLengths));
    do {
      name.values.value[kLengths] = static_cast<std::uint8_t>(random.between(0, count - 1));
    } while (!has_lengths(name.values) || !is_possible_so_far(name.values, is_fixed));
    is_fixed[kLengths] = true;
  }
  complete(random, seen, std::move(is_fixed), name.values);
  name.seed = static_cast<std::uint16_t>(random.next());
  return name;
}

}  // namespace

std::vector<CaseName> covering_array(std::uint64_t seed, IsLive is_live) {
  constexpr int kTries = 40;
  Random random(seed);
  std::vector<bool> seen(kTableSize, false);
  std::vector<CaseName> cases;
  for_each_pair([&](int a, int value_a, int b, int value_b) {
    for (int i = 0; i < kTries && !seen[pair_index(a, value_a, b, value_b)]; ++i) {
      const CaseName name = case_with(random, seen, a, value_a, b, value_b);
      if (has_lengths(name.values) && !is_live(name)) continue;
      mark(seen, name.values, has_lengths(name.values));
      cases.push_back(name);
    }
  });
  return cases;
}

std::vector<CaseName> grid_cases(std::size_t count, std::uint64_t seed,
                                 const std::vector<CaseName>& array) {
  std::vector<CaseName> cases = array;
  if (cases.size() > count) cases.resize(count);
  std::unordered_set<std::uint64_t> codes;
  for (const CaseName& name : cases) codes.insert(code_of(name.values));
  Random random(seed + 1);
  while (cases.size() < count) {
    const CaseName name = random_case(random);
    if (codes.insert(code_of(name.values)).second) cases.push_back(name);
  }
  return cases;
}

namespace {

std::vector<CaseName> drawn_cases(CaseName (*draw)(Random&), std::size_t count,
                                  std::uint64_t seed) {
  Random random(seed);
  std::vector<CaseName> cases;
  while (cases.size() < count) cases.push_back(draw(random));
  return cases;
}

}  // namespace

std::vector<CaseName> plain_cases(std::size_t count, std::uint64_t seed) {
  return drawn_cases(plain_case, count, seed + 2);
}

std::vector<CaseName> scored_cases(std::size_t count, std::uint64_t seed) {
  return drawn_cases(scored_case, count, seed + 3);
}

std::vector<CaseName> one_feature_cases(std::size_t count, std::uint64_t seed) {
  return drawn_cases(one_feature_case, count, seed + 4);
}

PairTable::PairTable() : seen_(kTableSize, false) {
  for_each_pair([&](int, int, int, int) { ++num_required_; });
}

void PairTable::add(const AxisValues& values, bool is_live) { mark(seen_, values, is_live); }

void PairTable::merge(const PairTable& other) {
  for (std::size_t i = 0; i < seen_.size(); ++i) seen_[i] = seen_[i] || other.seen_[i];
}

std::int64_t PairTable::num_covered() const {
  return num_required_ - static_cast<std::int64_t>(holes().size());
}

std::vector<std::string> PairTable::holes() const {
  std::vector<std::string> list;
  const auto text = [](int axis, int value) {
    const AxisInfo& info = axes()[static_cast<std::size_t>(axis)];
    return std::string(info.name) + "=" + info.values[static_cast<std::size_t>(value)];
  };
  for_each_pair([&](int a, int value_a, int b, int value_b) {
    if (!seen_[pair_index(a, value_a, b, value_b)])
      list.push_back(text(a, value_a) + " x " + text(b, value_b));
  });
  return list;
}

std::vector<PairTable::AxisRow> PairTable::by_axis() const {
  std::vector<AxisRow> rows;
  for (const AxisInfo& info : axes()) rows.push_back({info.name, 0, 0});
  for_each_pair([&](int a, int value_a, int b, int value_b) {
    for (const int axis : {a, b}) {
      ++rows[static_cast<std::size_t>(axis)].required;
      if (seen_[pair_index(a, value_a, b, value_b)]) ++rows[static_cast<std::size_t>(axis)].covered;
    }
  });
  return rows;
}

}  // namespace headrace::testing
