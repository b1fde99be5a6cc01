// A valid call, for validation tests to break.
#pragma once

#include <algorithm>
#include <vector>

#include "attention/validate.h"

namespace headrace {

inline constexpr std::int64_t kBatch = 2, kSeqlenQ = 5, kSeqlenK = 7, kHeads = 4, kKvHeads = 2,
                              kDim = 8, kDimV = 6;

// A valid call with its buffers.
struct Call {
  std::vector<double> memory = std::vector<double>(1 << 16);
  std::size_t used = 0;
  headrace_attention_tensors t{};
  headrace_attention_options o = default_options();

  // A view of fresh memory, 64-byte aligned.
  TensorView fresh(DType dtype, std::initializer_list<std::int64_t> shape) {
    TensorView view(memory.data() + used, dtype, shape);
    used += static_cast<std::size_t>(view.num_elements() + 8) / 8 * 8;
    return view;
  }

  static Call dense(DType dtype = DType::f32) {
    Call call;
    call.t.struct_size = sizeof call.t;
    call.t.q = call.fresh(dtype, {kBatch, kSeqlenQ, kHeads, kDim});
    call.t.k = call.fresh(dtype, {kBatch, kSeqlenK, kKvHeads, kDim});
    call.t.v = call.fresh(dtype, {kBatch, kSeqlenK, kKvHeads, kDimV});
    call.t.out = call.fresh(dtype, {kBatch, kSeqlenQ, kHeads, kDimV});
    return call;
  }

  static Call ragged() {
    Call call;
    call.t.struct_size = sizeof call.t;
    call.t.q = call.fresh(DType::f32, {10, kHeads, kDim});
    call.t.k = call.fresh(DType::f32, {12, kKvHeads, kDim});
    call.t.v = call.fresh(DType::f32, {12, kKvHeads, kDimV});
    call.t.out = call.fresh(DType::f32, {10, kHeads, kDimV});
    call.t.cu_seqlens_q = call.fresh(DType::i32, {4});
    call.t.cu_seqlens_k = call.fresh(DType::i32, {4});
    call.set_lengths(call.t.cu_seqlens_q, {0, 3, 3, 10});
    call.set_lengths(call.t.cu_seqlens_k, {0, 5, 5, 12});
    call.o.max_seqlen_q = 7;
    call.o.max_seqlen_k = 7;
    return call;
  }

  // Of fresh memory, for the tensors of `t`.
  headrace_attention_gradients gradients() {
    const auto like = [this](const headrace_tensor& x) {
      headrace_tensor y = x;
      y.data = memory.data() + used;
      used += static_cast<std::size_t>(TensorView(x).num_elements() + 8) / 8 * 8;
      return y;
    };
    headrace_attention_gradients g{};
    g.struct_size = sizeof g;
    g.dout = like(t.out);
    g.dq = like(t.q);
    g.dk = like(t.k);
    g.dv = like(t.v);
    g.dlse = like(t.lse);
    g.dbias = like(t.bias);
    g.dsinks = like(t.sinks);
    return g;
  }

  static void set_lengths(const headrace_tensor& view, std::initializer_list<std::int32_t> values) {
    std::copy(values.begin(), values.end(), static_cast<std::int32_t*>(view.data));
  }

  // Checks shapes, then lengths, as a run does.
  Status check() const {
    Result<Problem> problem = validate(t, o);
    if (!problem.ok()) return problem.failure();
    return validate_lengths(problem.value(), make_args(problem.value(), t, o));
  }
};

}  // namespace headrace
