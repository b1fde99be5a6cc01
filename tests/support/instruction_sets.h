// The compiled instruction sets that this machine runs.
#pragma once

#include <span>
#include <vector>

#include "core/device.h"

namespace headrace::testing {

// `all`: the operators of every compiled instruction set, such as all_softmax_ops().
template <class Ops>
std::vector<const Ops*> runnable(std::span<const Ops* const> all) {
  std::vector<const Ops*> found;
  for (const Ops* ops : all)
    if ((detected_cpu_isa() & ops->cpu_isa) == ops->cpu_isa) found.push_back(ops);
  return found;
}

}  // namespace headrace::testing
