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

/// headrace_prediction_part.
struct PredictionPart {
  std::string name;         ///< "tensor cores", "memory"
  double unit_seconds = 0;  ///< its work at a ceiling, or a count of microseconds
  double constant = 0;      ///< fitted to measurements
};

/// headrace_prediction_info.
struct Prediction {
  double seconds = 0;                 ///< 0: no prediction
  double flops = 0;                   ///< that the call needs
  double bytes = 0;                   ///< every input and output once
  double exps = 0;                    ///< exponentials
  std::int64_t num_tiles = 0;         ///< work tiles
  std::int64_t num_slots = 0;         ///< resident CTAs, or threads
  double balance = 0;                 ///< mean work of a slot over the last one's
  std::int32_t ctas = 0;              ///< of a multiprocessor
  std::string limit;                  ///< what limits `ctas`
  std::string bound;                  ///< the longest part
  std::string ceilings;               ///< where the ceilings come from
  std::string reason;                 ///< why there is no prediction
  std::string text;                   ///< lines that continue Plan::explain()
  std::vector<PredictionPart> parts;  ///< of `seconds`
};

/// For functions of the C ABI. The strings are those of `ceilings`.
inline std::vector<headrace_ceiling> ceilings_to_c(const std::vector<Ceiling>& ceilings) {
  std::vector<headrace_ceiling> list;
  for (const Ceiling& c : ceilings)
    list.push_back({sizeof(headrace_ceiling), static_cast<std::int32_t>(c.kind), c.num_units,
                    c.resource.c_str(), c.operation.c_str(), c.value, c.best, c.clock_hz, c.watts,
                    c.bytes});
  return list;
}

/// headrace_plan_predict(). `ceilings`: those of the plan's device; empty: those that the library
/// knows of it.
inline Prediction predict(const Plan& plan, const std::vector<Ceiling>& ceilings = {}) {
  const std::vector<headrace_ceiling> list = ceilings_to_c(ceilings);
  headrace_prediction* made = nullptr;
  check(headrace_plan_predict(plan.get(), list.empty() ? nullptr : list.data(),
                              static_cast<std::int64_t>(list.size()), &made));
  const std::unique_ptr<headrace_prediction, decltype(&headrace_prediction_destroy)> owner(
      made, headrace_prediction_destroy);
  headrace_prediction_info i{};
  i.struct_size = sizeof i;
  check(headrace_prediction_get(made, &i));
  Prediction p{i.seconds, i.flops, i.bytes, i.exps,     i.num_tiles, i.num_slots, i.balance,
               i.ctas,    i.limit, i.bound, i.ceilings, i.reason,    i.text,      {}};
  for (std::int64_t index = 0; index < i.num_parts; ++index) {
    headrace_prediction_part part{};
    part.struct_size = sizeof part;
    check(headrace_prediction_get_part(made, index, &part));
    p.parts.push_back({part.name, part.unit_seconds, part.constant});
  }
  return p;
}

}  // namespace v0
}  // namespace headrace
