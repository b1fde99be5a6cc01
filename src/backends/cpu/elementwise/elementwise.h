// A model's operators on rows of activations besides matmuls and attention: norms, RoPE, SwiGLU,
// conversions, the merge of attention states.
//
// Every operator takes a range of rows, so that the caller can split rows among threads. A row's
// bits depend only on the row and are the same on every instruction set. Elements of a row are
// contiguous; strides between rows are in elements. No operator allocates or checks its arguments.
#pragma once

#include <cstdint>
#include <span>

#include "core/device.h"
#include "core/kv_append_args.h"
#include "core/merge_states_args.h"
#include "core/quantise.h"

namespace headrace::cpu {

struct RowRange {  // rows [first, last)
  std::int64_t first, last;
};

// out = x * weight / sqrt(mean(x^2) + eps). In place if out == x and the strides agree. Squares are
// floats: for |x| beyond 1.8e19 they are infinite and the row's finite elements become 0.
struct RmsNorm {
  const float* x;
  std::int64_t x_stride;
  const float* weight;  // [width], or null: ones
  std::int64_t width;
  float eps;
  float* out;
  std::int64_t out_stride;
};

// out = silu(gate) * up, silu(g) = g / (1 + exp(-g)) in float, including denormals: the error is at
// most 3.35 ulp, measured over all floats. silu(-inf) is -0. In place if out is gate or up.
struct Swiglu {
  const float* gate;
  std::int64_t gate_stride;
  const float* up;
  std::int64_t up_stride;
  std::int64_t width;
  float* out;
  std::int64_t out_stride;
};

// out = x, converted from f32, f16 or bf16 to float.
struct WidenRows {
  const void* x;
  DType x_dtype;
  std::int64_t x_stride;
  std::int64_t width;
  float* out;
  std::int64_t out_stride;
};

// The operators, compiled for one instruction set.
struct ElementwiseOps {
  const char* name;
  std::uint32_t cpu_isa;  // required headrace_cpu_isa bits
  void (*rms_norm)(const RmsNorm& call, RowRange rows);
  void (*swiglu)(const Swiglu& call, RowRange rows);
  void (*widen)(const WidenRows& call, RowRange rows);
  // The rows are the tokens of an append (core/kv_append_args.h), whose positions and slots are
  // checked.
  void (*kv_append)(const KvAppendArgs& args, RowRange tokens);
  // The groups of keys with zero points that end with these tokens, after all were appended.
  void (*quantise_groups)(const KvAppendArgs& args, RowRange tokens);
  // The rows of a merge of attention states (core/merge_states_args.h).
  void (*merge_states)(const MergeStatesArgs& args, RowRange rows);
};

// The fastest operators that the device supports.
const ElementwiseOps& elementwise_ops(const DeviceInfo& device);

// All of this build, the fastest first.
std::span<const ElementwiseOps* const> all_elementwise_ops();

}  // namespace headrace::cpu
