// Matmuls of activations with weight matrices on the CPU: out[t, r] = sum_c w[r, c] * x[t, c].
//
// A weight matrix is packed once, when a model is loaded, into the layout of the machine's
// instruction set. With few tokens (decode) a matmul is memory-bound, with many (prefill)
// compute-bound. The bits of out[t, r] depend neither on the other tokens nor on the thread count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"
#include "core/device.h"
#include "weights/weight.h"

namespace headrace::cpu {

// weights [rows, columns] in blocks of `type`, any alignment. Runs on all threads of the device.
// unsupported: columns are not a whole number of blocks. out_of_memory.
Result<Weight> pack_matrix(WeightType type, std::int64_t rows, std::int64_t columns,
                           const std::byte* weights, MatmulMode mode, const DeviceInfo& device);

// One row as floats, out [columns]: a token's embedding, if the matrix is tied to the output's.
void unpack_row(const Weight& matrix, std::int64_t row, float* out);

// One input with several matrices of equal columns, as if their rows were stacked: Q, K and V are
// one matmul, gate and up another.
struct Product {
  std::span<const Weight> matrices;
  const float* bias = nullptr;  // [rows of all matrices], or null
  std::int64_t num_tokens;
  const float* x;         // [num_tokens, columns]
  std::int64_t x_stride;  // elements between tokens
  float* out;             // [num_tokens, rows of all matrices]
  std::int64_t out_stride;
  bool add_to_out = false;  // out += result, for the residual stream
};

// Scratch size of multiply(), any alignment: a function of the shapes, non-decreasing in
// num_tokens.
std::size_t multiply_scratch_bytes(std::int64_t columns, std::int64_t num_tokens);

// "cpu_avx2_gemm": of matrices of a type that pack_matrix() packs on a CPU with these instruction
// sets.
std::string product_kernel(std::uint32_t cpu_isa, WeightType type, MatmulMode mode);

// Allocates nothing. scratch: multiply_scratch_bytes(columns, num_tokens). Fails like parallel_for.
[[nodiscard]] Status multiply(const Product& product, int num_threads, std::byte* scratch);

}  // namespace headrace::cpu
