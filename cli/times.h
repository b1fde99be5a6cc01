// Times of benchmark calls, and their table columns.
#pragma once

#include <cstdint>
#include <vector>

#include "table.h"

namespace headrace::cli {

struct Times {
  double median, min, max;  // seconds
  std::int64_t reps;
};

// Needs at least one call.
Times times_of(std::vector<double> seconds);

// Median, minimum and maximum in milliseconds, and the number of calls.
std::vector<Column> time_columns();
std::vector<Cell> time_cells(const Times& times);

}  // namespace headrace::cli
