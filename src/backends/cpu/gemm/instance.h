// The matmuls of one instruction set: panels of rows with token tiles.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/gemm/layout.h"

namespace headrace::cpu::gemm {

// Panels [first_panel, last_panel) of one matrix with one token tile.
struct PanelCall {
  const std::byte* panels;  // of the matrix
  std::int64_t rows, columns;
  std::int64_t first_panel, last_panel;
  std::int64_t num_tokens;             // of the tile
  const ActivationGroup* activations;  // in blocks of tokens; for quantised panels
  const float* x;  // [num_tokens, columns]; for other panels. If `columns` counts pairs
                   // of bf16, a pair has the bits of a float
  std::int64_t x_stride;
  const float* bias;  // [rows], or null
  float* out;         // [num_tokens, rows]
  std::int64_t out_stride;
  bool add_to_out;
};
using PanelsFn = void (*)(const PanelCall& call);

// x [num_tokens, 32 * num_groups] -> for each block of kTokenBlock tokens (the last one may have
// fewer) [num_groups, tokens of the block]
using QuantiseFn = void (*)(const float* x, std::int64_t x_stride, std::int64_t num_tokens,
                            std::int64_t num_groups, ActivationGroup* to);

inline constexpr std::int64_t kTokenBlock = 4;

inline constexpr int kNumWeightTypes = 11;

struct Instance {
  int quantised_rows, float_rows;  // per panel
  QuantiseFn quantise;
  PanelsFn panels[kNumWeightTypes];  // by stored type
};

// Dot products of bf16 pairs. Panels and x have pairs of columns.
using RoundFn = void (*)(const float* x, std::int64_t columns, float* pairs);
struct PairProducts {
  int rows;       // per panel
  RoundFn round;  // one token; an odd last column is paired with 0
  PanelsFn panels;
};

// Tokens per tile: their activations and sums stay in the caches while panels are streamed.
inline constexpr std::int64_t kTokenTile = 64;
static_assert(kTokenTile % kTokenBlock == 0);

namespace scalar {
extern const Instance kInstance;
}
namespace avx2 {
extern const Instance kInstance;
}
namespace avx512vnni {
extern const Instance kInstance;
}
namespace avx512bf16 {
extern const PairProducts kPairs;
}
namespace neon {
extern const Instance kInstance;
}

}  // namespace headrace::cpu::gemm
