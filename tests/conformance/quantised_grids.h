// Named grids of attention over quantised keys and values.
#pragma once

#include <string>
#include <vector>

#include "conformance/suites.h"
#include "support/quantised_bounds.h"

namespace headrace::testing {

// What a case compares, computed once for all kernels. `beside_16_bits`: the rows of a cache
// without codes, where a grid asks for them.
struct QuantisedExpected {
  std::vector<JudgedRow> rows, beside_16_bits;
};

struct QuantisedGrid {
  const char* id;
  const char* title;
  std::vector<QuantisedCase> (*cases)(Tier tier);
  // Empty, or what is wrong with the results of `call`.
  std::string (*judge)(const Kernel& kernel, const QuantisedCall& call,
                       const QuantisedExpected& expected);
  bool reports_sqnr;
};
extern const std::vector<QuantisedGrid> kQuantisedGrids;

}  // namespace headrace::testing
