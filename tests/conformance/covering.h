// The covering array: a small set of cases that contains every possible pair of axis values; and
// the table of pairs that a set of cases covered.
#pragma once

#include <string>
#include <vector>

#include "support/axes.h"

namespace headrace::testing {

// False if the lengths leave nothing to compare.
bool has_lengths(const AxisValues& values);

// Whether some row of a case sees a key; if none does, the array tries other seeds.
using IsLive = bool (*)(const CaseName&);
std::vector<CaseName> covering_array(std::uint64_t seed, IsLive is_live);

// `count` distinct cases: the covering array, then random ones.
std::vector<CaseName> grid_cases(std::size_t count, std::uint64_t seed,
                                 const std::vector<CaseName>& array);

// Number of plain_case() per tier, for kernels that only support plain scores.
inline constexpr std::size_t kPlainSmall = 80, kPlainFull = 500;
std::vector<CaseName> plain_cases(std::size_t count, std::uint64_t seed);
// Number of scored_case(), for kernels that support a few features.
inline constexpr std::size_t kScoredSmall = 60, kScoredFull = 300;
std::vector<CaseName> scored_cases(std::size_t count, std::uint64_t seed);
// Number of one_feature_case(), for forward kernels compiled for one feature.
inline constexpr std::size_t kOneFeatureSmall = 120, kOneFeatureFull = 600;
std::vector<CaseName> one_feature_cases(std::size_t count, std::uint64_t seed);

// Pairs of axis values that one kernel ran.
class PairTable {
 public:
  PairTable();
  // `is_live`: some row of the case sees a key; else only pairs with its lengths count.
  void add(const AxisValues& values, bool is_live);
  void merge(const PairTable& other);
  std::int64_t num_required() const { return num_required_; }
  std::int64_t num_covered() const;
  std::vector<std::string> holes() const;  // "head_dim=576 x lengths=decode"
  // Covered and required pairs by axis.
  struct AxisRow {
    std::string axis;
    std::int64_t covered, required;
  };
  std::vector<AxisRow> by_axis() const;

 private:
  std::vector<bool> seen_;
  std::int64_t num_required_ = 0;
};

}  // namespace headrace::testing
