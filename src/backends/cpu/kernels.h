// The CPU kernels for attention, best first; the last one of a list refuses nothing.
#pragma once

#include <span>

#include "core/kernel.h"

namespace headrace::cpu {

std::span<const Kernel> forward_kernels();
std::span<const Kernel> backward_kernels();

}  // namespace headrace::cpu
