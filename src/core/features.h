// The optional features of a problem, in one list: refusals, explain and the grids of the tests
// read it.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "core/problem.h"

namespace headrace {

enum class Feature {
  ragged,
  pages,
  seqused_k,
  codes,
  recent,
  causal,
  window,
  softcap,
  dropout,
  bias,
  mask,
  alibi,
  tree_mask,
  sinks,
  lse,
  probs,
  dlse,
  dbias,
  dsinks,
  deterministic,
  num_splits,
};

// What a feature changes. Kernels for plain scores have none of `scores` (has_general_scores()).
enum class FeatureKind { batch, keys, visible_keys, scores, rows, gradients, splits };

struct FeatureInfo {
  Feature feature;
  FeatureKind kind;
  std::string_view name;
  bool (*is_used)(const Problem&);
};
// In the order in which explain names them.
inline constexpr FeatureInfo kFeatures[] = {
    {Feature::ragged, FeatureKind::batch, "ragged",
     [](const Problem& p) { return p.is_ragged != 0; }},
    {Feature::pages, FeatureKind::batch, "pages", [](const Problem& p) { return has_pages(p); }},
    {Feature::seqused_k, FeatureKind::batch, "seqused_k",
     [](const Problem& p) { return p.has_seqused_k != 0; }},
    {Feature::codes, FeatureKind::keys, "quantised k and v",
     [](const Problem& p) { return has_codes(p); }},
    {Feature::recent, FeatureKind::keys, "recent keys",
     [](const Problem& p) { return has_recent(p); }},
    {Feature::causal, FeatureKind::visible_keys, "causal",
     [](const Problem& p) { return has_causal(p); }},
    {Feature::window, FeatureKind::visible_keys, "window",
     [](const Problem& p) { return p.window_left >= 0 || p.window_right >= 0; }},
    {Feature::softcap, FeatureKind::scores, "softcap",
     [](const Problem& p) { return has_softcap(p); }},
    {Feature::dropout, FeatureKind::scores, "dropout",
     [](const Problem& p) { return has_dropout(p); }},
    {Feature::bias, FeatureKind::scores, "bias", [](const Problem& p) { return has_bias(p); }},
    {Feature::mask, FeatureKind::scores, "mask", [](const Problem& p) { return p.has_mask != 0; }},
    {Feature::alibi, FeatureKind::scores, "alibi",
     [](const Problem& p) { return p.has_alibi != 0; }},
    {Feature::tree_mask, FeatureKind::scores, "tree_mask",
     [](const Problem& p) { return p.has_tree_mask != 0; }},
    {Feature::sinks, FeatureKind::rows, "sinks", [](const Problem& p) { return p.has_sinks != 0; }},
    {Feature::lse, FeatureKind::rows, "lse", [](const Problem& p) { return p.has_lse != 0; }},
    {Feature::probs, FeatureKind::rows, "probs", [](const Problem& p) { return p.has_probs != 0; }},
    {Feature::dlse, FeatureKind::gradients, "dlse",
     [](const Problem& p) { return p.has_dlse != 0; }},
    {Feature::dbias, FeatureKind::gradients, "dbias",
     [](const Problem& p) { return p.has_dbias != 0; }},
    {Feature::dsinks, FeatureKind::gradients, "dsinks",
     [](const Problem& p) { return p.has_dsinks != 0; }},
    {Feature::deterministic, FeatureKind::gradients, "deterministic",
     [](const Problem& p) { return p.deterministic != 0; }},
    {Feature::num_splits, FeatureKind::splits, "num_splits",
     [](const Problem& p) { return p.num_splits > 0; }},
};

constexpr int num_used(const Problem& p, FeatureKind kind) {
  int count = 0;
  for (const FeatureInfo& f : kFeatures) count += f.kind == kind && f.is_used(p) ? 1 : 0;
  return count;
}

// Names of those that the problem uses, "softcap, bias"; empty if it uses none.
inline std::string used_features(const Problem& p, std::initializer_list<Feature> among) {
  std::string names;
  for (const FeatureInfo& f : kFeatures)
    for (const Feature feature : among)
      if (f.feature == feature && f.is_used(p))
        names += (names.empty() ? "" : ", ") + std::string(f.name);
  return names;
}
inline std::string used_features(const Problem& p, FeatureKind kind) {
  std::string names;
  for (const FeatureInfo& f : kFeatures)
    if (f.kind == kind && f.is_used(p)) names += (names.empty() ? "" : ", ") + std::string(f.name);
  return names;
}

}  // namespace headrace
