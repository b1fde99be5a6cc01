// The CPU attention kernels in order of preference; the last one of each list supports everything.
#pragma once

#include <span>

#include "core/kernel.h"

namespace headrace::cpu {

std::span<const Kernel> forward_kernels();
std::span<const Kernel> backward_kernels();

}  // namespace headrace::cpu
