// Products on any GPU from sm_80: mma.sync and cp.async.
#pragma once

#include "backends/cuda/gemm/params.h"

namespace headrace::cuda::gemm {

inline constexpr int kPortableTokens = 64, kPortableRows = 64;  // of a tile

struct PortableParams {
  RowTiles tiles;
  Output out;
  const void* w[kMaxStackedMatrices];
  const void* x;
  std::int64_t x_stride;
  std::int32_t num_tokens, columns, num_chains;
};

struct PortableCall {
  const PortableParams& params;
  DType dtype;
  Stream stream;
};
Status launch_portable(const PortableCall& call);

}  // namespace headrace::cuda::gemm
