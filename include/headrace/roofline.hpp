/// @file
/// Measured ceilings of a device, for C++20: a header-only wrapper of roofline.h.
///
///   for (const auto& ceiling : headrace::measure_ceilings(headrace::cpu_info()))
///     std::cout << ceiling.resource << ' ' << ceiling.operation << ' ' << ceiling.value << '\n';
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "headrace/headrace.hpp"
#include "headrace/roofline.h"

namespace headrace {
inline namespace v0 {

/// headrace_ceiling_kind.
enum class CeilingKind : std::int32_t {
  compute = HEADRACE_CEILING_COMPUTE,      ///< operations per second
  bandwidth = HEADRACE_CEILING_BANDWIDTH,  ///< bytes per second
  latency = HEADRACE_CEILING_LATENCY,      ///< seconds
};

/// headrace_ceiling.
struct Ceiling {
  CeilingKind kind = CeilingKind::compute;  ///< what the value counts
  std::int32_t num_units = 1;               ///< threads or multiprocessors at work
  std::string resource;                     ///< "avx512", "tensor core", "L2"
  std::string operation;                    ///< "bf16", "read", "load"
  double value = 0;                         ///< median of the rounds
  double best = 0;                          ///< best round
  double clock_hz = 0;                      ///< core clock; 0: not known
  double watts = 0;                         ///< power of the device; 0: not known
  std::int64_t bytes = 0;                   ///< working set; 0: none
};

/// headrace_ceiling_options.
struct CeilingOptions {
  std::int32_t num_rounds = 9;  ///< rounds of each measurement
  double round_seconds = 0.02;  ///< a round takes at least half of it
};

/// headrace_ceilings_measure().
inline std::vector<Ceiling> measure_ceilings(const DeviceInfo& device,
                                             const CeilingOptions& options = {}) {
  headrace_ceiling_options o;
  check(headrace_ceiling_options_init(&o));
  o.num_rounds = options.num_rounds;
  o.round_seconds = options.round_seconds;
  headrace_ceilings* made = nullptr;
  check(headrace_ceilings_measure(&device, &o, &made));
  const std::unique_ptr<headrace_ceilings, decltype(&headrace_ceilings_destroy)> list(
      made, headrace_ceilings_destroy);
  std::vector<Ceiling> ceilings;
  for (std::int64_t i = 0; i < headrace_ceilings_count(made); ++i) {
    headrace_ceiling c{};
    c.struct_size = sizeof c;
    check(headrace_ceilings_get(made, i, &c));
    ceilings.push_back({static_cast<CeilingKind>(c.kind), c.num_units, c.resource, c.operation,
                        c.value, c.best, c.clock_hz, c.watts, c.bytes});
  }
  return ceilings;
}

}  // namespace v0
}  // namespace headrace
