// Constants of the hardware, of the swizzle and of arithmetic that host and device code share.
#pragma once

#include <cstdint>

namespace headrace::cuda {

inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kLn2 = 0x1.62e43p-1f;

inline constexpr int kMinSm = 80;  // the oldest architecture with code in the library

// Dynamic shared memory of one CTA: sm_86 and sm_89 have the least, 99 KiB; sm_90 has 227 KiB.
inline constexpr int kSmemLimitSm86 = 99 * 1024;
inline constexpr int kSmemLimitSm90 = 227 * 1024;

inline constexpr std::int64_t kMaxGridX = (std::int64_t{1} << 31) - 1;

// The widest box of the 128-byte swizzle is a row of 64 elements of 16 bits. A tile in shared
// memory is a stack of such swizzle atoms, each [rows, 128 bytes].
inline constexpr int kSwizzleAtomCols = 64;
inline constexpr int kSwizzleRowBytes = 128;
constexpr int num_swizzle_atoms(int columns) {
  return (columns + kSwizzleAtomCols - 1) / kSwizzleAtomCols;
}

}  // namespace headrace::cuda
