// Attention forward in double, row by row. Written to be read; refuses nothing.
#pragma once

#include "core/kernel.h"

namespace headrace::cpu::reference {

extern const Kernel kForwardKernel;  // "cpu_reference"

}  // namespace headrace::cpu::reference
