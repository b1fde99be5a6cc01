// Products of 17 to 128 tokens on Hopper: the tokens are operand A, a tile of weight rows is B.
#pragma once

#include <algorithm>

#include "backends/cuda/gemm/params.h"
#include "base/math.h"

namespace headrace::cuda::gemm {

inline constexpr int kWideRows[] = {128, 112, 96, 64, 48, 32};  // of a tile
inline constexpr int kWideGroupTokens = 64;                     // of a warpgroup
// One CTA fits a multiprocessor: with half of it, the stages of a small tile hold too few weights
// for the latency of the memory, because most of a stage is tokens.
inline constexpr int kWideRingBytes = 208 * 1024;
inline constexpr int kWideMaxStages = 24;

// The work of a launch: CTA i computes the tiles i, i + num_ctas, ...
struct WidePlan {
  int groups;      // warpgroups that multiply: 1 or 2
  int rows;        // of a tile
  int box_tokens;  // that are loaded, a multiple of 8
  int num_ctas;
  int stage_bytes, num_stages;
  int num_stage_loads;  // stages that a row of weights has

  static constexpr WidePlan of(const Product& p, int num_units) {
    WidePlan plan{};
    plan.groups = p.num_tokens <= kWideGroupTokens ? 1 : 2;
    plan.box_tokens = static_cast<int>(round_up<std::int64_t>(p.num_tokens, 8));
    // The tiles for which a multiprocessor loads least: each needs all tokens.
    const int units = std::max(num_units, 1);
    int least = INT_MAX;
    for (const int rows : kWideRows) {
      const int count = RowTiles::of(p, rows).count;
      const int loads = ceil_div(count, units) * (rows + plan.box_tokens);
      if (loads >= least) continue;
      least = loads;
      plan.rows = rows;
      plan.num_ctas = std::min(count, units);
    }
    plan.stage_bytes = (plan.rows + plan.box_tokens) * kSwizzleRowBytes;
    // Operand A has 64 rows. Those that are no tokens are read from what follows the box.
    const int read_behind = (plan.groups * kWideGroupTokens - plan.box_tokens) * kSwizzleRowBytes;
    plan.num_stages = std::min(kWideMaxStages, (kWideRingBytes - read_behind) / plan.stage_bytes);
    plan.num_stage_loads = static_cast<int>(ceil_div<std::int64_t>(p.columns, kSwizzleAtomCols));
    return plan;
  }
};

struct WideParams {
  RowTiles tiles;
  Output out;
  WidePlan plan;
  std::int32_t num_tokens, num_chains;
};

struct WideCall {
  const WideParams& params;
  const Maps& maps;  // boxes of plan.rows and plan.box_tokens
  Stream stream;
};
Status launch_wide_bf16(const WideCall& call);
Status launch_wide_f16(const WideCall& call);

}  // namespace headrace::cuda::gemm
