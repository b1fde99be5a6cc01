// A measured ceiling of a device, and how ceilings are measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace::probes {

// Same values as headrace_ceiling_kind.
enum class CeilingKind { compute = 0, bandwidth = 1, latency = 2 };

// The fields of headrace_ceiling, which documents them.
struct Ceiling {
  CeilingKind kind = CeilingKind::compute;
  std::string resource, operation;
  int num_units = 1;
  double value = 0, best = 0;
  double clock_hz = 0;
  double watts = 0;
  std::int64_t bytes = 0;
};

struct MeasureOptions {
  int num_rounds = 9;
  double round_seconds = 0.02;
};

// The median and the best value of a measurement's rounds, in the unit of the ceiling.
struct Rounds {
  double median = 0, best = 0;
};
Rounds rounds_of(std::vector<double> values, CeilingKind kind);

// Doubles the work until it takes half of `round_seconds`; returns that amount. time(amount)
// returns seconds. The bound ends the search if a compiler has deleted the work.
template <class Time>
std::int64_t calibrated(double round_seconds, std::int64_t amount, Time time) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  while (amount < kMost && time(amount) < round_seconds / 2) amount *= 2;
  return amount;
}

}  // namespace headrace::probes
