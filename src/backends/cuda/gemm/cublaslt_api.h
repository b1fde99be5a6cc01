// The part of cublasLt.h that is used: the header is no part of every toolkit. Values and layouts
// are those of CUDA 12 and 13; a test compares them with the header where there is one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::cuda::cublaslt {

using Handle = void*;
using Object = void*;  // a descriptor of a product, a layout or a preference
using Code = int;      // cublasStatus_t; 0: success

inline constexpr int kCompute32F = 68;  // CUBLAS_COMPUTE_32F
inline constexpr int kReal32F = 0, kReal16F = 2, kReal16BF = 14;
inline constexpr int kTransposed = 1;         // CUBLAS_OP_T
inline constexpr int kTransA = 3;             // CUBLASLT_MATMUL_DESC_TRANSA
inline constexpr int kMaxWorkspaceBytes = 1;  // CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
inline constexpr int kReductionSchemes = 3;   // CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK
inline constexpr int kMinAlignmentOfA = 5;    // ..._MIN_ALIGNMENT_A_BYTES; B, C and D are the next
// CUBLASLT_REDUCTION_SCHEME_INPLACE and _COMPUTE_TYPE: sums of split columns are floats.
inline constexpr std::uint32_t kFloatReductions = 1 | 2;
inline constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;  // NVIDIA's advice for Hopper

struct Algorithm {
  std::uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  std::size_t workspace_bytes;
  Code state;
  float waves;
  int reserved[4];
};

struct Api {
  Code (*create)(Handle* handle);
  Code (*destroy)(Handle handle);
  Code (*desc_create)(Object* desc, int compute_type, int scale_type);
  Code (*desc_set)(Object desc, int attribute, const void* value, std::size_t bytes);
  Code (*desc_destroy)(Object desc);
  Code (*layout_create)(Object* layout, int type, std::uint64_t rows, std::uint64_t columns,
                        std::int64_t leading);
  Code (*layout_destroy)(Object layout);
  Code (*preference_create)(Object* preference);
  Code (*preference_set)(Object preference, int attribute, const void* value, std::size_t bytes);
  Code (*preference_destroy)(Object preference);
  Code (*heuristic)(Handle handle, Object desc, Object a, Object b, Object c, Object d,
                    Object preference, int wanted, Heuristic* found, int* count);
  Code (*multiply)(Handle handle, Object desc, const void* alpha, const void* a, Object a_layout,
                   const void* b, Object b_layout, const void* beta, const void* c, Object c_layout,
                   void* d, Object d_layout, const Algorithm* algorithm, void* workspace,
                   std::size_t workspace_bytes, void* stream);
};

}  // namespace headrace::cuda::cublaslt
