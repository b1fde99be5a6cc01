// A call that is repeated: attention or a product, with the outputs of its first run.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "core/dtype.h"
#include "headrace/headrace.h"
#include "stress/device_work.h"

namespace headrace::testing {

// Throws std::runtime_error with CUDA's error name.
void require(cudaError_t error, const char* doing);
void require(const Status& status, const char* doing);

struct FreeOnDevice {
  void operator()(void* data) const { cudaFree(data); }
};
using DeviceMemory = std::unique_ptr<void, FreeOnDevice>;
DeviceMemory allocate(std::int64_t bytes);

std::int64_t bytes_of(DType dtype, std::int64_t count);
headrace_tensor on_device(headrace_tensor view);

// An output and its expected value.
struct Output {
  const char* name;
  headrace_tensor view;
  std::int64_t bytes, rows;
  int dim;
  bool has_fixed_bits;
  DeviceMemory got, expected;
  float largest;  // max |expected|, for sums in no fixed order
};
// Rows of `dim` elements. The shape and the dtype are those of `view`, the memory is new.
Output make_output(const char* name, headrace_tensor view, int dim, bool has_fixed_bits);
void poison(const Output& x);
// What the first call wrote is expected of the others.
void keep_as_expected(Output& x);
// "row 17 of out is off by 0.9 of its norm ..." if the first call is far from `exact`; else empty.
std::string compare_with_exact(const Output& x, const void* exact, DType dtype);

class RepeatedCall {
 public:
  static constexpr int kMostOutputs = 3;

  RepeatedCall() = default;
  RepeatedCall(const RepeatedCall&) = delete;
  virtual ~RepeatedCall() = default;

  virtual void run(cudaStream_t stream) = 0;
  // Compares all outputs, then poisons them and optionally what the call has written besides.
  // differences: one per output.
  virtual void compare(Difference* differences, bool poisons_all, cudaStream_t stream) = 0;
  // "65 words of out differ, the first at batch 3, row 17, head 2"; empty: none.
  std::string describe(const Difference* differences) const;

 protected:
  std::vector<Output> outputs_;
};

}  // namespace headrace::testing
