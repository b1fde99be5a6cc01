// A product on the device: its operands and the result of its first call.
#pragma once

#include <vector>

#include "core/device.h"
#include "stress/product_case.h"
#include "stress/repeated_call.h"

namespace headrace::testing {

class ProductCall final : public RepeatedCall {
 public:
  // Runs once and keeps the output as the expected one.
  ProductCall(const ProductCase& c, const DeviceInfo& device);

  // x is written anew before each product, by a kernel that lets the product begin early.
  void run(cudaStream_t stream) override;
  void compare(Difference* differences, bool poisons_all, cudaStream_t stream) override;

  // Compares the first output with the definition in double; empty: no wrong row.
  std::string compare_with_definition() const;

 private:
  // The heads of the result as a call of kv_append() that stores them in place.
  KvAppendArgs append_args() const;

  const ProductCase& case_;
  DeviceInfo device_;
  DeviceMemory x_source_, order_, x_, weights_, old_, bias_, norm_, cos_, sin_, slots_;
  std::vector<cuda::Matrix> matrices_;
  KvAppendArgs append_{};
  cuda::Product product_{};
};

}  // namespace headrace::testing
