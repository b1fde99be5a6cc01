// What backward.cc hands to the backward kernels of simple/.
#pragma once

#include "backends/cuda/simple/params.h"

namespace headrace::cuda::simple::bwd {

// An element of dbias; axes that broadcast have index 0.
struct BiasIndex {
  std::int64_t batch, head, row, key;
};
// [batch, heads, rows, keys], 1 where the axis broadcasts. Ragged: rows of all sequences.
struct BiasShape {
  std::int64_t batch, heads, rows, keys;
  constexpr std::int64_t count() const { return batch * heads * rows * keys; }
  constexpr BiasIndex index(std::int64_t idx) const {
    return {idx / keys / rows / heads, idx / keys / rows % heads, idx / keys % rows, idx % keys};
  }
};

struct BackwardParams {
  Params forward;         // num_rows: of queries
  std::int64_t num_keys;  // batch * num_kv_heads * (longest) seqlen_k
  std::int64_t num_ctas;  // at most
  BiasShape bias_shape;   // without dbias all 0
  void* d;                // [batch, num_heads, seqlen_q], float or double
};

// One file an element type.
Status launch_backward_f32(const BackwardParams& params, Stream stream);
Status launch_backward_f16(const BackwardParams& params, Stream stream);
Status launch_backward_bf16(const BackwardParams& params, Stream stream);
Status launch_backward_f64(const BackwardParams& params, Stream stream);

}  // namespace headrace::cuda::simple::bwd
