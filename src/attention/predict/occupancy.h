// How many CTAs a multiprocessor holds at a time.
#pragma once

#include <string>

#include "core/plan.h"

namespace headrace::predict {

struct Occupancy {
  int ctas = 0;       // of a multiprocessor; 0: not a GPU kernel with a known shape
  std::string limit;  // "threads", "registers", "shared memory"; several that are equal: "... and"
};
Occupancy occupancy_of(const CtaShape& cta, const DeviceInfo& device);

}  // namespace headrace::predict
