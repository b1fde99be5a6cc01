// Few rows of the Hopper forward, whose keys are split at fixed places: the bits of a row are those
// of its sequence alone, whatever the lengths of others, the bound of the lengths, the pages and
// the number of multiprocessors.
#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "cuda/paged_batch.h"

namespace headrace::testing {
namespace {

constexpr const char* kName = "cuda_sm90_fwd";

// Lengths around splits of 1024 and, from 4096 keys on, 2048 keys and around k-blocks of 64 and
// 128; head dims of each tile; groups of heads, up to 64 rows of each. Those of up to 16 rows and
// 128 columns have another kernel, and of more columns tiles with keys as M.
std::vector<Sizes> all_sizes() {
  return {
      {{2048, 1, 1025, 0, 10000, 6144}, {1, 1, 1, 1, 1, 1}, 1, 8, 2, 256},
      {{4095, 4096, 4097, 64}, {2, 1, 0, 2}, 2, 4, 4, 192, DType::f16},
      {{6200, 127, 128, 2176}, {3, 3, 3, 3}, 3, 16, 2, 64},
      {{1024, 6145, 129}, {9, 16, 5}, 16, 8, 2, 128},
      {{9001, 70}, {64, 64}, 64, 2, 2, 96, DType::f16},
      {{3000, 40000}, {1, 1}, 1, 20, 1, 80},
      {{12345}, {1}, 1, 64, 1, 248},
      // Alone some of them have keys as M, of tiles of 8 or 16 rows.
      {{5000, 300, 2049, 64, 1023}, {1, 5, 2, 3, 4}, 5, 4, 1, 256},
      {{4097, 3000, 1}, {2, 9, 1}, 9, 4, 2, 136, DType::f16},
  };
}

// lse: -infinity where no key is visible. NaN of O would be one of its lse, or of what it adds.
void expect_finite(const std::vector<Bits>& sequences) {
  for (const Bits& rows : sequences) {
    for (const float lse : rows.lse) ASSERT_FALSE(std::isnan(lse));
    for (std::size_t i = 1; i < rows.out.size(); i += 2)  // the highest byte of an element
      ASSERT_NE(rows.out[i] & 0x7f, 0x7f) << "element " << i / 2;
  }
}

class FewRows : public ::testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override { HEADRACE_NEEDS_GPU(90); }
};

// Windows leave splits without a visible key, for all rows or for some.
TEST_P(FewRows, HaveTheBitsOfTheSequenceAlone) {
  const Batch batch(GetParam(), kName);
  for (const std::int64_t window : {-1, 70, 3000})
    for (const std::int64_t page_size : {1, 16, 24, 256})
      for (const bool is_ragged : {false, true}) {
        SCOPED_TRACE("page size " + std::to_string(page_size) + ", window " +
                     std::to_string(window) + (is_ragged ? ", ragged" : ""));
        const AttentionOptions options{.causal = Causal::bottom_right, .window_left = window};
        const auto rows = batch.paged({page_size, page_size > 16}, is_ragged, options);
        expect_bits_alone(batch, is_ragged, options, rows);
        expect_finite(rows);  // what splits without visible keys leave is not read
      }
}

TEST_P(FewRows, DoNotDependOnTheNumberOfCtas) {
  const Batch batch(GetParam(), kName);
  const std::vector<Bits> expected = batch.paged({16, false}, true, {});
  for (const std::uint32_t num_units : {1, 5, 50, 150, 300, 450, 1000})
    EXPECT_EQ(batch.paged({16, false}, true, {}, num_units), expected) << num_units << " units";
}

INSTANTIATE_TEST_SUITE_P(Kernels, FewRows, ::testing::ValuesIn(all_sizes()),
                         [](const auto& test) { return "Sizes" + std::to_string(test.index); });

// Scores that other kernels of the forward compute where there are more rows, and that the decode
// kernel does not have.
std::vector<Sizes> all_sizes_with_features() {
  std::vector<Sizes> all = all_sizes();
  all.push_back({{2300, 1, 255, 256, 257, 0, 7000}, {1, 1, 1, 1, 1, 1, 1}, 1, 8, 2, 128});
  all.push_back({{513, 6145, 2048}, {1, 2, 4}, 4, 4, 1, 64, DType::f16});
  return all;
}
class FewRowsWithFeatures : public FewRows {};

TEST_P(FewRowsWithFeatures, HaveTheBitsOfTheSequenceAlone) {
  const Batch batch(GetParam(), kName);
  for (const std::int64_t window : {-1, 300}) {
    const AttentionOptions options{
        .softcap = 3, .causal = Causal::bottom_right, .window_left = window};
    const auto rows = batch.paged({16, false}, true, options);
    expect_bits_alone(batch, true, options, rows);
    expect_finite(rows);
    AttentionOptions with_more = options;
    with_more.softcap = 30;
    EXPECT_NE(rows, batch.paged({16, false}, true, with_more));
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, FewRowsWithFeatures,
                         ::testing::ValuesIn(all_sizes_with_features()),
                         [](const auto& test) { return "Sizes" + std::to_string(test.index); });

TEST(FewRowsErrors, AreReportedByTheCheck) {
  HEADRACE_NEEDS_GPU(90);
  expect_reported_errors(kName, 20);
}

// Of a sequence that the first CTA never looks at.
TEST(FewRowsErrors, OfSplitKeysAreReported) {
  HEADRACE_NEEDS_GPU(90);
  const std::int64_t batch = 40, size = 1024, columns = 2, dim = 256;
  const OnDevice<unsigned char> kv(numbers(DType::bf16, 2 * size * dim, 1)),
      q(numbers(DType::bf16, batch * 8 * dim, 2)), out(numbers(DType::bf16, batch * 8 * dim, 3));
  std::vector<std::int32_t> entries, lengths(batch, 5);
  for (std::int64_t i = 0; i < batch * columns; ++i)
    entries.push_back(static_cast<std::int32_t>(i % 2));
  lengths[35] = 5000;
  const OnDevice<std::int32_t> table(entries), used(lengths);
  AttentionTensors t{.q = on_device(q.data(), DType::bf16, {batch, 1, 8, dim}),
                     .k = on_device(kv.data(), DType::bf16, {2, size, 1, dim}),
                     .v = on_device(kv.data(), DType::bf16, {2, size, 1, dim}),
                     .out = on_device(out.data(), DType::bf16, {batch, 1, 8, dim})};
  t.block_table = on_device(table.data(), DType::i32, {batch, columns});
  t.seqused_k = on_device(used.data(), DType::i32, {batch});
  const Plan plan = plan_attention(Problem(t), cuda_info(0));
  EXPECT_STREQ(plan.kernel(), kName);
  run_alone(plan, t);
  EXPECT_EQ(headrace_check(HEADRACE_CUDA, 0, nullptr), HEADRACE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(headrace_last_error()).find("entry 35"), std::string::npos)
      << headrace_last_error();
}

// One KV head; 16-bit numbers by their bits. A row of q for each query, with the same number in
// each column of a row.
constexpr std::int64_t kDim = 64;
std::vector<std::uint16_t> rows_of(const std::vector<std::uint16_t>& numbers) {
  std::vector<std::uint16_t> rows;
  for (const std::uint16_t number : numbers) rows.insert(rows.end(), kDim, number);
  return rows;
}
// The first column of each row of the output.
std::vector<std::uint16_t> attend(const std::vector<std::uint16_t>& q_rows,
                                  const std::vector<std::uint16_t>& k_rows,
                                  const std::vector<std::uint16_t>& v_rows, float scale,
                                  DType dtype = DType::bf16) {
  const auto num_rows = static_cast<std::int64_t>(q_rows.size());
  const auto num_keys = static_cast<std::int64_t>(k_rows.size());
  const OnDevice<std::uint16_t> q(rows_of(q_rows)), k(rows_of(k_rows)), v(rows_of(v_rows)),
      out(std::vector<std::uint16_t>(num_rows * kDim));
  const AttentionTensors t{.q = on_device(q.data(), dtype, {1, num_rows, 1, kDim}),
                           .k = on_device(k.data(), dtype, {1, num_keys, 1, kDim}),
                           .v = on_device(v.data(), dtype, {1, num_keys, 1, kDim}),
                           .out = on_device(out.data(), dtype, {1, num_rows, 1, kDim})};
  const Plan plan = plan_attention(Problem(t, {.softmax_scale = scale}), cuda_info(0));
  EXPECT_STREQ(plan.kernel(), kName);
  run_alone(plan, t);
  std::vector<std::uint16_t> first;
  const std::vector<std::uint16_t> all = out.read();
  for (std::int64_t row = 0; row < num_rows; ++row) first.push_back(all[row * kDim]);
  return first;
}

// More splits than a warp combines at a time. Scores are equal, so O is the mean of V, which is 1
// in one part of the keys after the other: a part that is lost, or counts twice, changes its mean.
TEST(FewRowsSplits, AllCount) {
  HEADRACE_NEEDS_GPU(90);
  constexpr std::int64_t kNumKeys = 70000, kPart = 2048;  // 37 splits
  constexpr std::uint16_t kOne = 0x3f80;                  // of bf16
  const std::vector<std::uint16_t> q(20), k(kNumKeys);
  for (std::int64_t begin = 0; begin < kNumKeys; begin += kPart) {
    const std::int64_t end = std::min(begin + kPart, kNumKeys);
    std::vector<std::uint16_t> v(kNumKeys);
    std::fill(v.begin() + begin, v.begin() + end, kOne);
    const std::uint32_t bits = attend(q, k, v, 1).front();
    const float mean = std::bit_cast<float>(bits << 16);
    const float expected = static_cast<float>(end - begin) / static_cast<float>(kNumKeys);
    EXPECT_NEAR(mean, expected, expected / 256) << "keys " << begin << " to " << end;
  }
}

// The mean of the largest number of the format is that number, though sums of it are not.
TEST(FewRowsOverflow, DoesNotReachMeans) {
  HEADRACE_NEEDS_GPU(90);
  const std::vector<std::uint16_t> q(20, 0), k(9000, 0x3f80), v(9000, 0x7f7f);
  for (const std::uint16_t element : attend(q, k, v, 1)) ASSERT_EQ(element, 0x7f7f);
}

// A P of 16394.5 rounds to 16400 beside one of 2048, so the mean of 65504 is 65523.5 in float,
// which f16 has not.
TEST(FewRowsOverflow, OfF16IsComputedAgain) {
  HEADRACE_NEEDS_GPU(90);
  constexpr std::uint16_t kOne = 0x3c00, kLargest = 0x7bff;
  constexpr std::uint16_t kFar = 0xb900;   // -0.625: a score of -40
  constexpr std::uint16_t kNear = 0x2829;  // 0.0325012: 2.08008, 3.00092 with log2 e
  std::vector<std::uint16_t> k(9000, kFar);
  k[0] = kNear;
  k[1000] = 0;
  const std::vector<std::uint16_t> q(20, kOne), v(9000, kLargest);
  EXPECT_EQ(attend(q, k, v, 1, DType::f16), std::vector<std::uint16_t>(20, kLargest));
}

// Scores of 2.55e38 (1.5 * 2^127) and 2.98e38 (1.75 * 2^127), whose products with log2 e overflow.
TEST(FewRowsOverflow, DoesNotReachTheWeightsOfSplits) {
  HEADRACE_NEEDS_GPU(90);
  // 2^60, 1.5 * 2^61, 1.75 * 2^61; a score has 64 products.
  constexpr std::uint16_t kQuery = 0x5d80, kKey = 0x5e40, kLargerKey = 0x5e60;
  constexpr std::uint16_t kHalf = 0x3f00, kOne = 0x3f80, kTwo = 0x4000;
  std::vector<std::uint16_t> q(20, kQuery), k(9000, 0), v(9000, kHalf);
  q[7] = kQuery | 0x8000;  // below 0 for these keys
  k[5] = kKey;
  v[5] = kOne;
  k[5000] = kLargerKey;
  v[5000] = kTwo;
  std::vector<std::uint16_t> expected(20, kTwo);
  expected[7] = kHalf;
  EXPECT_EQ(attend(q, k, v, 1), expected);
  k[5000] = kKey;
  expected.assign(20, 0x3fc0);  // the mean of 1 and 2
  expected[7] = kHalf;
  EXPECT_EQ(attend(q, k, v, 1), expected);
}

// What decides is the shape of a sequence. Needs no GPU.
TEST(FewRowsPlans, SplitKeysWhateverTheBatch) {
  Problem p = problem_of_5000_keys();
  p.head_dim = p.head_dim_v = 256;
  for (const std::int64_t batch : {1, 64, 10000}) {
    p.batch = batch;
    p.seqlen_q = 16;
    EXPECT_TRUE(are_split(p));
    p.seqlen_q = 17;  // 68 rows
    EXPECT_FALSE(are_split(p));
  }
  p.seqlen_q = 1;
  p.strict_rows = 1;
  EXPECT_TRUE(are_split(p));
  p.strict_rows = 0;
  p.num_splits = 1;
  EXPECT_FALSE(are_split(p));
  p.num_splits = 0;
  p.has_sinks = 1;
  EXPECT_FALSE(are_split(p));
}

TEST(FewRowsPlans, TakePagesWithFeaturesOfScores) {
  const DeviceInfo device = device_from_text("sm90:132");
  const auto plan_of = [&](std::int64_t head_dim, auto change) {
    Problem p;
    p.dtype = HEADRACE_BF16;
    p.seqlen_q = 2;
    p.seqlen_k = 5000;
    p.num_heads = 16;
    p.num_kv_heads = 4;
    p.head_dim = p.head_dim_v = head_dim;
    p.page_size = 16;
    p.num_pages = 1000;
    p.max_pages = 400;
    p.has_seqused_k = 1;
    change(p);
    return plan_attention(p, device);
  };
  const auto expect_split = [&](auto change) {
    for (const std::int64_t head_dim : {64, 128, 192, 256}) {
      const Plan plan = plan_of(head_dim, change);
      EXPECT_STREQ(plan.kernel(), kName);
      EXPECT_NE(std::string(plan.explain()).find("up to 5 splits"), std::string::npos);
    }
  };
  expect_split([](Problem& p) { p.softcap = 30; });
  expect_split([](Problem& p) { p.has_alibi = 1; });
  expect_split([](Problem& p) { p.has_mask = 1; });
  expect_split([](Problem& p) { p.has_tree_mask = 1; });
  expect_split([](Problem& p) {
    p.softcap = 30;
    p.has_alibi = 1;
  });
  const Plan more_rows = plan_of(128, [](Problem& p) {
    p.softcap = 30;
    p.seqlen_q = 17;
  });
  EXPECT_STREQ(more_rows.kernel(), "cuda_sm80_fwd");
}

}  // namespace
}  // namespace headrace::testing
