// Products of up to 16 tokens on Hopper: the weights stream through shared memory once.
#pragma once

#include <algorithm>

#include "backends/cuda/gemm/params.h"

namespace headrace::cuda::gemm {

inline constexpr int kStreamRows = 16;      // of a tile: the height of mma.sync
inline constexpr int kStreamColumns = 128;  // of a stage
inline constexpr int kStreamWarps = 8;      // that multiply, a tile each at a time
inline constexpr int kStreamMaxTokens = 16;
inline constexpr int kStreamMaxStages = 16;
// So that two CTAs fit a multiprocessor: the next product loads its first stages while this one
// ends.
inline constexpr int kStreamRingBytes = 104 * 1024;

// The work of a launch. CTA i has tiles [i * count / ctas, (i + 1) * count / ctas), `group` of them
// at a time.
struct StreamPlan {
  int num_ctas, group;
  int stage_bytes, num_stages;
  int tokens;  // of a stage: 8 or 16

  static constexpr StreamPlan of(int num_tiles, std::int64_t num_tokens, int num_units) {
    StreamPlan s{};
    s.num_ctas = std::clamp(num_tiles, 1, std::max(num_units, 1));
    const int most = (num_tiles + s.num_ctas - 1) / s.num_ctas;  // tiles of a CTA
    const int rounds = (most + kStreamWarps - 1) / kStreamWarps;
    s.group = (most + rounds - 1) / rounds;
    s.tokens = num_tokens <= 8 ? 8 : 16;
    s.stage_bytes = (s.group * kStreamRows + s.tokens) * kStreamColumns * 2;
    s.num_stages = std::min(kStreamMaxStages, kStreamRingBytes / s.stage_bytes);
    return s;
  }
};

struct StreamParams {
  RowTiles tiles;
  Output out;
  StreamPlan plan;
  std::int32_t num_tokens, num_stage_loads;  // loads: stages that a row has
};

struct StreamCall {
  const StreamParams& params;
  const Maps& maps;
  DType dtype;
  Stream stream;
};
Status launch_stream(const StreamCall& call);

}  // namespace headrace::cuda::gemm
