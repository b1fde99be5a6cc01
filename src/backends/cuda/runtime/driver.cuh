// Driver functions, looked up at run time: the library does not link libcuda and loads without it.
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

// Looked up once per process; fails without a driver.
Result<const Driver*> driver();

}  // namespace headrace::cuda
