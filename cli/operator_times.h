// A table of the operators of a step: what each costs, how long it took and how near that is to the
// least time that the device needs for it.
#pragma once

#include <string>
#include <vector>

#include "call_bound.h"
#include "headrace/step.hpp"
#include "table.h"

namespace headrace::cli {

Table operator_times_table();

// The operators of one step; "rest", the time of the step that none of them accounts for (below 0
// where they share it: without one of them, others find more in the caches); the whole step.
// Without ceilings there are no bounds.
void add_operator_times(const std::string& test, const StepTimes& times, const DeviceInfo& device,
                        const std::vector<Ceiling>& ceilings, Table& table);

}  // namespace headrace::cli
