// The compiled kernels: a file a tile, in each both formats.
#pragma once

#include <vector_types.h>

#include "backends/cuda/sm90/bwd/params.h"

namespace headrace::cuda::sm90::bwd {

struct Call {
  const Params& params;
  const Maps& maps;
  dim3 grid;
  Stream stream;
};
using Launch = Status(const Call& call);

Launch launch_hd64, launch_hd128;

// After them: dq from its sums.
using Finish = Status(const BackwardRows& rows, Stream stream);
Finish launch_finish_hd64, launch_finish_hd128;

}  // namespace headrace::cuda::sm90::bwd
