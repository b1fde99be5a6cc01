// What softmax.cc hands to the kernels of softmax on a GPU, and how it chooses among them.
#pragma once

#include <algorithm>

#include "base/math.h"
#include "core/kernel.h"
#include "core/softmax_args.h"

namespace headrace::cuda::softmax {

// Who computes a row. The short ones keep it in registers, so that memory is read once and written
// once; `streamed` ones read it again for every pass.
enum class Path {
  warp_short,
  warp_long,
  cta,
  cta_streamed,
  column,  // 32 neighbouring rows side by side, for an axis that is not the innermost one
  column_streamed,
};

// Elements of a row that one thread has in registers at a time.
struct Elements {
  int warp_short, warp_long, cta, streamed, column;
};
inline constexpr Elements kForwardElements{8, 32, 32, 16, 16};
inline constexpr Elements kBackwardElements{8, 16, 16, 8, 8};  // of y and as many of dy

inline constexpr int kWarp = 32;
inline constexpr int kWarpsOfCta = 4;       // warp paths: a row each
inline constexpr int kMaxThreads = 1024;    // cta path
inline constexpr int kStreamThreads = 512;  // cta_streamed path
inline constexpr int kColumnRows = 32;      // column paths: threads along x
inline constexpr int kColumnThreads = 16;   // of each row, along y
inline constexpr int kVectorBytes = 16;

struct Config {
  Path path;
  bool has_vectors;  // 16 bytes a load; else an element, and any stride
  int block_x, block_y;
  std::int64_t rows_of_cta;
};

// Pure: from the length of the rows and how they lie.
constexpr Config config_of(std::int64_t length, bool has_vectors, bool is_column,
                           const Elements& elements) {
  if (is_column) {
    const bool is_kept = length <= std::int64_t{kColumnThreads} * elements.column;
    return {is_kept ? Path::column : Path::column_streamed, false, kColumnRows, kColumnThreads,
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

// One file an element type.
Status forward_f32(const SoftmaxForwardArgs& args, const Config& config, Stream stream);
Status forward_f16(const SoftmaxForwardArgs& args, const Config& config, Stream stream);
Status forward_bf16(const SoftmaxForwardArgs& args, const Config& config, Stream stream);
Status backward_f32(const SoftmaxBackwardArgs& args, const Config& config, Stream stream);
Status backward_f16(const SoftmaxBackwardArgs& args, const Config& config, Stream stream);
Status backward_bf16(const SoftmaxBackwardArgs& args, const Config& config, Stream stream);

}  // namespace headrace::cuda::softmax
