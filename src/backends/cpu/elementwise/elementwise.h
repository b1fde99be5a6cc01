// What a model does with rows of activations besides matrix products and attention: norms, rotary
// positions, SwiGLU, conversions.
//
// Every operator takes a range of rows, so that the caller splits rows among threads as it likes: a
// row's bits depend on nothing but the row, and are the same on every instruction set. Elements of
// a row are contiguous; strides count elements from row to row. No operator allocates or checks.
#pragma once

#include <cstdint>
#include <span>

#include "core/device.h"
#include "core/rope_table.h"

namespace headrace::cpu {

struct RowRange {  // rows [first, last)
  std::int64_t first, last;
};

// out = x * weight / sqrt(mean(x^2) + eps). In place where out == x and the strides agree. Squares
// are floats: beyond 1.8e19 they are infinite and the row's finite elements become 0.
struct RmsNorm {
  const float* x;
  std::int64_t x_stride;
  const float* weight;  // [width], or null: ones
  std::int64_t width;
  float eps;
  float* out;
  std::int64_t out_stride;
};

// Which elements of a head turn together.
enum class RopeLayout {
  interleaved,  // (2i, 2i + 1): GGUF files of llama
  halves,       // (i, i + rot_dim / 2): safetensors, most other GGUF files
};

// x [rows, num_heads, head_dim] -> out, the same shape. The first rot_dim elements of a head turn,
// (a, b) -> (a cos - b sin, b cos + a sin); the rest is copied. rot_dim 0 copies everything and
// needs neither table nor positions. In place where out == x, both f32, and the strides agree.
struct Rope {
  const float* x;
  std::int64_t x_stride, x_head_stride;
  void* out;
  DType out_dtype = DType::f32;  // f32, f16, bf16
  std::int64_t out_stride, out_head_stride;
  std::int64_t num_heads, head_dim, rot_dim;
  RopeLayout layout = RopeLayout::interleaved;
  const RopeTable* table = nullptr;         // of this rot_dim
  const std::int32_t* positions = nullptr;  // [rows], each within the table
};

// out = silu(gate) * up, silu(g) = g / (1 + exp(-g)) as a float, denormals too:
// at most 3.35 ulp from the exact value, measured over all floats.
// silu(-inf) is -0. In place where out is gate or up.
struct Swiglu {
  const float* gate;
  std::int64_t gate_stride;
  const float* up;
  std::int64_t up_stride;
  std::int64_t width;
  float* out;
  std::int64_t out_stride;
};

// out = x, of f32, f16 or bf16, as floats.
struct WidenRows {
  const void* x;
  DType x_dtype;
  std::int64_t x_stride;
  std::int64_t width;
  float* out;
  std::int64_t out_stride;
};

// Of sampling: logits that share a maximum, weights that share a sum.
inline constexpr std::int64_t kLogitBlock = 64;
inline constexpr std::int64_t kWeightBlock = 256;

// The operators, compiled for one instruction set.
struct ElementwiseOps {
  const char* name;
  std::uint32_t cpu_isa;  // headrace_cpu_isa bits that it needs
  void (*rms_norm)(const RmsNorm& call, RowRange rows);
  void (*rope)(const Rope& call, RowRange rows);
  void (*swiglu)(const Swiglu& call, RowRange rows);
  void (*widen)(const WidenRows& call, RowRange rows);
  // maxima[i] = the largest of the i-th kLogitBlock of x [n]. False where a value is NaN or
  // +infinity; the maxima pass over NaN.
  bool (*block_maxima)(const float* x, std::int64_t n, float* maxima);
  // out[i] = exp((x[i] - max) / temperature), 0 where that is below 2^-126; max is that of x and
  // finite. block_sums has the sum of every kWeightBlock of out, in double; returns their sum.
  double (*exp_weights)(const float* x, std::int64_t n, float max, float temperature, float* out,
                        double* block_sums);
};

// The fastest that the device runs.
const ElementwiseOps& elementwise_ops(const DeviceInfo& device);

// All of this build, the fastest first.
std::span<const ElementwiseOps* const> all_elementwise_ops();

}  // namespace headrace::cpu
