// Functions of the driver, found at run time: the library is not linked with libcuda and loads
// where there is none.
#pragma once

#include <cuda.h>

#include "base/error.h"

namespace headrace::cuda {

struct Driver {
  decltype(&cuCtxGetCurrent) ctx_get_current = nullptr;
  decltype(&cuCtxSetCurrent) ctx_set_current = nullptr;
  decltype(&cuCtxGetDevice) ctx_get_device = nullptr;
  decltype(&cuTensorMapEncodeTiled) tensor_map_encode_tiled = nullptr;        // null before 12.0
  decltype(&cuTensorMapReplaceAddress) tensor_map_replace_address = nullptr;  // null before 12.0
};

// Found once a process; fails where there is no driver.
Result<const Driver*> driver();

}  // namespace headrace::cuda
