// Tensors of ordinary memory and calls of one kernel, for tests that compare bits.
#pragma once

#include <string>
#include <vector>

#include "conformance/runner.h"
#include "core/dtype.h"

namespace headrace::testing {

// A contiguous tensor: normal values, or an output.
struct PlainTensor {
  std::vector<unsigned char> bytes;
  headrace_tensor view;

  PlainTensor(DType dtype, std::initializer_list<std::int64_t> shape, Random* random = nullptr) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    bytes.resize(static_cast<std::size_t>(count) * dtype_bytes(dtype), kSentinelByte);
    view = TensorView(bytes.data(), dtype, shape);
    for (std::int64_t i = 0; random != nullptr && i < count; ++i)
      store_from_double(dtype, bytes.data(), i, random->normal());
  }
};

// Runs the call on a kernel; empty, or why it did not run.
inline std::string run_on(const Target& target, const headrace_attention_tensors& tensors,
                          const headrace_attention_options& options, int num_threads = 3) {
  Result<Call> call = make_call(tensors, options);
  if (!call.ok()) return call.failure().message;
  std::string refusal;
  const Status bad = run_call(target, call.value(), num_threads, &refusal);
  return bad ? bad->message : refusal;
}

}  // namespace headrace::testing
