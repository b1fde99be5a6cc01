// The covering array: a small set of cases in which every pair of axis values that is possible
// occurs; and the table that counts which pairs a set of cases really had.
#pragma once

#include <string>
#include <vector>

#include "support/axes.h"

namespace headrace::testing {

// False where the lengths alone leave nothing to compare.
bool has_lengths(const AxisValues& values);

// `is_live` says whether some row of a case sees a key; the array tries other seeds where none
// does.
using IsLive = bool (*)(const CaseName&);
std::vector<CaseName> covering_array(std::uint64_t seed, IsLive is_live);

// `count` cases that differ in their axis values: the covering array, then random ones.
std::vector<CaseName> grid_cases(std::size_t count, std::uint64_t seed,
                                 const std::vector<CaseName>& array);

// For kernels that take plain scores alone: a tier's share of plain_case().
inline constexpr std::size_t kPlainSmall = 80, kPlainFull = 500;
std::vector<CaseName> plain_cases(std::size_t count, std::uint64_t seed);
// For kernels that take some more: of scored_case().
inline constexpr std::size_t kScoredSmall = 60, kScoredFull = 300;
std::vector<CaseName> scored_cases(std::size_t count, std::uint64_t seed);
// For forward kernels of their own for one feature: of one_feature_case().
inline constexpr std::size_t kOneFeatureSmall = 120, kOneFeatureFull = 600;
std::vector<CaseName> one_feature_cases(std::size_t count, std::uint64_t seed);

// Pairs of axis values seen by one kernel.
class PairTable {
 public:
  PairTable();
  // `is_live`: some row of the case sees a key. Without, only pairs with its lengths count.
  void add(const AxisValues& values, bool is_live);
  void merge(const PairTable& other);
  std::int64_t num_required() const { return num_required_; }
  std::int64_t num_covered() const;
  std::vector<std::string> holes() const;  // "head_dim=576 x lengths=decode"
  // Covered and required pairs of each pair of axes with a hole, and of all axes by axis.
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
