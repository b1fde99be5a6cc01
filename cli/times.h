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

// `fraction` (0 to 1) of the sorted values lie at or below it, interpolated linearly between the
// two closest ranks, as numpy.percentile does; 0 without values.
double percentile(const std::vector<double>& sorted, double fraction);

// Median, minimum and maximum in milliseconds, and the number of calls.
std::vector<Column> time_columns();
std::vector<Cell> time_cells(const Times& times);

}  // namespace headrace::cli
