// A plan whose kernel does nothing: what is left of a run is what the call costs beside its kernel.
#pragma once

#include "headrace/headrace.h"

// Of a valid problem; headrace_plan_destroy() it.
headrace_plan* make_idle_plan(const headrace_problem& problem, const headrace_device_info& device);
