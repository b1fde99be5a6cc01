// The compiled kernels: a file for each tile and ScoreMod, with both dtypes.
#pragma once

#include "backends/cuda/runtime/kernel_image.h"
#include "backends/cuda/sm90/fwd/params.h"

namespace headrace::cuda::sm90::fwd {

using Kernels = KernelPair<Params, Maps>;

extern Kernels kernels_hd64, kernels_hd64_short, kernels_hd80, kernels_hd80_short, kernels_hd96,
    kernels_hd96_short, kernels_hd112, kernels_hd128, kernels_hd192v128, kernels_hd192,
    kernels_hd256;
extern Kernels kernels_few64, kernels_few128, kernels_few256, kernels_few128_alibi,
    kernels_few256_alibi, kernels_few128_softcap, kernels_few256_softcap, kernels_few128_general,
    kernels_few256_general;
extern Kernels kernels_transposed64_rows8, kernels_transposed64_rows16, kernels_transposed128_rows8,
    kernels_transposed128_rows16, kernels_transposed256_rows8, kernels_transposed256_rows16;
extern Kernels kernels_parts64_rows8, kernels_parts64_rows16, kernels_parts128_rows8,
    kernels_parts128_rows16;
extern Kernels kernels_few128_strict, kernels_strict64, kernels_strict128, kernels_strict256;
extern Kernels kernels_hd64_general, kernels_hd128_general, kernels_hd256_general;
// One feature alone.
extern Kernels kernels_hd64_alibi, kernels_hd64_softcap, kernels_hd64_bias, kernels_hd64_dropout;
extern Kernels kernels_hd128_alibi, kernels_hd128_softcap, kernels_hd128_bias,
    kernels_hd128_dropout;
extern Kernels kernels_hd256_alibi, kernels_hd256_softcap, kernels_hd256_bias;

}  // namespace headrace::cuda::sm90::fwd
