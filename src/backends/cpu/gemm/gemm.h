// Products of activations with weight matrices on the CPU: out[t, r] = sum_c w[r, c] * x[t, c].
//
// A weight matrix is packed once, when a model is loaded, into the layout of the machine's
// instruction set, and read in that layout ever after. Few tokens (decode) make a product bound by
// memory, many (prefill) by arithmetic; the bits of out[t, r] depend on neither the number of
// tokens beside t nor the thread count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/error.h"
#include "core/device.h"
#include "weights/weight_type.h"

namespace headrace::cpu {

enum class MatmulMode {
  normal,  // quantised weights meet activations of 8 bits (one scale for 32 of them), bf16 ones
           // activations in bf16 where the CPU multiplies those
  exact,   // weights as floats, products of floats
};

struct PackedMatrix {
  std::int64_t rows = 0, columns = 0;
  WeightType source = WeightType::f32;
  MatmulMode mode = MatmulMode::normal;
  std::uint32_t cpu_isa = 0;    // the layout belongs to it
  std::int64_t data_bytes = 0;  // of data
  std::shared_ptr<const std::byte> data;
};

// weights [rows, columns] in blocks of `type`, any alignment. Runs on all threads of the device.
// unsupported: columns that are no whole number of blocks. out_of_memory.
Result<PackedMatrix> pack_matrix(WeightType type, std::int64_t rows, std::int64_t columns,
                                 const std::byte* weights, MatmulMode mode,
                                 const DeviceInfo& device);

// One row as floats, out [columns]: the embedding of a token whose matrix is also the output's.
void unpack_row(const PackedMatrix& matrix, std::int64_t row, float* out);

// One input with several matrices of the same columns, as if their rows were stacked: Q, K and V
// are one product, gate and up another.
struct Product {
  std::span<const PackedMatrix* const> matrices;
  const float* bias = nullptr;  // [rows of all matrices], or null
  std::int64_t num_tokens;
  const float* x;         // [num_tokens, columns]
  std::int64_t x_stride;  // elements from token to token
  float* out;             // [num_tokens, rows of all matrices]
  std::int64_t out_stride;
  bool add_to_out = false;  // out += product: the residual stream
};

// Scratch of multiply(), any alignment: a pure function of the shapes, not falling in num_tokens.
std::size_t multiply_scratch_bytes(std::int64_t columns, std::int64_t num_tokens);

// No allocation. scratch: multiply_scratch_bytes(columns, num_tokens). Fails as parallel_for does.
[[nodiscard]] Status multiply(const Product& product, int num_threads, std::byte* scratch);

}  // namespace headrace::cpu
