// The launchers of a kernel: one for each dtype and compiled head dim, each in a translation unit
// of its own.
#pragma once

#include "backends/cuda/sm80/config.h"
#include "base/error.h"

namespace headrace::cuda::sm80 {

template <class Call>
struct Launchers {
  using Launch = Status(const Call& call);
  Launch* of_dtype[3][3];  // f32, f16, bf16; kHeadDims

  // Null for other dtypes and larger head dims.
  constexpr Launch* of(const Problem& p) const {
    constexpr DType kDtypes[] = {DType::f32, DType::f16, DType::bf16};
    for (int i = 0; i < 3; ++i)
      for (int j = 0; j < 3; ++j)
        if (kDtypes[i] == dtype_of(p) && kHeadDims[j] == head_dim_bucket(p)) return of_dtype[i][j];
    return nullptr;
  }
};

}  // namespace headrace::cuda::sm80
