// The compiled kernels: a file for each tile and kind, with both dtypes.
#pragma once

#include <vector_types.h>

#include "backends/cuda/sm90/bwd/params.h"

namespace headrace::cuda::sm90::bwd {

// is_fixed: dQ is summed in fixed point. is_general: softcap, ALiBi, bias.
struct Kind {
  bool is_general, is_fixed;
};

struct Call {
  const Params& params;
  const Maps& maps;
  DType dtype;
  dim3 grid;
  Stream stream;
};
using Launch = Status(const Call& call);

Launch launch_hd64, launch_hd128, launch_hd192v128, launch_hd192, launch_hd256;
Launch launch_hd64_fixed, launch_hd128_fixed, launch_hd192v128_fixed, launch_hd192_fixed,
    launch_hd256_fixed;
Launch launch_hd64_general, launch_hd128_general, launch_hd256_general;
Launch launch_hd64_general_fixed, launch_hd128_general_fixed, launch_hd256_general_fixed;

// After the main kernel: dq from its accumulator, for tiles with this many columns of Q.
using Postprocess = Status(const PostprocessParams& params, DType dtype, Stream stream);
Postprocess launch_postprocess_hd64, launch_postprocess_hd128, launch_postprocess_hd192,
    launch_postprocess_hd256;

}  // namespace headrace::cuda::sm90::bwd
