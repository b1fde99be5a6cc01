// One instruction set's products: panels of rows with tiles of tokens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/gemm/layout.h"

namespace headrace::cpu::gemm {

// Panels [first_panel, last_panel) of one matrix with one tile of tokens.
struct PanelCall {
  const std::byte* panels;  // of the matrix
  std::int64_t rows, columns;
  std::int64_t first_panel, last_panel;
  std::int64_t num_tokens;             // of the tile
  const ActivationGroup* activations;  // in blocks of tokens; for quantised panels
  const float* x;  // [num_tokens, columns]; for the others. Where `columns` counts
                   // pairs of bf16, a pair is in the bits of a float
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
  int quantised_rows, float_rows;  // of a panel
  QuantiseFn quantise;
  PanelsFn panels[kNumWeightTypes];  // by the type that is stored
};

// Products of two bf16 at a time. A panel has pairs of columns, and so has x.
using RoundFn = void (*)(const float* x, std::int64_t columns, float* pairs);
struct PairProducts {
  int rows;       // of a panel
  RoundFn round;  // one token; an odd last column is paired with 0
  PanelsFn panels;
};

// Tokens of a tile: their activations and sums stay in the caches while panels stream by.
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
