// The ceilings that predictions use.
#pragma once

#include <span>
#include <string>

#include "core/plan.h"
#include "probes/ceiling.h"

namespace headrace::predict {

// Per second, of all units of the plan's device together; 0: unknown.
struct Rates {
  double products = 0;    // FLOP, of the operands that the kernel multiplies
  double f32 = 0;         // FLOP; CPU only
  double exp2 = 0;        // GPU only
  double dram = 0;        // bytes read
  double l2_write = 0;    // bytes; GPU only
  double shared = 0;      // bytes read of shared memory; GPU only
  double last_cache = 0;  // bytes read of the last level of cache; CPU only
  double last_cache_bytes = 0;
  std::string source;  // where they come from; empty: nothing is known of the device
};

// `measured`: ceilings of the plan's device. Empty: those of a table of known GPUs.
Rates rates_of(const Plan& plan, std::span<const probes::Ceiling> measured);

}  // namespace headrace::predict
