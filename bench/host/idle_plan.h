// A plan with an empty kernel: its run measures the call overhead.
#pragma once

#include "headrace/headrace.h"

// Needs a valid problem. Free it with headrace_plan_destroy().
headrace_plan* make_idle_plan(const headrace_problem& problem, const headrace_device_info& device);
