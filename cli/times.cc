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

double percentile(const std::vector<double>& sorted, double fraction) {
  if (sorted.empty()) return 0;
  const double rank = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(rank);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (rank - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

std::vector<Column> time_columns() {
  return {{"ms_median", "ms", 3}, {"ms_min", "min", 3}, {"ms_max", "max", 3}, {"reps", "reps"}};
}

std::vector<Cell> time_cells(const Times& times) {
  return {times.median * 1e3, times.min * 1e3, times.max * 1e3, times.reps};
}

}  // namespace headrace::cli
