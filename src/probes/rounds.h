// Rounds of a measurement on CPU threads.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "probes/ceiling.h"
#include "probes/team.h"

namespace headrace::probes {

inline constexpr double kUndisturbed = 0.99;  // least CPU share

// time(amount) runs `amount` times a work of `units_each` operations or bytes and returns a
// TeamTime; rates are per second, latencies in seconds per unit. CPU time counts: a thread that
// waits for a CPU computes nothing. But threads that take turns do not share a memory as they
// should, so rounds in which other processes ran are repeated, up to twice as many; where too few
// are left alone, the least disturbed count.
template <class Time>
Rounds measure_team(CeilingKind kind, double units_each, std::int64_t first_amount,
                    const MeasureOptions& options, Time time) {
  const std::int64_t amount =
      calibrated(options.round_seconds, first_amount,
                 [&](std::int64_t tried) { return time(tried).cpu_seconds; });
  const double units = units_each * static_cast<double>(amount);
  const auto wanted = static_cast<std::size_t>(options.num_rounds);
  std::vector<std::pair<double, double>> rounds;  // CPU share, value
  std::size_t num_undisturbed = 0;
  while (num_undisturbed < wanted && rounds.size() < 2 * wanted) {
    const TeamTime taken = time(amount);
    rounds.emplace_back(taken.cpu_share, kind == CeilingKind::latency ? taken.cpu_seconds / units
                                                                      : units / taken.cpu_seconds);
    num_undisturbed += taken.cpu_share >= kUndisturbed;
  }
  const auto share = [](const auto& round) { return std::min(round.first, kUndisturbed); };
  std::stable_sort(rounds.begin(), rounds.end(),
                   [&](const auto& a, const auto& b) { return share(a) > share(b); });
  std::vector<double> values;
  for (std::size_t i = 0; i < wanted; ++i) values.push_back(rounds[i].second);
  return rounds_of(std::move(values), kind);
}

}  // namespace headrace::probes
