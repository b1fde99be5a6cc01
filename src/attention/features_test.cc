#include "core/features.h"

#include <gtest/gtest.h>

#include <iterator>

#include "attention/validate.h"

namespace headrace {
namespace {

// Gives a problem one feature.
constexpr struct {
  Feature feature;
  void (*set)(Problem&);
} kSetters[] = {
    {Feature::ragged, [](Problem& p) { p.is_ragged = 1; }},
    {Feature::pages, [](Problem& p) { p.page_size = 16; }},
    {Feature::seqused_k, [](Problem& p) { p.has_seqused_k = 1; }},
    {Feature::codes, [](Problem& p) { p.k_dtype = HEADRACE_I8; }},
    {Feature::recent, [](Problem& p) { p.recent_group = 16; }},
    {Feature::causal, [](Problem& p) { p.causal = HEADRACE_CAUSAL_TOP_LEFT; }},
    {Feature::window, [](Problem& p) { p.window_right = 3; }},
    {Feature::softcap, [](Problem& p) { p.softcap = 30; }},
    {Feature::dropout, [](Problem& p) { p.dropout_p = 0.5; }},
    {Feature::bias, [](Problem& p) { p.bias_dtype = HEADRACE_F32; }},
    {Feature::mask, [](Problem& p) { p.has_mask = 1; }},
    {Feature::alibi, [](Problem& p) { p.has_alibi = 1; }},
    {Feature::tree_mask, [](Problem& p) { p.has_tree_mask = 1; }},
    {Feature::sinks, [](Problem& p) { p.has_sinks = 1; }},
    {Feature::lse, [](Problem& p) { p.has_lse = 1; }},
    {Feature::probs, [](Problem& p) { p.has_probs = 1; }},
    {Feature::dlse, [](Problem& p) { p.has_dlse = 1; }},
    {Feature::dbias, [](Problem& p) { p.has_dbias = 1; }},
    {Feature::dsinks, [](Problem& p) { p.has_dsinks = 1; }},
    {Feature::deterministic, [](Problem& p) { p.deterministic = 1; }},
    {Feature::num_splits, [](Problem& p) { p.num_splits = 2; }},
};
static_assert(std::size(kSetters) == std::size(kFeatures));

Problem problem_with(Feature feature) {
  Problem p = default_problem();
  for (const auto& setter : kSetters)
    if (setter.feature == feature) setter.set(p);
  return p;
}

TEST(Features, EachIsSeenAlone) {
  for (const FeatureInfo& f : kFeatures) EXPECT_FALSE(f.is_used(default_problem())) << f.name;
  for (const FeatureInfo& with : kFeatures) {
    const Problem p = problem_with(with.feature);
    for (const FeatureInfo& f : kFeatures)
      EXPECT_EQ(f.is_used(p), f.feature == with.feature) << with.name << ", " << f.name;
    EXPECT_EQ(used_features(p, {with.feature}), with.name);
    EXPECT_EQ(used_features(p, with.kind), with.name);
    EXPECT_EQ(num_used(p, with.kind), 1);
  }
}

TEST(Features, GeneralScoresAreThoseOfTheList) {
  for (const FeatureInfo& f : kFeatures)
    EXPECT_EQ(has_general_scores(problem_with(f.feature)), f.kind == FeatureKind::scores) << f.name;
}

TEST(Features, AreNamedInTheOrderOfTheList) {
  Problem p = problem_with(Feature::alibi);
  p.softcap = 1;
  EXPECT_EQ(used_features(p, {Feature::alibi, Feature::softcap, Feature::bias}), "softcap, alibi");
  EXPECT_EQ(used_features(p, FeatureKind::scores), "softcap, alibi");
}

}  // namespace
}  // namespace headrace
