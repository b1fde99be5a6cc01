// The search for the fastest choices of a plan's kernel.
#pragma once

#include <functional>
#include <span>

#include "attention/tune/table.h"
#include "core/plan.h"
#include "probes/ceiling.h"

namespace headrace::tune {

struct SearchOptions {
  int num_rounds = 15;  // that decide between the fastest choices and the kernel's own, in turn
  std::span<const probes::Ceiling> ceilings{};  // of the device, for predictions; may be empty
};

// Seconds of one call of the plan, in a round of its own.
using Measure = std::function<Result<double>(const Plan&)>;

struct Found {
  TunedCall call{};
  int num_configs = 1;  // that the kernel offers, its own choices among them
  int num_timed = 1;    // the others are predicted to be too slow
};

// A predicted time is within 15 % of the measured one for nine calls in ten (docs/roofline.md), so
// the ratio of two may be off by 1.15 / 0.85. Choices predicted slower than that are not timed.
inline constexpr double kMostPredictedRatio = 1.35;
// Other choices than the kernel's own must be this much faster, in three of four rounds.
inline constexpr double kLeastGain = 0.01;

Result<Found> search(const Plan& plan, const SearchOptions& options, const Measure& measure);

}  // namespace headrace::tune
