// The compiled variants of the Hopper forward, and which one a problem has.
#pragma once

#include "backends/cuda/sm90/fwd/config.h"
#include "backends/cuda/sm90/fwd/launch.h"
#include "core/problem.h"

namespace headrace::cuda::sm90::fwd {

struct TileVariant {
  Tile tile;
  Launch* launch;
  ScoreMod scores = ScoreMod::plain;
};
// Smaller tiles for short sequences, up to this many queries without and with a causal mask.
struct ShortVariant {
  Launch* instead_of;
  TileVariant variant;
  std::int64_t most_queries, most_queries_causal;
};

// That of long sequences; null above 256.
const TileVariant* long_variant_of(const Problem& p);
// Of few rows, the queries and heads of a KV head together, whatever the batch: longer prompts have
// tiles enough. Where rows of a prompt must have the bits of all (strict_rows, num_splits=1) they
// have its tiles. Null: those.
const TileVariant* few_rows_variant_of(const Problem& p);
// Null: there is none.
const ShortVariant* short_variant_of(const TileVariant* v);
// Null above 256. `tile_m`: that of a TuningConfig.
const TileVariant* variant_of(const Problem& p, std::int32_t tile_m = 0);

}  // namespace headrace::cuda::sm90::fwd
