// Launches of the softmax kernels and the choice among them.
#pragma once

#include <algorithm>

#include "base/math.h"
#include "core/kernel.h"
#include "core/softmax_args.h"

namespace headrace::cuda::softmax {

// Which threads compute a row. Without `streamed` the row stays in registers: memory is read once
// and written once. With it every pass reads the row again.
enum class Path {
  warp_short,
  warp_long,
  cta,
  cta_streamed,
  column,  // 32 adjacent rows per CTA, for an axis that is not the innermost
  column_streamed,
};

// Elements of a row per thread, in registers.
struct Elements {
  int warp_short, warp_long, cta, streamed, column;
};
inline constexpr Elements kForwardElements{8, 32, 32, 16, 16};
inline constexpr Elements kBackwardElements{8, 16, 16, 8, 8};  // of y, and as many of dy

inline constexpr int kWarp = 32;
inline constexpr int kWarpsOfCta = 4;       // warp paths: one row per warp
inline constexpr int kMaxThreads = 1024;    // cta path
inline constexpr int kStreamThreads = 512;  // cta_streamed path
inline constexpr int kColumnRows = 32;      // column paths: rows of a CTA, threadIdx.x
inline constexpr int kColumnThreads = 16;   // column paths: threads of a row, threadIdx.y
inline constexpr int kVectorBytes = 16;

struct Config {
  Path path;
  bool has_vectors;  // 16-byte accesses; else single elements of any stride
  int block_x, block_y;
  std::int64_t rows_of_cta;
};

// A pure function of length and layout of the rows.
constexpr Config config_of(std::int64_t length, bool has_vectors, bool is_column,
                           const Elements& elements) {
  if (is_column) {
    const bool in_registers = length <= std::int64_t{kColumnThreads} * elements.column;
    return {in_registers ? Path::column : Path::column_streamed, false, kColumnRows, kColumnThreads,
            kColumnRows};
  }
  if (length <= kWarp * elements.warp_long)
    return {length <= kWarp * elements.warp_short ? Path::warp_short : Path::warp_long, has_vectors,
            kWarp * kWarpsOfCta, 1, kWarpsOfCta};
  if (length <= std::int64_t{kMaxThreads} * elements.cta) {
    const auto threads = static_cast<int>(ceil_div<std::int64_t>(length, elements.cta));
    return {Path::cta, has_vectors, round_up(threads, kWarp), 1, 1};
  }
  return {Path::cta_streamed, has_vectors, kStreamThreads, 1, 1};
}

// One translation unit per element type.
Status forward_f32(const SoftmaxForwardArgs& args, const Config& config, Stream stream);
Status forward_f16(const SoftmaxForwardArgs& args, const Config& config, Stream stream);
Status forward_bf16(const SoftmaxForwardArgs& args, const Config& config, Stream stream);
Status backward_f32(const SoftmaxBackwardArgs& args, const Config& config, Stream stream);
Status backward_f16(const SoftmaxBackwardArgs& args, const Config& config, Stream stream);
Status backward_bf16(const SoftmaxBackwardArgs& args, const Config& config, Stream stream);

}  // namespace headrace::cuda::softmax
