// The CPU kernels for attention forward, best first; the last one refuses nothing.
#pragma once

#include <span>

#include "core/kernel.h"

namespace headrace::cpu {

std::span<const Kernel> forward_kernels();

}  // namespace headrace::cpu
