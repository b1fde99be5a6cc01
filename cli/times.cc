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

}  // namespace headrace::cli
