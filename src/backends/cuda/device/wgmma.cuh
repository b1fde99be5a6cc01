// wgmma: a warpgroup (4 warps, the first warp index divisible by 4) multiplies 64 x 16 by 16 x N
// asynchronously, from shared memory. sm_90a.
//
// Accumulator of thread (warp w, g = lane / 4, t = lane % 4): d[4 i + 0], d[4 i + 1] at row
// 16 w + g, columns 8 i + 2t and 8 i + 2t + 1; d[4 i + 2], d[4 i + 3] eight rows below.
#pragma once

#include "backends/cuda/device/types.cuh"

namespace headrace::cuda {

// Matrix descriptor for shared memory under the 128-byte swizzle, as TMA writes it in boxes of 64
// elements (128 bytes) per row.
//   K-major:  a row of the box runs along k. The leading byte offset is ignored; 16 elements of k
//             are 32 bytes.
//   MN-major: a row runs along m or n, the rows of the box along k. The leading byte offset is the
//             distance between boxes of 64 columns; 16 elements of k are 2048 bytes.
__device__ __forceinline__ u64 wgmma_descriptor(u32 address, u32 leading_bytes) {
  constexpr u64 kSwizzle128 = 1ull << 62, kEightRows = 1024 >> 4;
  return kSwizzle128 | kEightRows << 32 | static_cast<u64>((leading_bytes & 0x3ffff) >> 4) << 16 |
         (address & 0x3ffff) >> 4;
}

// Advances a descriptor by `bytes`. Within shared memory the address field does not overflow.
__device__ __forceinline__ u64 wgmma_descriptor_advance(u64 descriptor, u32 bytes) {
  const u32 low = static_cast<u32>(descriptor) + (bytes >> 4);
  return (descriptor & 0xffffffff00000000ull) | low;
}

// Before the first wgmma, and after any write to registers that a wgmma reads or accumulates into.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// The compiler does not know that wgmma writes its registers later. After the wait this keeps reads
// of them behind it.
template <int kCount>
__device__ __forceinline__ void warpgroup_fence_operand(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

template <int kRows>
__device__ __forceinline__ void warpgroup_fence_operand(u32 (&a)[kRows][4]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) asm volatile("" : "+r"(a[i][j])::"memory");
}

struct Bf16 {};
struct F16 {};
enum class Major : int { k = 0, mn = 1 };

// WgmmaM64K16<Type, N>::ss<major of B>(d, descriptor of A, descriptor of B, scale_d): A from shared
// memory, K-major. ::rs<major of B>(d, a, descriptor of B, scale_d): A from registers, the four of
// a 16 x 16 fragment of mma.cuh in each warp. scale_d = 0 overwrites d.
template <class Type, int N>
struct WgmmaM64K16;

// ---- the table of widths
// Eight registers: operand numbers and constraints.
#define HEADRACE_N0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define HEADRACE_N1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define HEADRACE_N2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define HEADRACE_N3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define HEADRACE_N4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define HEADRACE_N5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define HEADRACE_N6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define HEADRACE_N7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define HEADRACE_N8 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define HEADRACE_N9 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define HEADRACE_N10 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define HEADRACE_N11 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define HEADRACE_N12 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define HEADRACE_N13 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define HEADRACE_N14 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define HEADRACE_N15 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define HEADRACE_D(i)                                                                             \
  "+f"(d[8 * i]), "+f"(d[8 * i + 1]), "+f"(d[8 * i + 2]), "+f"(d[8 * i + 3]), "+f"(d[8 * i + 4]), \
      "+f"(d[8 * i + 5]), "+f"(d[8 * i + 6]), "+f"(d[8 * i + 7])
// 8 x that many registers.
#define HEADRACE_N_2 HEADRACE_N0 HEADRACE_N1
#define HEADRACE_D_2 HEADRACE_D(0), HEADRACE_D(1)
#define HEADRACE_N_3 HEADRACE_N_2 HEADRACE_N2
#define HEADRACE_D_3 HEADRACE_D_2, HEADRACE_D(2)
#define HEADRACE_N_4 HEADRACE_N_3 HEADRACE_N3
#define HEADRACE_D_4 HEADRACE_D_3, HEADRACE_D(3)
#define HEADRACE_N_5 HEADRACE_N_4 HEADRACE_N4
#define HEADRACE_D_5 HEADRACE_D_4, HEADRACE_D(4)
#define HEADRACE_N_6 HEADRACE_N_5 HEADRACE_N5
#define HEADRACE_D_6 HEADRACE_D_5, HEADRACE_D(5)
#define HEADRACE_N_7 HEADRACE_N_6 HEADRACE_N6
#define HEADRACE_D_7 HEADRACE_D_6, HEADRACE_D(6)
#define HEADRACE_N_8 HEADRACE_N_7 HEADRACE_N7
#define HEADRACE_D_8 HEADRACE_D_7, HEADRACE_D(7)
#define HEADRACE_N_9 HEADRACE_N_8 HEADRACE_N8
#define HEADRACE_D_9 HEADRACE_D_8, HEADRACE_D(8)
#define HEADRACE_N_10 HEADRACE_N_9 HEADRACE_N9
#define HEADRACE_D_10 HEADRACE_D_9, HEADRACE_D(9)
#define HEADRACE_N_11 HEADRACE_N_10 HEADRACE_N10
#define HEADRACE_D_11 HEADRACE_D_10, HEADRACE_D(10)
#define HEADRACE_N_12 HEADRACE_N_11 HEADRACE_N11
#define HEADRACE_D_12 HEADRACE_D_11, HEADRACE_D(11)
#define HEADRACE_N_14 HEADRACE_N_12 HEADRACE_N12 HEADRACE_N13
#define HEADRACE_D_14 HEADRACE_D_12, HEADRACE_D(12), HEADRACE_D(13)
#define HEADRACE_N_16 HEADRACE_N_14 HEADRACE_N14 HEADRACE_N15
#define HEADRACE_D_16 HEADRACE_D_14, HEADRACE_D(14), HEADRACE_D(15)

// One width: N, N / 16, then the operand numbers after the N / 2 accumulators.
#define HEADRACE_WGMMA(type, ptx, n, eights, x0, x1, x2, x3, x4, x5, x6)                         \
  template <>                                                                                    \
  struct WgmmaM64K16<type, n> {                                                                  \
    template <Major kMajorB>                                                                     \
    static __device__ __forceinline__ void ss(float (&d)[n / 2], u64 a, u64 b, int scale_d) {    \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #x2                                      \
                   ", 0;\n"                                                                      \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." ptx "." ptx                 \
                   " {" HEADRACE_N_##eights "}, %" #x0 ", %" #x1 ", p, 1, 1, 0, %" #x3 ";\n}"    \
                   : HEADRACE_D_##eights                                                         \
                   : "l"(a), "l"(b), "r"(scale_d), "n"(static_cast<int>(kMajorB)));              \
    }                                                                                            \
    template <Major kMajorB>                                                                     \
    static __device__ __forceinline__ void rs(float (&d)[n / 2], const u32 (&a)[4], u64 b,       \
                                              int scale_d) {                                     \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #x5                                      \
                   ", 0;\n"                                                                      \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." ptx "." ptx                 \
                   " {" HEADRACE_N_##eights "}, {%" #x0 ", %" #x1 ", %" #x2 ", %" #x3 "}, %" #x4 \
                                            ", p, 1, 1, %" #x6 ";\n}"                            \
                   : HEADRACE_D_##eights                                                         \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(scale_d),           \
                     "n"(static_cast<int>(kMajorB)));                                            \
    }                                                                                            \
  }
#define HEADRACE_WGMMA_WIDTHS(type, ptx)                                 \
  HEADRACE_WGMMA(type, ptx, 32, 2, 16, 17, 18, 19, 20, 21, 22);          \
  HEADRACE_WGMMA(type, ptx, 48, 3, 24, 25, 26, 27, 28, 29, 30);          \
  HEADRACE_WGMMA(type, ptx, 64, 4, 32, 33, 34, 35, 36, 37, 38);          \
  HEADRACE_WGMMA(type, ptx, 80, 5, 40, 41, 42, 43, 44, 45, 46);          \
  HEADRACE_WGMMA(type, ptx, 96, 6, 48, 49, 50, 51, 52, 53, 54);          \
  HEADRACE_WGMMA(type, ptx, 112, 7, 56, 57, 58, 59, 60, 61, 62);         \
  HEADRACE_WGMMA(type, ptx, 128, 8, 64, 65, 66, 67, 68, 69, 70);         \
  HEADRACE_WGMMA(type, ptx, 144, 9, 72, 73, 74, 75, 76, 77, 78);         \
  HEADRACE_WGMMA(type, ptx, 160, 10, 80, 81, 82, 83, 84, 85, 86);        \
  HEADRACE_WGMMA(type, ptx, 176, 11, 88, 89, 90, 91, 92, 93, 94);        \
  HEADRACE_WGMMA(type, ptx, 192, 12, 96, 97, 98, 99, 100, 101, 102);     \
  HEADRACE_WGMMA(type, ptx, 224, 14, 112, 113, 114, 115, 116, 117, 118); \
  HEADRACE_WGMMA(type, ptx, 256, 16, 128, 129, 130, 131, 132, 133, 134)

HEADRACE_WGMMA_WIDTHS(Bf16, "bf16");
HEADRACE_WGMMA_WIDTHS(F16, "f16");

#undef HEADRACE_WGMMA_WIDTHS
#undef HEADRACE_WGMMA

}  // namespace headrace::cuda
