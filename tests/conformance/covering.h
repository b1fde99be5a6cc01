// The covering array: a small set of cases in which every pair of axis values that is possible
// occurs; and the table that counts which pairs a set of cases really had.
#pragma once

#include <string>
#include <vector>

#include "support/axes.h"

namespace headrace::testing {

std::vector<CaseName> covering_array(std::uint64_t seed);

// `count` cases that differ in their axis values: the covering array, then random ones.
std::vector<CaseName> grid_cases(std::size_t count, std::uint64_t seed);

// Pairs of axis values seen by one kernel.
class PairTable {
 public:
  PairTable();
  void add(const AxisValues& values);
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
