/// @file
/// What a step of a language model costs, for C++20: a header-only wrapper of step.h.
///
///   const headrace::ModelFile file("model.gguf");
///   for (const auto& cost : headrace::explain_step(file, {.seqlen_k = 4096},
///   headrace::cpu_info()))
///     std::cout << cost.name << ' ' << cost.bytes << '\n';
#pragma once

#include "headrace/model.hpp"
#include "headrace/step.h"

namespace headrace {
inline namespace v0 {

/// All calls of an operator in a step.
struct OperatorCost {
  std::string name;            ///< "linear qkv"
  std::string kernel;          ///< "cuda_sm90_decode"
  std::int64_t num_calls = 0;  ///< calls in the step
  double bytes = 0;            ///< of inputs and outputs, each once
  double flops = 0;            ///< of products and attention
  double seconds = 0;          ///< of all calls: time_step(); 0: not measured
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

namespace detail {
struct OwnedStep {
  explicit OwnedStep(headrace_step* made) : step(made) {}
  std::vector<OperatorCost> costs() const {
    std::vector<OperatorCost> list;
    for (std::int64_t i = 0; i < headrace_step_count(step.get()); ++i) {
      headrace_operator_cost cost{};
      cost.struct_size = sizeof cost;
      check(headrace_step_get(step.get(), i, &cost));
      list.push_back({.name = cost.name,
                      .kernel = cost.kernel,
                      .num_calls = cost.num_calls,
                      .bytes = cost.bytes,
                      .flops = cost.flops,
                      .seconds = cost.seconds});
    }
    return list;
  }
  std::unique_ptr<headrace_step, Destroy<headrace_step_destroy>> step;
};
}  // namespace detail

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
  return detail::OwnedStep(made).costs();
}

/// Where the time of a step goes.
struct StepTimes {
  std::vector<OperatorCost> operators;  ///< with seconds: what the step takes longer with each
  double seconds = 0;                   ///< of the whole step
};

/// Times a step that appends num_tokens arbitrary tokens to the session, num_rounds times, in turn
/// with steps without one of its operators (headrace_session_time_step()). The session does not
/// change. Throws Error: HEADRACE_INVALID_ARGUMENT, HEADRACE_UNSUPPORTED (SparQ attention),
/// HEADRACE_OUT_OF_MEMORY.
inline StepTimes time_step(Session& session, std::int64_t num_tokens = 1,
                           std::int64_t num_rounds = 20) {
  headrace_step* made = nullptr;
  check(headrace_session_time_step(session.get(), num_tokens, num_rounds, &made));
  const detail::OwnedStep step(made);
  return {step.costs(), headrace_step_seconds(made)};
}

}  // namespace v0
}  // namespace headrace
