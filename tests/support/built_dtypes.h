// The element types of this build's kernels. A build of fewer (HEADRACE_DTYPES) passes the tests.
#pragma once

#include <vector>

#include "core/dtype.h"

namespace headrace::testing {

// Never empty; cpu_reference takes all types in every build.
inline std::vector<DType> built_dtypes() {
  std::vector<DType> dtypes;
  if constexpr (HEADRACE_DTYPE_F32) dtypes.push_back(DType::f32);
  if constexpr (HEADRACE_DTYPE_F16) dtypes.push_back(DType::f16);
  if constexpr (HEADRACE_DTYPE_BF16) dtypes.push_back(DType::bf16);
  return dtypes;
}

}  // namespace headrace::testing
