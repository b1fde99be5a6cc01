// The compiled kernels: a file for a head dim, with both formats and both numbers of rows, and one
// for calls whose sequences may share a prefix.
#pragma once

#include "backends/cuda/sm90/decode/params.h"
#include "core/kernel.h"

namespace headrace::cuda::sm90::decode {

struct Call {
  const Params& params;
  const Maps& maps;
  DType dtype;
  int num_ctas;
  Stream stream;
  bool is_early;  // begins beside an append
};
using Launch = Status(const Call& call);

Launch launch_hd64, launch_hd128, launch_hd64_prefix, launch_hd128_prefix;
// The kernels before a launch whose sequences may share a prefix. dim: head_dim_bucket().
Status launch_prefix(const Call& call, int dim);

}  // namespace headrace::cuda::sm90::decode
