// The named grids of the suite `backward`: shapes, dtypes and features that other libraries test,
// or that have broken a backward before. Batches and heads are small enough for the oracle.
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
  std::size_t num_small, num_full;  // number of cases per tier; 0: all
  bool has_zeros = false;           // in every case some gradient must be exactly +0
};
std::span<const NamedGrid> backward_grids();

// Indices of the cases that a tier runs: all, or the first of a fixed shuffled order that
// alternates lengths and features, without cases that are too large for the tier.
std::vector<std::size_t> sample_of(const NamedGrid& grid, const std::vector<GridCase>& cases,
                                   Tier tier);
// Multiply-adds of one matmul of the case.
double cost_of(const Shape& s);
std::string text_of(const GridCase& one);

}  // namespace headrace::testing
