// Reference forward in double, row by row. Written for readability; supports everything.
#pragma once

#include "core/kernel.h"

namespace headrace::cpu::reference {

extern const Kernel kForwardKernel;  // "cpu_reference"

}  // namespace headrace::cpu::reference
