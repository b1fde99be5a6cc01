// The compiled kernels: a file for each tile and kind, with both dtypes.
#pragma once

#include "backends/cuda/runtime/kernel_image.h"
#include "backends/cuda/sm90/bwd/params.h"

namespace headrace::cuda::sm90::bwd {

// is_fixed: dQ is summed in fixed point. is_general: softcap, ALiBi, bias.
struct Kind {
  bool is_general, is_fixed;
};

using Kernels = KernelPair<Params, Maps>;

extern Kernels kernels_hd64, kernels_hd128, kernels_hd192v128, kernels_hd192, kernels_hd256;
extern Kernels kernels_hd64_fixed, kernels_hd128_fixed, kernels_hd192v128_fixed,
    kernels_hd192_fixed, kernels_hd256_fixed;
extern Kernels kernels_hd64_general, kernels_hd128_general, kernels_hd256_general;
extern Kernels kernels_hd64_general_fixed, kernels_hd128_general_fixed, kernels_hd256_general_fixed;

}  // namespace headrace::cuda::sm90::bwd
