// wgmma of few columns, from shared memory: with the operands exchanged ("swap-AB") the rows of a
// product with few rows are its columns. sm_90a. Accumulators as in wgmma.cuh.
#pragma once

#include "backends/cuda/device/wgmma.cuh"

namespace headrace::cuda {

// Matrix descriptor without a swizzle, MN-major: core matrices of [8 of k, 8 of n], 128 contiguous
// bytes, at distances along k and along n.
__device__ __forceinline__ u64 wgmma_plain_descriptor(u32 address, u32 k_bytes, u32 n_bytes) {
  return static_cast<u64>(n_bytes >> 4) << 32 | static_cast<u64>(k_bytes >> 4) << 16 |
         (address & 0x3ffff) >> 4;
}

// WgmmaM64Few<Type, N>::ss<major of A, major of B>(d, descriptor of A, descriptor of B, scale_d).
// scale_d = 0 overwrites d.
template <class Type, int N>
struct WgmmaM64Few;

// Operand numbers: A, B, scale_d, majors of A and B.
#define HEADRACE_WGMMA_FEW(type, ptx, n, registers, a, b, scale, major_a, major_b, ...)         \
  template <>                                                                                   \
  struct WgmmaM64Few<type, n> {                                                                 \
    template <Major kMajorA, Major kMajorB>                                                     \
    static __device__ __forceinline__ void ss(float (&d)[n / 2], u64 of_a, u64 of_b,            \
                                              int scale_d) {                                    \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #scale                                  \
                   ", 0;\n"                                                                     \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." ptx "." ptx " {" registers \
                   "}, %" #a ", %" #b ", p, 1, 1, %" #major_a ", %" #major_b ";\n}"             \
                   : __VA_ARGS__                                                                \
                   : "l"(of_a), "l"(of_b), "r"(scale_d), "n"(static_cast<int>(kMajorA)),        \
                     "n"(static_cast<int>(kMajorB)));                                           \
    }                                                                                           \
  }
#define HEADRACE_WGMMA_FEW_WIDTHS(type, ptx)                                                 \
  HEADRACE_WGMMA_FEW(type, ptx, 8, "%0, %1, %2, %3", 4, 5, 6, 7, 8, "+f"(d[0]), "+f"(d[1]),  \
                     "+f"(d[2]), "+f"(d[3]));                                                \
  HEADRACE_WGMMA_FEW(type, ptx, 16, "%0, %1, %2, %3, %4, %5, %6, %7", 8, 9, 10, 11, 12,      \
                     "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
                     "+f"(d[6]), "+f"(d[7]))

HEADRACE_WGMMA_FEW_WIDTHS(Bf16, "bf16");
HEADRACE_WGMMA_FEW_WIDTHS(F16, "f16");

#undef HEADRACE_WGMMA_FEW_WIDTHS
#undef HEADRACE_WGMMA_FEW

}  // namespace headrace::cuda
