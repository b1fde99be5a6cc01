// strict_rows of the Hopper forward: a row has the bits of its keys alone, whether it is computed
// with up to 16 rows, by a kernel with keys as M, or 64, whose splits have tiles of their own and
// are combined behind them, or with more, whose tiles merge their splits themselves.
#include <bit>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "cuda/paged_batch.h"

namespace headrace::testing {
namespace {

// One sequence.
struct Shape {
  std::int64_t keys, queries, heads, kv_heads, dim, dim_v;
  DType dtype;
  std::int64_t window = -1;
  std::optional<double> scale = std::nullopt;
};

class Sequence {
 public:
  explicit Sequence(const Shape& s)
      : s_(s),
        q_(numbers(s.dtype, s.queries * s.heads * s.dim, 1)),
        k_(numbers(s.dtype, s.keys * s.kv_heads * s.dim, 2)),
        v_(numbers(s.dtype, s.keys * s.kv_heads * s.dim_v, 3)) {}

  // Some of its last queries, in a call of their own.
  Bits rows(std::int64_t first, std::int64_t count, std::int32_t num_units = 132) const {
    const auto size = static_cast<std::int64_t>(bytes_of(s_.dtype));
    const std::int64_t keys = s_.keys - s_.queries + first + count, rows = count * s_.heads;
    unsigned char* const q = q_.data() + first * s_.heads * s_.dim * size;
    const OnDevice<unsigned char> out(
        std::vector<unsigned char>(static_cast<std::size_t>(rows * s_.dim_v * size), 0xFF));
    const OnDevice<float> lse(std::vector<float>(static_cast<std::size_t>(rows), -1));
    AttentionTensors t{
        .q = on_device(q, s_.dtype, {1, count, s_.heads, s_.dim}),
        .k = on_device(k_.data(), s_.dtype, {1, keys, s_.kv_heads, s_.dim}),
        .v = on_device(v_.data(), s_.dtype, {1, keys, s_.kv_heads, s_.dim_v}),
        .out = on_device(out.data(), s_.dtype, {1, count, s_.heads, s_.dim_v}),
        .lse = *on_device(lse.data(), DType::f32, {1, count, s_.heads}).permute({0, 2, 1})};
    const AttentionOptions options{.softmax_scale = s_.scale,
                                   .causal = Causal::bottom_right,
                                   .window_left = s_.window,
                                   .strict_rows = true};
    DeviceInfo device = cuda_info(0);
    device.num_units = num_units;
    const Plan plan = plan_attention(Problem(t, options), device);
    EXPECT_STREQ(plan.kernel(), "cuda_sm90_fwd");
    run_alone(plan, t);
    return {out.read(), lse.read()};
  }

 private:
  Shape s_;
  OnDevice<unsigned char> q_, k_, v_;
};

Bits part_of(const Bits& all, std::int64_t num_rows, std::int64_t first, std::int64_t count) {
  const auto row_bytes = static_cast<std::int64_t>(all.out.size()) / num_rows;
  return {{all.out.begin() + first * row_bytes, all.out.begin() + (first + count) * row_bytes},
          {all.lse.begin() + first, all.lse.begin() + first + count}};
}

class StrictRows : public ::testing::TestWithParam<Shape> {};

// Chunks of rows that lie in one tile, two, and many; their last keys around those of splits.
TEST_P(StrictRows, HaveTheBitsOfEveryChunk) {
  HEADRACE_NEEDS_GPU(90);
  const Shape& s = GetParam();
  const Sequence sequence(s);
  const Bits all = sequence.rows(0, s.queries);
  // One CTA with all tiles: what the tile before has merged is no part of the next.
  for (const std::int32_t num_units : {1, 3, 132})
    EXPECT_EQ(sequence.rows(0, s.queries, num_units), all) << num_units << " units";
  for (const std::int64_t count : {1, 2, 15, 16, 17, 63, 64, 65, 127, 200, 331})
    for (std::int64_t first = 0; first + count <= s.queries; first += count < 64 ? 97 : 250) {
      const Bits rows = sequence.rows(first, count);
      ASSERT_EQ(rows, part_of(all, s.queries * s.heads, first * s.heads, count * s.heads))
          << count << " rows from " << first;
    }
}

INSTANTIATE_TEST_SUITE_P(Kernels, StrictRows,
                         ::testing::Values(Shape{1300, 1300, 4, 1, 128, 128, DType::bf16},
                                           Shape{5000, 1000, 8, 2, 128, 128, DType::f16},
                                           Shape{9000, 2100, 2, 2, 128, 128, DType::bf16, 3000},
                                           Shape{2100, 2100, 2, 1, 64, 64, DType::bf16},
                                           Shape{4300, 700, 3, 1, 40, 64, DType::f16},
                                           Shape{6200, 1100, 2, 1, 192, 128, DType::bf16},
                                           Shape{4200, 600, 4, 2, 256, 256, DType::f16},
                                           Shape{3200, 400, 16, 1, 80, 80, DType::bf16, 1000},
                                           Shape{1024, 1024, 2, 1, 96, 96, DType::bf16},
                                           // Scores that outgrow those of the first keys.
                                           Shape{5000, 400, 8, 2, 128, 128, DType::bf16, -1, 3},
                                           Shape{4500, 400, 4, 1, 64, 64, DType::bf16, 2500, 8},
                                           Shape{4500, 300, 2, 1, 128, 128, DType::f16, -1, 3},
                                           Shape{4500, 300, 4, 1, 256, 256, DType::bf16, -1, 3}),
                         [](const auto& test) { return "Shape" + std::to_string(test.index); });

// ---- up to 16 rows over pages
class StrictRowsOverPages : public ::testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override { HEADRACE_NEEDS_GPU(90); }
};

// Tiles of 8 and 16 rows, of 64, 128 and 256 columns, not all filled. Lengths around splits and
// k-blocks.
std::vector<Sizes> sizes_of_few_rows() {
  return {
      {{2048, 1, 2049, 0, 10000, 6144}, {1, 1, 1, 1, 1, 1}, 1, 8, 2, 128},
      {{4095, 4096, 4097, 64}, {2, 1, 0, 2}, 2, 4, 4, 96, DType::f16},
      {{6200, 127, 128, 2176}, {4, 4, 4, 4}, 4, 16, 8, 64},
      {{1024, 6145, 129, 4160}, {3, 4, 4, 0}, 4, 8, 2, 128},
      {{9001, 70}, {13, 16}, 16, 2, 2, 80, DType::f16},
      {{3000, 40000}, {1, 1}, 1, 11, 1, 64},
      {{2300, 300, 5000}, {3, 2, 3}, 3, 5, 1, 120},
      {{2048, 1, 2049, 0, 6144}, {1, 1, 1, 1, 1}, 1, 8, 2, 256},
      {{6200, 63, 64, 4097}, {2, 2, 1, 2}, 2, 16, 2, 192, DType::f16},
  };
}

// Windows leave splits without a visible key, for all rows or for some.
TEST_P(StrictRowsOverPages, HaveTheBitsOfTheSequenceAlone) {
  const Batch batch(GetParam(), "cuda_sm90_fwd");
  for (const std::int64_t window : {-1, 70, 3000})
    for (const Pages& pages : {Pages{1, false}, Pages{4, false}, Pages{16, true},
                               Pages{24, false, true}, Pages{256, true}})
      for (const bool is_ragged : {false, true}) {
        SCOPED_TRACE("page size " + std::to_string(pages.size) + ", window " +
                     std::to_string(window) + (is_ragged ? ", ragged" : ""));
        const AttentionOptions options{
            .causal = Causal::bottom_right, .window_left = window, .strict_rows = true};
        expect_bits_alone(batch, is_ragged, options, batch.paged(pages, is_ragged, options));
      }
}

// References beyond what the usual arithmetic takes: all rows are computed again.
TEST_P(StrictRowsOverPages, ComputeLargeScoresAgain) {
  const Batch batch(GetParam(), "cuda_sm90_fwd");
  for (const std::int64_t window : {-1, 70}) {
    const AttentionOptions options{.softmax_scale = 20000,
                                   .causal = Causal::bottom_right,
                                   .window_left = window,
                                   .strict_rows = true};
    for (const std::uint32_t num_units : {1, 132, 1024})
      expect_bits_alone(batch, true, options, batch.paged({16, false}, true, options, num_units));
  }
}

// From one CTA with all splits, by the counter, to one for each, and clusters of 2, 3, 4 and 8 CTAs
// for each.
TEST_P(StrictRowsOverPages, DoNotDependOnTheNumberOfCtas) {
  const Batch batch(GetParam(), "cuda_sm90_fwd");
  const AttentionOptions options{.strict_rows = true};
  const std::vector<Bits> expected = batch.paged({16, false}, true, options);
  for (const std::uint32_t num_units : {1, 5, 50, 100, 150, 200, 300, 450, 600, 1024})
    EXPECT_EQ(batch.paged({16, false}, true, options, num_units), expected) << num_units;
}

INSTANTIATE_TEST_SUITE_P(Kernels, StrictRowsOverPages, ::testing::ValuesIn(sizes_of_few_rows()),
                         [](const auto& test) { return "Sizes" + std::to_string(test.index); });

TEST(StrictRowsErrors, AreReportedByTheCheck) {
  HEADRACE_NEEDS_GPU(90);
  expect_reported_errors("cuda_sm90_fwd", 1, {.strict_rows = true});
}

// More items than the lists of all CTAs that run at once hold: those that start later have the
// rest.
TEST(StrictRowsItems, AreMoreThanRunningCtasHold) {
  HEADRACE_NEEDS_GPU(90);
  Sizes sizes{{}, {}, 1, 8, 8, 64};
  for (int i = 0; i < 4500; ++i) {  // 36,000 items; 132 multiprocessors hold 33,792
    sizes.lengths.push_back(1 + i % 3);
    sizes.queries.push_back(1);
  }
  const Batch batch(sizes, "cuda_sm90_fwd");
  const AttentionOptions options{.strict_rows = true};
  const std::vector<Bits> expected = batch.paged({16, false}, true, options, 1024);
  EXPECT_EQ(batch.paged({16, false}, true, options, 132), expected);
  expect_bits_alone(batch, true, options, expected);
}

// More items than the list of a CTA holds: it takes a part, more CTAs the others.
TEST(StrictRowsItems, AreMoreThanACtaHolds) {
  HEADRACE_NEEDS_GPU(90);
  Sizes sizes{{}, {}, 1, 8, 8, 64};
  for (int i = 0; i < 100; ++i) {
    sizes.lengths.push_back(i % 7 == 0 ? 2100 : 1 + i);
    sizes.queries.push_back(1);
  }
  const Batch batch(sizes, "cuda_sm90_fwd");
  const AttentionOptions options{.strict_rows = true};
  expect_bits_alone(batch, true, options, batch.paged({16, false}, true, options, 1));
}

// ---- rows that are computed again, in one of their splits or several

// One KV head. A row has two 16-bit numbers by their bits, each for half of its columns.
struct Row {
  std::uint16_t first, second;
  friend bool operator==(const Row&, const Row&) = default;
};
using Rows = std::vector<Row>;
Row both(int bits) { return {static_cast<std::uint16_t>(bits), static_cast<std::uint16_t>(bits)}; }

struct Attended {
  Rows out;
  std::vector<float> lse;
};
class StrictRowsAgain : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { HEADRACE_NEEDS_GPU(90); }

  std::vector<std::uint16_t> columns_of(const Rows& rows) const {
    std::vector<std::uint16_t> all;
    for (const Row& row : rows) {
      all.insert(all.end(), idx(dim_ / 2), row.first);
      all.insert(all.end(), idx(dim_ / 2), row.second);
    }
    return all;
  }
  // All columns of a half must be equal.
  Attended attend(const Rows& q_rows, const Rows& k_rows, const Rows& v_rows, DType dtype,
                  std::int32_t num_units) const {
    const auto num_rows = static_cast<std::int64_t>(q_rows.size());
    const auto num_keys = static_cast<std::int64_t>(k_rows.size());
    const OnDevice<std::uint16_t> q(columns_of(q_rows)), k(columns_of(k_rows)),
        v(columns_of(v_rows)), out(std::vector<std::uint16_t>(idx(num_rows * dim_)));
    const OnDevice<float> lse(std::vector<float>(idx(num_rows), -1));
    const AttentionTensors t{.q = on_device(q.data(), dtype, {1, num_rows, 1, dim_}),
                             .k = on_device(k.data(), dtype, {1, num_keys, 1, dim_}),
                             .v = on_device(v.data(), dtype, {1, num_keys, 1, dim_}),
                             .out = on_device(out.data(), dtype, {1, num_rows, 1, dim_}),
                             .lse = on_device(lse.data(), DType::f32, {1, 1, num_rows})};
    const AttentionOptions options{.softmax_scale = scale_, .strict_rows = true};
    DeviceInfo device = cuda_info(0);
    device.num_units = num_units;
    const Plan plan = plan_attention(Problem(t, options), device);
    EXPECT_STREQ(plan.kernel(), "cuda_sm90_fwd");
    run_alone(plan, t);
    Attended result{{}, lse.read()};
    const std::vector<std::uint16_t> all = out.read();
    for (std::int64_t row = 0; row < num_rows; ++row) {
      const Row halves{all[idx(row * dim_)], all[idx(row * dim_ + dim_ / 2)]};
      for (std::int64_t column = 0; column < dim_; ++column)
        EXPECT_EQ(all[idx(row * dim_ + column)], column < dim_ / 2 ? halves.first : halves.second)
            << row << " " << column;
      result.out.push_back(halves);
    }
    return result;
  }
  // The rows at once, in one CTA with all tiles or in one for each, are those of calls with 20, 16
  // and 8 each. (NaN of the lse by its bits.)
  Attended attend_both_ways(const Rows& q, const Rows& k, const Rows& v, DType dtype) const {
    const Attended at_once = attend(q, k, v, dtype, 1);
    const Attended apart = attend(q, k, v, dtype, 132);
    for (const std::ptrdiff_t count : {20, 16, 8}) {
      Attended few;
      for (auto at = q.begin(); at != q.end(); at += count) {
        const Attended rows = attend({at, at + count}, k, v, dtype, count == 16 ? 1 : 132);
        few.out.insert(few.out.end(), rows.out.begin(), rows.out.end());
        few.lse.insert(few.lse.end(), rows.lse.begin(), rows.lse.end());
      }
      for (std::size_t row = 0; row < q.size(); ++row) {
        const auto bits = [row](const Attended& x) {
          return std::bit_cast<std::uint32_t>(x.lse[row]);
        };
        EXPECT_EQ(at_once.out[row], few.out[row]) << row << " of " << count;
        EXPECT_EQ(apart.out[row], few.out[row]) << row << " of " << count;
        EXPECT_EQ(bits(at_once), bits(few)) << row << " of " << count;
        EXPECT_EQ(bits(apart), bits(few)) << row << " of " << count;
      }
    }
    return at_once;
  }

  static std::size_t idx(std::int64_t i) { return static_cast<std::size_t>(i); }
  const std::int64_t dim_ = GetParam();
  double scale_ = 1;
};

// Means of the largest number of the format: sums of it overflow in every split.
TEST_P(StrictRowsAgain, InEverySplit) {
  const Rows q(400, both(0)), k(9000, both(0x3f80)), v(9000, both(0x7f7f));
  EXPECT_EQ(attend_both_ways(q, k, v, DType::bf16).out, Rows(400, both(0x7f7f)));
}

// The same in half of the columns: all of a row is computed again.
TEST_P(StrictRowsAgain, InHalfOfTheColumns) {
  const Rows q(400, both(0)), k(9000, both(0x3f80));
  for (const Row& v : {Row{0x7f7f, 0x3f00}, Row{0x3f00, 0x7f7f}})
    EXPECT_EQ(attend_both_ways(q, k, Rows(9000, v), DType::bf16).out, Rows(400, v));
}

// As FewRowsOverflow.OfF16IsComputedAgain, in the first split of some rows and in the second of
// others. Each has a key in the other split that counts as much and whose value is 0, so what is
// lost or added twice there is seen, and no mean of all splits overflows.
TEST_P(StrictRowsAgain, InOneSplitOfARow) {
  constexpr std::uint16_t kOne = 0x3c00, kLargest = 0x7bff;
  constexpr std::uint16_t kFar = 0xbd00;    // -1.25: a score of -40
  constexpr std::uint16_t kNear = 0x2c29;   // 0.0650024: 2.08008
  constexpr std::uint16_t kOther = 0x2c00;  // 0.0625: 2
  scale_ = 64.0 / static_cast<double>(dim_);
  Rows q(400, both(0)), k(9000, both(kFar)), v(9000, both(kLargest));
  for (std::size_t row = 0; row < q.size(); ++row) {
    if (row % 7 == 3) q[row] = {kOne, 0};
    if (row % 7 == 5) q[row] = {0, kOne};
  }
  k[0].first = k[2060].second = kNear;
  k[1000].first = k[3050].second = 0;
  k[2550].first = k[100].second = kOther;
  k[8500] = both(kOther);  // in the last split of both
  v[2550] = v[100] = v[8500] = both(0);
  const Attended all = attend_both_ways(q, k, v, DType::f16);
  for (std::size_t row = 0; row < q.size(); ++row) {
    if (q[row] == both(0)) continue;
    // (e^2.08 + 1) / (e^2.08 + 1 + 2 e^2) of 65504 is 24,802: 0x760e.
    EXPECT_NEAR(all.out[row].first, 0x760e, 4) << row;
    EXPECT_NEAR(all.lse[row], 3.1690f, 1e-3f) << row;
  }
}

// Large scores in some splits of some rows, NaN and infinity in others, and usual rows between.
TEST_P(StrictRowsAgain, BesideUsualRows) {
  // 2^60 with 64 columns, less with more: scores are 2.55e38 and 2.98e38, also before the scale.
  const int large_query = 0x5d80 - 0x80 * (std::bit_width(static_cast<unsigned>(dim_)) - 7);
  constexpr int kLargeKey = 0x5e40, kLargerKey = 0x5e60;
  constexpr int kNan = 0x7fc0, kInfinity = 0x7f80;
  Rows q(400), k(9000), v(9000);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = both(0x3e00 + static_cast<int>(i * 37 % 64));
  for (std::size_t i = 0; i < k.size(); ++i) {
    k[i] = both(0x3d00 + static_cast<int>(i * 101 % 200));
    v[i] = both(0x3f00 + static_cast<int>(i * 53 % 256));
  }
  q[7] = q[200] = both(large_query);
  q[9] = both(large_query | 0x8000);
  q[333] = both(kNan);
  q[71] = both(kInfinity);
  k[1500] = both(kLargeKey);
  k[5000] = both(kLargerKey);
  k[8999] = both(kLargeKey | 0x8000);
  const Attended all = attend_both_ways(q, k, v, DType::bf16);
  EXPECT_EQ(all.out[7], v[5000]);
  EXPECT_EQ(all.out[9], v[8999]);
  EXPECT_EQ(all.out[333].first & 0x7f80, 0x7f80);
  EXPECT_TRUE(std::isnan(all.lse[333]));
  EXPECT_NE(all.out[8].first & 0x7f80, 0x7f80);
  // With and without splits.
  k.resize(1000), v.resize(1000);
  k[500] = both(kLargeKey);
  const Attended unsplit = attend_both_ways(q, k, v, DType::bf16);
  EXPECT_TRUE(std::isnan(unsplit.lse[333]));
  EXPECT_NEAR(unsplit.lse[7], 2.5521178e38f, 1e33f);
}

// A third of the rows has scores of ordinary differences around 50 times dim, which are computed
// again, with maxima that grow from split to split and within them; the others are ordinary.
TEST_P(StrictRowsAgain, AroundLargeScores) {
  Rows q(400), k(9000), v(9000);
  for (std::size_t i = 0; i < q.size(); ++i) {
    q[i].first = i % 3 == 0 ? 0x4396 : 0;  // 300
    q[i].second = static_cast<std::uint16_t>(0x3d80 + i * 37 % 128);
  }
  for (std::size_t i = 0; i < k.size(); ++i) {
    k[i].first = 0x3f80;
    k[i].second = static_cast<std::uint16_t>((i % 5 < 2 ? 0xbe00 : 0x3e00) + i * 101 % 384);
    v[i] = {static_cast<std::uint16_t>(0x3f00 + i * 53 % 256),
            static_cast<std::uint16_t>(0xbf00 + i * 29 % 256)};
  }
  attend_both_ways(q, k, v, DType::bf16);
}

// P of 32 each, of which no one is large, but their sums are.
TEST_P(StrictRowsAgain, OrNotForLargeSumsOfP) {
  scale_ = 1.0 / static_cast<double>(dim_);
  Rows q(400), k(9000, both(0)), v(9000);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = both(0x3f80 + static_cast<int>(i % 7));
  for (std::size_t i = 0; i < k.size(); ++i) {
    if (i / 128 % 5 == 2) k[i] = both(0x405e);  // 3.469, 5 / log2(e)
    v[i] = both(0x3f00 + static_cast<int>(i * 53 % 256));
  }
  attend_both_ways(q, k, v, DType::bf16);
}

INSTANTIATE_TEST_SUITE_P(Kernels, StrictRowsAgain, ::testing::Values(64, 128, 256),
                         [](const auto& test) { return "Dim" + std::to_string(test.param); });

// What decides is the shape of a sequence. Needs no GPU.
TEST(StrictRowsPlans, SplitKeysOfAnyNumberOfRows) {
  Problem p = problem_of_5000_keys();
  p.strict_rows = 1;
  for (const std::int64_t head_dim : {64, 128, 256})
    for (const std::int64_t queries : {1, 16, 17, 1000}) {
      p.head_dim = p.head_dim_v = head_dim;
      p.seqlen_q = queries;
      p.has_sinks = 0;
      p.softcap = 0;
      EXPECT_TRUE(are_split(p)) << head_dim << " " << queries;
      p.has_sinks = 1;
      EXPECT_FALSE(are_split(p)) << head_dim << " " << queries;
      p.has_sinks = 0;
      p.softcap = 30;
      EXPECT_FALSE(are_split(p)) << head_dim << " " << queries;
    }
}

// Up to 16 rows have keys as M, of more than 128 columns also without strict_rows. Fewer columns
// are then another kernel's.
TEST(StrictRowsPlans, HaveTilesOfTheirRows) {
  Problem p = problem_of_5000_keys();
  p.num_heads = p.num_kv_heads = 4;
  for (const bool is_strict : {true, false})
    for (const std::int64_t head_dim : {64, 72, 128, 136, 256})
      for (const auto& [queries, tile] : {std::pair{1, "tile_m 8,"},
                                          {8, "tile_m 8,"},
                                          {9, "tile_m 16,"},
                                          {16, "tile_m 16,"},
                                          {17, "tile_m 64,"}}) {
        p.strict_rows = is_strict ? 1 : 0;
        p.head_dim = p.head_dim_v = head_dim;
        p.seqlen_q = queries;
        const Plan plan = plan_attention(p, device_from_text("sm90:132"));
        if (!is_strict && head_dim <= 128 && queries <= 16)
          EXPECT_STREQ(plan.kernel(), "cuda_sm90_decode");
        else
          EXPECT_NE(std::string(plan.explain()).find(tile), std::string::npos) << plan.explain();
      }
}

// A cluster of CTAs has a split where there are few. 5000 keys have three.
TEST(StrictRowsPlans, HaveClustersForFewSplits) {
  Problem p = problem_of_5000_keys();
  p.strict_rows = 1;
  p.num_heads = 8;
  p.num_kv_heads = 2;
  const auto explained = [&p](std::int64_t head_dim, std::int64_t batch, std::int64_t seqlen_k) {
    p.head_dim = p.head_dim_v = head_dim;
    p.batch = batch;
    p.seqlen_q = 1;
    p.seqlen_k = seqlen_k;
    return std::string(plan_attention(p, device_from_text("sm90:132")).explain());
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(explained(128, 1, 5000), "clusters of 8 CTAs, 6 tiles"));
  EXPECT_TRUE(has(explained(128, 4, 5000), "clusters of 4 CTAs, 24 tiles"));
  EXPECT_TRUE(has(explained(128, 6, 5000), "clusters of 3 CTAs, 36 tiles"));
  EXPECT_TRUE(has(explained(128, 7, 5000), "persistent, 42 tiles"));
  EXPECT_TRUE(has(explained(64, 1, 5000), "clusters of 4 CTAs, 6 tiles"));
  EXPECT_TRUE(has(explained(64, 10, 5000), "clusters of 2 CTAs, 60 tiles"));
  EXPECT_TRUE(has(explained(256, 1, 5000), "persistent, 6 tiles"));
  EXPECT_TRUE(has(explained(128, 1, 2048), "clusters of 8 CTAs, 2 tiles"));
  // Without splits: more keys than a cluster has S of.
  p.has_sinks = 1;
  EXPECT_TRUE(has(explained(128, 1, 5000), "persistent, 2 tiles"));
  EXPECT_TRUE(has(explained(128, 1, 2048), "clusters of 8 CTAs, 2 tiles"));
}

}  // namespace
}  // namespace headrace::testing
