// The Hopper forward over pages: the bits of a row are those of the contiguous call of its sequence
// alone, whatever the page size, the layout and the order of the pages, the other sequences of the
// batch, and what lies in unused slots and table entries. strict_rows: sequences of few queries are
// computed alone, too.
#include <string>

#include "cuda/paged_batch.h"

namespace headrace::testing {
namespace {

constexpr const char* kName = "cuda_sm90_fwd";

// Lengths around pages and k-blocks of 64, 112 and 128 keys; chunks of queries behind longer
// prefixes; sequences without keys and without queries; every head_dim that has tiles of its own.
std::vector<Sizes> all_sizes() {
  std::vector<Sizes> all = {
      {{300, 129, 0, 16}, {300, 100, 5, 16}, 300, 2, 1, 128},
      {{127, 128, 1}, {40, 128, 20}, 128, 4, 2, 64},
      {{111, 113, 225, 500}, {111, 64, 64, 200}, 200, 2, 2, 80},
      {{112, 1000}, {70, 70}, 70, 4, 1, 96, DType::f16},
      {{700, 383}, {150, 20}, 150, 2, 2, 112},
      {{129, 640}, {129, 300}, 300, 2, 1, 192},
      {{63, 65, 511}, {63, 0, 190}, 190, 2, 2, 256, DType::f16},
      {{4097, 2000}, {65, 192}, 192, 8, 2, 128},
  };
  Sizes many{{}, {}, 20, 4, 2, 64};
  for (std::int64_t b = 0; b < 200; ++b) {
    many.lengths.push_back(b * 37 % 250);
    many.queries.push_back(b % 21);
  }
  all.push_back(many);
  return all;
}

struct Feature {
  const char* name;
  AttentionOptions options;
};
std::vector<Feature> all_features() {
  return {{"causal", {.causal = Causal::bottom_right, .strict_rows = true}},
          {"none", {.strict_rows = true}},
          {"window", {.causal = Causal::bottom_right, .window_left = 70, .strict_rows = true}},
          {"top_left", {.causal = Causal::top_left, .window_left = 200, .strict_rows = true}}};
}

class PrefillPages : public ::testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override { HEADRACE_NEEDS_GPU(90); }
};

TEST_P(PrefillPages, HaveTheBitsOfTheSequenceAlone) {
  const Batch batch(GetParam(), kName);
  const bool is_small = batch.sizes().batch() < 100;
  for (const auto& [name, options] : all_features())
    for (const std::int64_t page_size : {1, 3, 4, 8, 16, 24, 64, 256})
      for (const bool is_ragged : {false, true}) {
        if (!is_small && page_size != 16) continue;
        const bool is_hnd = (page_size + (is_ragged ? 1 : 0)) % 2 == 0;
        SCOPED_TRACE(std::string(name) + " page size " + std::to_string(page_size) +
                     (is_hnd ? " HND" : " NHD") + (is_ragged ? " ragged" : ""));
        expect_bits_alone(batch, is_ragged, options,
                          batch.paged({page_size, is_hnd}, is_ragged, options));
      }
}

// References beyond what the usual arithmetic takes: all rows are computed again, in tiles that
// merge splits each split at once, so k-blocks do not only follow each other from right to left.
TEST(PrefillPagesAgain, HaveTheBitsOfTheSequenceAlone) {
  HEADRACE_NEEDS_GPU(90);
  for (const std::int64_t dim : {64, 128, 256}) {
    const Batch batch({{2600, 5000, 300}, {100, 130, 70}, 130, 2, 1, dim}, kName);
    for (const bool is_strict : {true, false})
      for (const std::int64_t page_size : {4, 16, 64, 128}) {
        SCOPED_TRACE("page size " + std::to_string(page_size));
        const AttentionOptions options{
            .softmax_scale = 20000, .causal = Causal::bottom_right, .strict_rows = is_strict};
        expect_bits_alone(batch, true, options, batch.paged({page_size, false}, true, options));
      }
  }
}

TEST_P(PrefillPages, DoNotDependOnTheNumberOfCtas) {
  const Batch batch(GetParam(), kName);
  for (const bool is_strict : {false, true}) {
    const AttentionOptions options{.causal = Causal::bottom_right, .strict_rows = is_strict};
    const std::vector<Bits> expected = batch.paged({16, false}, true, options);
    for (const std::uint32_t num_units : {1, 5, 50})
      EXPECT_EQ(batch.paged({16, false}, true, options, num_units), expected)
          << num_units << " units, strict " << is_strict;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, PrefillPages, ::testing::ValuesIn(all_sizes()),
                         [](const auto& test) { return "Sizes" + std::to_string(test.index); });

TEST(PrefillPagesErrors, AreReportedByTheCheck) {
  HEADRACE_NEEDS_GPU(90);
  expect_reported_errors(kName, 70);
}

}  // namespace
}  // namespace headrace::testing
