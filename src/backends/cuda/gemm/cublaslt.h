// Products by cuBLASLt, which is loaded at run time: NVIDIA's library is neither linked nor needed.
// It chooses kernels, and with them the order of a row's sums, by the number of tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "backends/cuda/gemm/gemm.h"

namespace headrace::cuda {

class CublasLt;
struct FreeCublasLt {
  void operator()(CublasLt* library) const;
};
using OwnedCublasLt = std::unique_ptr<CublasLt, FreeCublasLt>;

// For one stream, which must outlive it. The first product allocates a workspace. unsupported: no
// libcublasLt.so of CUDA 13 or 12 can be loaded.
Result<OwnedCublasLt> make_cublaslt(int device_id);

inline constexpr std::string_view kCublasLtName = "cublaslt";

// The products that it takes; others are multiply()'s. Up to kWideTokens tokens multiply() is as
// fast, and its bias is float.
constexpr bool is_for_cublaslt(std::int64_t num_tokens, bool has_bias) {
  return num_tokens > gemm::kWideTokens && !has_bias;
}

// Enqueues a product for which is_for_cublaslt(), without SwiGLU, on a stream of the device.
// unsupported: as multiply(), and what cuBLASLt has no kernel for.
Status multiply_by_cublaslt(CublasLt& library, const Product& product, Stream stream);

}  // namespace headrace::cuda
