#include "probes/ceiling.h"

#include <algorithm>

namespace headrace::probes {

Rounds rounds_of(std::vector<double> values, CeilingKind kind) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {median, kind == CeilingKind::latency ? values.front() : values.back()};
}

}  // namespace headrace::probes
