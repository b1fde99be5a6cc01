// The compiled kernels: a file for each tile and ScoreMod, with both dtypes.
#pragma once

#include "backends/cuda/sm90/fwd/params.h"
#include "core/kernel.h"

namespace headrace::cuda::sm90::fwd {

struct Call {
  const Params& params;
  const Maps& maps;
  DType dtype;
  int num_ctas;
  Stream stream;
  int cluster_size = 1;  // CTAs
};
using Launch = Status(const Call& call);

Launch launch_combine;  // of the partial results that splits left

Launch launch_hd64, launch_hd64_short, launch_hd80, launch_hd80_short, launch_hd96,
    launch_hd96_short, launch_hd112, launch_hd128, launch_hd192v128, launch_hd192, launch_hd256;
Launch launch_few64, launch_few128, launch_few256, launch_few128_alibi, launch_few256_alibi,
    launch_few128_softcap, launch_few256_softcap, launch_few128_general, launch_few256_general;
Launch launch_transposed64_rows8, launch_transposed64_rows16, launch_transposed128_rows8,
    launch_transposed128_rows16, launch_transposed256_rows8, launch_transposed256_rows16;
Launch launch_parts64_rows8, launch_parts64_rows16, launch_parts128_rows8, launch_parts128_rows16;
Launch launch_few128_strict, launch_strict64, launch_strict128, launch_strict256;
Launch launch_hd64_general, launch_hd128_general, launch_hd256_general;
// One feature alone.
Launch launch_hd64_alibi, launch_hd64_softcap, launch_hd64_bias, launch_hd64_dropout;
Launch launch_hd128_alibi, launch_hd128_softcap, launch_hd128_bias, launch_hd128_dropout;
Launch launch_hd256_alibi, launch_hd256_softcap, launch_hd256_bias;

}  // namespace headrace::cuda::sm90::fwd
