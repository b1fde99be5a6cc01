// What the calls of a benchmark took.
#pragma once

#include <cstdint>
#include <vector>

namespace headrace::cli {

struct Times {
  double median, min, max;  // seconds
  std::int64_t reps;
};

// Of at least one call.
Times times_of(std::vector<double> seconds);

}  // namespace headrace::cli
