// Parameters of the backward kernels.
#pragma once

#include "backends/cuda/simple/params.h"

namespace headrace::cuda::simple::bwd {

// An element of dbias; broadcast axes have index 0.
struct BiasIndex {
  std::int64_t batch, head, row, key;
};
// [batch, heads, rows, keys]; a broadcast axis has size 1. Ragged: rows of all sequences.
struct BiasShape {
  std::int64_t batch, heads, rows, keys;
  constexpr std::int64_t count() const { return batch * heads * rows * keys; }
  constexpr BiasIndex index(std::int64_t idx) const {
    return {idx / keys / rows / heads, idx / keys / rows % heads, idx / keys % rows, idx % keys};
  }
};

struct BackwardParams {
  Params forward;         // num_rows: query rows
  std::int64_t num_keys;  // batch * num_kv_heads * (longest) seqlen_k
  std::int64_t num_ctas;  // upper bound of the grid
  BiasShape bias_shape;   // all 0 without dbias
  void* d;                // [batch, num_heads, seqlen_q], float or double
};

// One translation unit per element type.
Status launch_backward_f32(const BackwardParams& params, Stream stream);
Status launch_backward_f16(const BackwardParams& params, Stream stream);
Status launch_backward_bf16(const BackwardParams& params, Stream stream);
Status launch_backward_f64(const BackwardParams& params, Stream stream);

}  // namespace headrace::cuda::simple::bwd
