/// @file
/// What a step of a language model costs, for C++20: a header-only wrapper of a part of model.h.
///
///   const headrace::ModelFile file("model.gguf");
///   for (const auto& cost : headrace::explain_step(file, {.seqlen_k = 4096},
///   headrace::cpu_info()))
///     std::cout << cost.name << ' ' << cost.bytes << '\n';
#pragma once

#include "headrace/model.hpp"

namespace headrace {
inline namespace v0 {

/// All calls of an operator in a step.
struct OperatorCost {
  std::string name;            ///< "linear qkv"
  std::string kernel;          ///< of attention; "": one kernel, or chosen by the number of tokens
  std::int64_t num_calls = 0;  ///< calls in the step
  double bytes = 0;            ///< of inputs and outputs, each once
  double flops = 0;            ///< of products and attention
};

/// A step of a model on sequences of equal lengths.
struct StepShape {
  std::int64_t num_seqs = 1;       ///< sequences
  std::int64_t seqlen_q = 1;       ///< tokens of each in this step: 1 in decode
  std::int64_t seqlen_k = 1;       ///< tokens of each after this step
  DType cache_dtype = DType::f16;  ///< of the KV cache: f16, bf16 or f32
  std::optional<DType> k_dtype{};  ///< of stored keys: codes; empty: cache_dtype
  std::optional<DType> v_dtype{};  ///< the same of stored values
};

/// What a step costs on a device, which need not be present. Throws
/// Error(HEADRACE_INVALID_ARGUMENT).
inline std::vector<OperatorCost> explain_step(const ModelFile& file, const StepShape& shape,
                                              const DeviceInfo& device) {
  headrace_step_shape c{};
  c.struct_size = sizeof c;
  c.num_seqs = shape.num_seqs;
  c.seqlen_q = shape.seqlen_q;
  c.seqlen_k = shape.seqlen_k;
  c.cache_dtype = static_cast<std::int32_t>(shape.cache_dtype);
  if (shape.k_dtype) c.k_dtype = static_cast<std::int32_t>(*shape.k_dtype);
  if (shape.v_dtype) c.v_dtype = static_cast<std::int32_t>(*shape.v_dtype);
  headrace_step* made = nullptr;
  check(headrace_step_explain(file.get(), &c, &device, &made));
  const std::unique_ptr<headrace_step, detail::Destroy<headrace_step_destroy>> step(made);
  std::vector<OperatorCost> costs;
  for (std::int64_t i = 0; i < headrace_step_count(made); ++i) {
    headrace_operator_cost cost{};
    cost.struct_size = sizeof cost;
    check(headrace_step_get(made, i, &cost));
    costs.push_back({cost.name, cost.kernel, cost.num_calls, cost.bytes, cost.flops});
  }
  return costs;
}

}  // namespace v0
}  // namespace headrace
