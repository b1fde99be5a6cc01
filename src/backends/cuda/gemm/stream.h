// Products of up to 16 tokens on Hopper: the weights stream through shared memory once.
#pragma once

#include <algorithm>

#include "backends/cuda/gemm/params.h"
#include "base/math.h"

namespace headrace::cuda::gemm {

inline constexpr int kStreamTileRows = 16;  // of weights, by a warp
inline constexpr int kStreamAtoms = 2;      // of a stage, 64 columns each
inline constexpr int kStreamColumns = kStreamAtoms * kSwizzleAtomCols;
inline constexpr int kStreamRowBytes = kStreamAtoms * kSwizzleRowBytes;
inline constexpr int kStreamTileBytes = kStreamTileRows * kStreamRowBytes;
// Tiles that a CTA computes at a time. With four of them the ring has at least five stages; with
// seven it had three, of which a warp holds one, and large matrices came at 92 % of the bandwidth.
inline constexpr int kStreamMaxTiles = 4;
// Two CTAs fit a multiprocessor, so that the next product loads its first stages while this one
// ends.
inline constexpr int kStreamRingBytes = 104 * 1024;
inline constexpr int kStreamCtasPerSm = 2;
inline constexpr int kStreamMaxStages = 16;

// With a norm each CTA has all rows of x in shared memory, behind a ring that holds weights alone:
// six stages of four tiles.
inline constexpr int kStreamNormRingBytes = 96 * 1024;
static_assert(norm_pitch(kStreamColumns + 8) == 2 * kStreamRowBytes + 16);

// The work of a launch. CTA i has tiles [i * count / ctas, (i + 1) * count / ctas), `group` of them
// at a time.
struct StreamPlan {
  int num_ctas, group;
  int stage_bytes, num_stages;
  int tokens;           // of a stage
  int num_stage_loads;  // stages that a row of weights has

  static constexpr StreamPlan of(int num_tiles, std::int64_t columns, int tokens, int num_units,
                                 bool has_norm) {
    StreamPlan s{};
    s.num_ctas = std::clamp(num_tiles, 1, std::max(num_units, 1) * kStreamCtasPerSm);
    const int most = ceil_div(num_tiles, s.num_ctas);  // tiles of a CTA
    s.group = ceil_div(most, ceil_div(most, kStreamMaxTiles));
    s.tokens = tokens;
    s.stage_bytes = (s.group * kStreamTileRows + (has_norm ? 0 : tokens)) * kStreamRowBytes;
    const int ring_bytes = has_norm ? kStreamNormRingBytes : kStreamRingBytes;
    s.num_stages = std::min(kStreamMaxStages, ring_bytes / s.stage_bytes);
    s.num_stage_loads = static_cast<int>(ceil_div<std::int64_t>(columns, kStreamColumns));
    return s;
  }
};

struct StreamParams {
  RowTiles tiles;
  Output out;
  StreamPlan plan;
  std::int32_t num_tokens, num_chains;
  // With a norm alone, when maps.x is not used.
  InputNorm norm;
  const void* x;
  std::int64_t x_stride;
  std::int32_t columns, norm_pitch;
};

struct StreamCall {
  const StreamParams& params;
  const Maps& maps;
  DType dtype;
  Stream stream;
};
// plan.tokens: 8 or 16.
Status launch_stream(const StreamCall& call);

}  // namespace headrace::cuda::gemm
