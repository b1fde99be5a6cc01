// The compiled variants of the Hopper forward, and which one a problem has.
#pragma once

#include "backends/cuda/sm90/fwd/config.h"
#include "backends/cuda/sm90/fwd/kernels.h"
#include "core/problem.h"

namespace headrace::cuda::sm90::fwd {

struct TileVariant {
  Tile tile;
  Kernels* kernels;  // both dtypes
  ScoreMod scores = ScoreMod::plain;
};
// Smaller tiles for short sequences, up to this many queries without and with a causal mask.
struct ShortVariant {
  Kernels* instead_of;
  TileVariant variant;
  std::int64_t most_queries, most_queries_causal;
};

// Whether keys of few rows, or with strict_rows of any number, have splits. With sinks, which count
// once, they have none.
bool spans_splits(const Problem& p);
// How many of their splits are short (config.h).
int num_short_splits(const Problem& p);
// That of long sequences, with strict_rows and plain scores one that merges the splits of few rows;
// null above 256.
const TileVariant* long_variant_of(const Problem& p);
// Of few rows, the queries and heads of a KV head together, whatever the batch: longer prompts have
// tiles enough. With num_splits=1, or strict_rows and other scores, they have those of prompts:
// null.
const TileVariant* few_rows_variant_of(const Problem& p);
// With the bits of `v`, for clusters that have a split each. Null: there is none.
const TileVariant* parts_variant_of(const TileVariant& v);
// Null: there is none.
const ShortVariant* short_variant_of(const TileVariant* v);
// Null above 256. `tile_m`: that of a TuningConfig.
const TileVariant* variant_of(const Problem& p, std::int32_t tile_m = 0);

}  // namespace headrace::cuda::sm90::fwd
