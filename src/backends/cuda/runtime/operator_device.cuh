// The device check of operators beside attention, which have one kernel for every architecture.
#pragma once

#include "base/error.h"

namespace headrace::cuda {

// unsupported if the library has no code for the device. `name`: of the operator, in the error.
Status check_operator_device(const char* name, int device_id);

}  // namespace headrace::cuda
