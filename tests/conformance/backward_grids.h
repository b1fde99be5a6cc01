// The named grids of the suite backward, as data: shapes, formats and features that other libraries
// test, or that have broken a backward before. Batches and heads are those that the oracle can do.
#pragma once

#include <span>

#include "conformance/catalogue.h"

namespace headrace::testing {

struct GridCase {
  CaseName name;
  Shape shape;
  void (*prepare)(Lab&) = nullptr;  // changes inputs and options, before out and lse are computed
};

struct NamedGrid {
  const char* id;
  const char* title;
  std::vector<GridCase> (*cases)();
  std::size_t num_small, num_full;  // cases of the tiers; 0: all
  bool has_zeros = false;           // in every case some gradient must be exactly +0
};
std::span<const NamedGrid> backward_grids();

// Which cases of a grid a tier runs: all, or the first of a fixed shuffled order in which lengths
// and features take turns, without those that are too large for it.
std::vector<std::size_t> sample_of(const NamedGrid& grid, const std::vector<GridCase>& cases,
                                   Tier tier);
// Multiply-adds of one product of the case.
double cost_of(const Shape& s);
std::string text_of(const GridCase& one);

}  // namespace headrace::testing
