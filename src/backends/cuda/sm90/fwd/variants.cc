#include "backends/cuda/sm90/fwd/variants.h"

#include <algorithm>
#include <span>

#include "core/features.h"
#include "core/tuning.h"

namespace headrace::cuda::sm90::fwd {
namespace {

// The first large enough one of the ScoreMod, else a general one.
constexpr TileVariant kVariants[] = {
    {kTile64, &kernels_hd64},
    {kTile80, &kernels_hd80},
    {kTile96, &kernels_hd96},
    {kTile112, &kernels_hd112},
    {kTile128, &kernels_hd128},
    {kTile192v128, &kernels_hd192v128},
    {kTile192, &kernels_hd192},
    {kTile256, &kernels_hd256},
    {kTile64, &kernels_hd64_alibi, ScoreMod::alibi},
    {kTile128, &kernels_hd128_alibi, ScoreMod::alibi},
    {kTile256, &kernels_hd256_alibi, ScoreMod::alibi},
    {kSoftcap64, &kernels_hd64_softcap, ScoreMod::softcap},
    {kSoftcap128, &kernels_hd128_softcap, ScoreMod::softcap},
    {kSoftcap256, &kernels_hd256_softcap, ScoreMod::softcap},
    {kBias64, &kernels_hd64_bias, ScoreMod::bias},
    {kBias128, &kernels_hd128_bias, ScoreMod::bias},
    {kBias256, &kernels_hd256_bias, ScoreMod::bias},
    {kDropout64, &kernels_hd64_dropout, ScoreMod::dropout},
    {kDropout128, &kernels_hd128_dropout, ScoreMod::dropout},
    {kGeneral64, &kernels_hd64_general, ScoreMod::general},
    {kGeneral128, &kernels_hd128_general, ScoreMod::general},
    {kGeneral256, &kernels_hd256_general, ScoreMod::general},
};
constexpr ShortVariant kShortVariants[] = {
    {&kernels_hd64, {kShort64, &kernels_hd64_short}, -1, 1024},
    {&kernels_hd80, {kShort80, &kernels_hd80_short}, 1024, 2048},
    {&kernels_hd96, {kShort96, &kernels_hd96_short}, 1024, 2048},
};

constexpr TileVariant kFewRowsVariants[] = {
    {kFewRows64, &kernels_few64},
    {kFewRows128, &kernels_few128},
    {kFewRows256, &kernels_few256},
    {kFewRowsMod128, &kernels_few128_alibi, ScoreMod::alibi},
    {kFewRowsMod256, &kernels_few256_alibi, ScoreMod::alibi},
    {kFewRowsMod128, &kernels_few128_softcap, ScoreMod::softcap},
    {kFewRowsMod256, &kernels_few256_softcap, ScoreMod::softcap},
    {kFewRowsMod128, &kernels_few128_general, ScoreMod::general},
    {kFewRowsMod256, &kernels_few256_general, ScoreMod::general},
};

// strict_rows: few rows, and more with their bits.
constexpr TileVariant kFewStrictVariants[] = {{kFewRows64, &kernels_few64},
                                              {kFewStrict128, &kernels_few128_strict},
                                              {kFewRows256, &kernels_few256}};
constexpr TileVariant kTransposedVariants[] = {
    {kTransposed64Rows8, &kernels_transposed64_rows8},
    {kTransposed64Rows16, &kernels_transposed64_rows16},
    {kTransposed128Rows8, &kernels_transposed128_rows8},
    {kTransposed128Rows16, &kernels_transposed128_rows16},
    {kTransposed256Rows8, &kernels_transposed256_rows8},
    {kTransposed256Rows16, &kernels_transposed256_rows16}};
constexpr TileVariant kPartsVariants[] = {{kParts64Rows8, &kernels_parts64_rows8},
                                          {kParts64Rows16, &kernels_parts64_rows16},
                                          {kParts128Rows8, &kernels_parts128_rows8},
                                          {kParts128Rows16, &kernels_parts128_rows16}};
constexpr TileVariant kUnsplitVariants[] = {
    {kTile64, &kernels_hd64}, {kTile128, &kernels_hd128}, {kTile256, &kernels_hd256}};
constexpr TileVariant kMergingVariants[] = {{kStrict64, &kernels_strict64},
                                            {kStrict128, &kernels_strict128},
                                            {kStrict256, &kernels_strict256}};

ScoreMod score_mod_of(const Problem& p) {
  const int num_features = num_used(p, FeatureKind::scores);
  if (num_features == 0) return ScoreMod::plain;
  if (num_features > 1 || p.has_mask || p.has_tree_mask) return ScoreMod::general;
  if (has_softcap(p)) return ScoreMod::softcap;
  if (has_bias(p)) return ScoreMod::bias;
  if (p.has_alibi) return ScoreMod::alibi;
  return dropout_keep_threshold(p.dropout_p) <= 0xffffu ? ScoreMod::dropout : ScoreMod::general;
}

// The first large enough one.
const TileVariant* first_of(std::span<const TileVariant> variants, const Problem& p) {
  const ScoreMod scores = score_mod_of(p);
  for (const TileVariant& v : variants)
    if (v.scores == scores && std::max(p.head_dim, p.head_dim_v) <= v.tile.head_dim) return &v;
  return nullptr;
}
// Few rows and more of them have equal bits.
bool is_strict(const Problem& p) {
  return p.strict_rows != 0 && p.num_splits == 0 && score_mod_of(p) == ScoreMod::plain;
}

}  // namespace

int num_short_splits(const Problem& p) { return is_strict(p) ? 0 : kNumShortSplits; }

bool spans_splits(const Problem& p) {
  return !p.has_sinks && p.seqlen_k > split_begin(1, num_short_splits(p));
}

const TileVariant* long_variant_of(const Problem& p) {
  if (is_strict(p)) return first_of(spans_splits(p) ? kMergingVariants : kUnsplitVariants, p);
  const ScoreMod scores = score_mod_of(p);
  for (const TileVariant& v : kVariants) {
    if (v.scores != scores && v.scores != ScoreMod::general) continue;
    if (p.head_dim <= v.tile.head_dim && p.head_dim_v <= v.tile.head_dim_v) return &v;
  }
  return nullptr;
}

const TileVariant* few_rows_variant_of(const Problem& p) {
  const std::int64_t rows = p.seqlen_q * group_size(p);
  if (rows > kGroupRows || p.num_splits != 0) return nullptr;
  if (!is_strict(p) && (has_dropout(p) || p.strict_rows != 0)) return nullptr;
  const TileVariant* few =
      is_strict(p) ? first_of(kFewStrictVariants, p) : first_of(kFewRowsVariants, p);
  if (few == nullptr || few->scores != ScoreMod::plain) return few;
  // With equal k-blocks they have equal bits.
  for (const TileVariant& v : kTransposedVariants)
    if (rows <= v.tile.transposed_rows && v.tile.keys == few->tile.keys &&
        v.tile.head_dim == few->tile.head_dim)
      return &v;
  return few;
}

const TileVariant* parts_variant_of(const TileVariant& v) {
  for (const TileVariant& parts : kPartsVariants)
    if (parts.tile.transposed_rows == v.tile.transposed_rows &&
        parts.tile.head_dim == v.tile.head_dim)
      return &parts;
  return nullptr;
}

const ShortVariant* short_variant_of(const TileVariant* v) {
  for (const ShortVariant& s : kShortVariants)
    if (v != nullptr && s.instead_of == v->kernels) return &s;
  return nullptr;
}

const TileVariant* variant_of(const Problem& p, std::int32_t tile_m) {
  if (const TileVariant* few = few_rows_variant_of(p)) return few;
  const TileVariant* v = long_variant_of(p);
  const ShortVariant* s = short_variant_of(v);
  if (s == nullptr) return v;
  const bool is_short = p.seqlen_q <= (has_causal(p) ? s->most_queries_causal : s->most_queries);
  return chosen(tile_m, rows_of(is_short ? s->variant.tile : v->tile)) == rows_of(v->tile)
             ? v
             : &s->variant;
}

}  // namespace headrace::cuda::sm90::fwd
