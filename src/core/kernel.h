// A kernel: an entry of the ordered list of a device type and phase. It accepts a problem or states
// why not, plans it and launches it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "core/args.h"
#include "core/plan.h"

namespace headrace {

struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

using Stream = void*;  // null on CPU; cudaStream_t on CUDA

struct Kernel {
  std::string_view name;     // "cpu_avx2_fwd", "cpu_avx2_bwd": <arch>_<phase>
  std::string_view summary;  // one line for the support matrix
  // Empty: the kernel supports the problem. Else the reason, for explain() and errors.
  std::string (*refuses)(const Problem&, const DeviceInfo&);
  Schedule (*plan)(const Problem&, const DeviceInfo&, const TuningConfig&);
  // Enqueues the work. The arguments match the plan's problem. Allocates nothing.
  Status (*launch)(const Plan&, const AttentionArgs&, Workspace, Stream);
  // Configs other than the default one that suit a problem: the bits are the same. Null: none.
  std::vector<TuningConfig> (*configs)(const Problem&, const DeviceInfo&) = nullptr;
};

// Choices other than the kernel's own that it offers for a problem.
inline std::vector<TuningConfig> configs_of(const Kernel& kernel, const Problem& p,
                                            const DeviceInfo& device) {
  return kernel.configs == nullptr ? std::vector<TuningConfig>() : kernel.configs(p, device);
}

}  // namespace headrace
