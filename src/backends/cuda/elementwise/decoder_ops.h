// Operators of a decoder between its products and attention, on bf16 rows of device memory. Widths
// are multiples of 8 and rows aligned to 16 bytes, as in the products beside them (gemm/gemm.h).
#pragma once

#include <cstdint>

#include "base/error.h"
#include "core/dtype.h"
#include "core/kernel.h"

namespace headrace::cuda {

// out[i] = x[rows[i]]; a row below 0 is drawn[-1 - row].
struct GatherRows {
  const void* x;             // [*, width]
  const std::int32_t* rows;  // [num_rows], rows of x
  void* out;                 // [num_rows, width]
  std::int64_t num_rows, width;
  const std::int32_t* drawn = nullptr;  // null: no row is below 0
};
Status gather_rows(const GatherRows& call, int device_id, Stream stream);

// cos[i, pair], sin[i, pair] of the angle positions[i] * frequencies[pair] (core/rope.h).
struct RopeAngles {
  const std::int32_t* positions;  // [num_tokens]
  const double* frequencies;      // [num_pairs]
  float *cos, *sin;               // [num_tokens, num_pairs]
  std::int64_t num_tokens, num_pairs;
};
Status rope_angles(const RopeAngles& call, int device_id, Stream stream);

// out = x * weight / sqrt(mean(x^2) + eps). In place if out is x. The order of the sum depends on
// the width alone.
struct RmsNorm {
  const void* x;        // [num_rows, width]
  const float* weight;  // that no kernel before on the stream writes, aligned to 16 bytes
  float eps;
  void* out;
  std::int64_t num_rows, width;
};
Status rms_norm(const RmsNorm& call, int device_id, Stream stream);

// out = silu(gate) * up.
struct SwiGlu {
  const void* gate_up;  // [num_rows, 2 * width]
  void* out;            // [num_rows, width]
  std::int64_t num_rows, width;
};
Status swiglu(const SwiGlu& call, int device_id, Stream stream);

// Rounds f16 or f32 elements to bf16.
struct ToBf16 {
  const void* x;
  DType dtype;
  void* out;
  std::int64_t num_elements;  // a multiple of 8
};
Status to_bf16(const ToBf16& call, int device_id, Stream stream);

}  // namespace headrace::cuda
