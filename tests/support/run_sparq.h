// A call of SparQ attention on the CPU with given instructions and threads.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "backends/cpu/sparq/sparq.h"
#include "core/device.h"
#include "ops/sparq.h"

namespace headrace::testing {

// The number of threads decides how units and keys are divided.
inline void run_sparq(const headrace_sparq_tensors& tensors, const headrace_sparq_options& options,
                      const cpu::SparqOps& ops, int num_threads) {
  Result<SparqArgs> args = validate_sparq(tensors, options);
  ASSERT_TRUE(args.ok()) << args.failure().message;
  DeviceInfo device = cpu_info().value();
  device.num_units = num_threads;
  std::vector<char> workspace(cpu::sparq_workspace_bytes(args.value(), device));
  const Status bad = cpu::sparq_attention(args.value(), device, ops, workspace.data());
  ASSERT_FALSE(bad) << bad->message;
}

}  // namespace headrace::testing
