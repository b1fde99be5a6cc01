// What the calls of a benchmark took, and how tables show it.
#pragma once

#include <cstdint>
#include <vector>

#include "table.h"

namespace headrace::cli {

struct Times {
  double median, min, max;  // seconds
  std::int64_t reps;
};

// Of at least one call.
Times times_of(std::vector<double> seconds);

// Median, fastest and slowest in milliseconds, and how many.
std::vector<Column> time_columns();
std::vector<Cell> time_cells(const Times& times);

}  // namespace headrace::cli
