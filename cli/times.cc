#include "times.h"

#include <algorithm>

namespace headrace::cli {

Times times_of(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const std::size_t half = seconds.size() / 2;
  const double median =
      seconds.size() % 2 == 1 ? seconds[half] : (seconds[half - 1] + seconds[half]) / 2;
  return {median, seconds.front(), seconds.back(), static_cast<std::int64_t>(seconds.size())};
}

std::vector<Column> time_columns() {
  return {{"ms_median", "ms", 3}, {"ms_min", "min", 3}, {"ms_max", "max", 3}, {"reps", "reps"}};
}

std::vector<Cell> time_cells(const Times& times) {
  return {times.median * 1e3, times.min * 1e3, times.max * 1e3, times.reps};
}

}  // namespace headrace::cli
