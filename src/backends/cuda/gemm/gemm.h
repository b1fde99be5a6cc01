// Products of activations with weight matrices on a GPU: out[t, r] = sum_c w[r, c] x[t, c].
//
// A product is summed in float by tensor cores, in steps of 16 columns from the first to the last.
// Products of few rows have two accumulators, which take the steps in turns and are added at the
// end (num_chains()). On Hopper wgmma and mma.sync give equal bits for equal steps, whichever
// operand is A, so the bits of out[t, r] depend neither on the number of tokens nor on the kernel
// that is chosen by it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/kernel.h"
#include "core/kv_append_args.h"

namespace headrace::cuda {

inline constexpr int kMaxStackedMatrices = 3;

namespace gemm {
inline constexpr int kStreamTokens = 16, kWideTokens = 128;  // the most of the kernels
inline constexpr std::int64_t kOneChainRows = 2400;          // the fewest with one: num_chains()
// From row to row of x in shared memory: stages of 256 columns, and 16 bytes that spread the rows
// over the banks.
constexpr std::int64_t row_pitch(std::int64_t columns) { return (columns + 255) / 256 * 512 + 16; }
// What a CTA of the stream kernel keeps there: 4096 columns of one token, 576 of six.
inline constexpr int kMaxRows = 8, kMaxRowColumns = 4096;
inline constexpr auto kRowBytes = static_cast<int>(6 * row_pitch(576));
constexpr bool has_few_rows(std::int64_t num_tokens, std::int64_t columns) {
  return num_tokens <= kMaxRows && columns <= kMaxRowColumns &&
         num_tokens * row_pitch(columns) <= kRowBytes;
}
}  // namespace gemm

enum class ProductKernel { stream, wide, tiles, portable };
constexpr ProductKernel product_kernel(std::int32_t sm, std::int64_t num_tokens) {
  if (sm != 90) return ProductKernel::portable;
  if (num_tokens <= gemm::kStreamTokens) return ProductKernel::stream;
  return num_tokens <= gemm::kWideTokens ? ProductKernel::wide : ProductKernel::tiles;
}
constexpr std::string_view name_of(ProductKernel kernel) {
  switch (kernel) {
    case ProductKernel::stream:
      return "cuda_sm90_gemm_stream";
    case ProductKernel::wide:
      return "cuda_sm90_gemm_wide";
    case ProductKernel::tiles:
      return "cuda_sm90_gemm_tiles";
    case ProductKernel::portable:
      return "cuda_gemm_portable";
  }
  return {};
}

// [rows, columns] in the memory of the device, rows contiguous. A product reads it before the
// kernel ahead on the stream has ended, so that kernel must not write it.
struct Matrix {
  const void* data;
  std::int64_t rows;
  bool operator==(const Matrix&) const = default;
};

// x * weight / sqrt(mean(x^2) + eps) takes the place of x, with the bits of rms_norm().
struct InputNorm {
  const float* weight = nullptr;  // [columns]; null: no norm
  float eps = 0;
  bool operator==(const InputNorm&) const = default;
};

struct Product {
  DType dtype;  // of weights and x: bf16 or f16
  // With equal columns, as if their rows were stacked: Q, K and V are one product. At most
  // kMaxStackedMatrices.
  std::span<const Matrix> matrices;
  std::int64_t columns;  // a multiple of 8
  std::int64_t num_tokens;
  const void* x;          // [num_tokens, columns]
  std::int64_t x_stride;  // elements between tokens, a multiple of 8
  const float* bias;      // [rows of all matrices], or null
  void* out;              // [num_tokens, rows of all matrices]
  DType out_dtype;        // dtype or f32
  std::int64_t out_stride;
  bool adds_to_out;  // out += result, for the residual stream
  // The matrices are gate and up, of equal rows; out = silu(gate) * up: [num_tokens, rows of one].
  bool has_swiglu = false;
  InputNorm norm = {};  // where takes_norm()
  // Where takes_append(): the matrices are Q, K and V, and RoPE and the append of their heads take
  // the place of writing out, with the bits of kv_append() behind the product. q, k and v of the
  // arguments need no data.
  const KvAppendArgs* append = nullptr;
};

// Whether a product of bf16 normalises its input faster than a kernel before it: a few tokens of
// few columns on Hopper, as every CTA does it.
constexpr bool takes_norm(std::int32_t sm, std::int64_t num_tokens, std::int64_t columns) {
  return product_kernel(sm, num_tokens) == ProductKernel::stream &&
         gemm::has_few_rows(num_tokens, columns);
}

// Whether a product appends heads of its dtype to a cache of that dtype: a few tokens on Hopper,
// whose heads rotate as a whole.
constexpr bool takes_append(std::int32_t sm, std::int64_t num_tokens, std::int64_t head_dim,
                            std::int64_t head_dim_v, std::int64_t rot_dim) {
  return product_kernel(sm, num_tokens) == ProductKernel::stream && head_dim % 16 == 0 &&
         head_dim_v == head_dim && rot_dim == head_dim;
}

// Accumulators of an element, each a chain of steps of 16 columns. A step waits 33 clocks for the
// one before it in its chain: 17.8 ns at 1.85 GHz. At 4.45 TB/s the memory needs as long for 16
// columns of 2 bytes of 2480 rows, however many columns there are. Products of fewer rows would
// wait for one chain and have two; the limit is rounded down. Bits depend on it, so it follows from
// the shape of a product alone: not from its tokens, nor from the device.
constexpr int num_chains(const Product& p) {
  std::int64_t rows = 0;
  for (const Matrix& matrix : p.matrices) rows += matrix.rows;
  return rows < gemm::kOneChainRows ? 2 : 1;
}

// Enqueues the product on `stream` of the device. unsupported: a dtype, an alignment (data
// and x: 16 bytes) or a size that is not as above.
Status multiply(const Product& product, const DeviceInfo& device, Stream stream);

}  // namespace headrace::cuda
