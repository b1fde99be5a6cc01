// Shared prefixes of the decode kernel: the bits are those without, and what neighbouring
// sequences have in the same pages is found.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "cuda/paged_batch.h"

namespace headrace::testing {
namespace {

constexpr const char* kName = "cuda_sm90_decode";
constexpr std::int64_t kWhole = 1 << 30;  // max_shared_prefix: all of it

std::vector<std::int64_t> repeated(std::size_t count, std::int64_t value) {
  return std::vector<std::int64_t>(count, value);
}

// Lengths and shared keys around groups and chunks; runs that end and begin, alone sequences, more
// rows than a slice has, sequences that are equal, shorter than what is shared, or empty.
std::vector<Sizes> all_sizes() {
  std::vector<Sizes> all;
  const auto add = [&](Sizes s, std::vector<std::int64_t> shared) {
    if (s.queries.empty()) s.queries = repeated(s.lengths.size(), s.seqlen_q);
    s.shared = std::move(shared);
    all.push_back(std::move(s));
  };
  add({repeated(40, 1300), {}, 1, 32, 8, 128}, repeated(40, 1040));
  add({repeated(70, 700), {}, 1, 8, 2, 128, DType::f16}, repeated(70, 512));
  add({repeated(36, 1030), {}, 2, 32, 4, 128}, repeated(36, 1030));  // equal sequences
  add({{1024, 1025, 1535, 1536, 1537, 2049, 513,  512,  511, 0,
        900,  901,  3000, 3000, 3001, 3002, 5000, 5000, 700, 700},
       {},
       1,
       64,
       8,
       128},
      {0, 1024, 1024, 1000, 1024, 1537, 512, 511,  511, 0,
       0, 600,  512,  2990, 3000, 3000, 0,   4096, 0,   700});
  add({repeated(24, 8192 + 600), {}, 1, 8, 8, 128}, repeated(24, 8192 + 512));
  add({repeated(20, 16384 + 5), {}, 1, 8, 8, 64}, repeated(20, 16384));
  add({repeated(20, 8100), {}, 1, 8, 8, 64, DType::f16}, repeated(20, 8000));
  add({repeated(30, 1100),
       {1, 4, 0, 2, 3, 4, 4, 4, 1, 0, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 1},
       4,
       16,
       8,
       96},
      repeated(30, 1096));
  for (Sizes& s : all) s.shared[0] = 0;
  return all;
}

class DecodePrefix : public ::testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override { HEADRACE_NEEDS_GPU(90); }
};

TEST_P(DecodePrefix, HasTheBitsOfTheSequenceAlone) {
  const Batch batch(GetParam(), kName);
  for (const std::int64_t page_size : {16, 3, 64, 1024})
    for (const std::int64_t max_prefix : {kWhole, std::int64_t{512}, std::int64_t{1600}})
      for (const bool is_ragged : {false, true}) {
        const bool is_large = batch.sizes().longest() > 6000;  // gigabytes of host work
        if (is_large && (page_size != 16 || max_prefix == 512 || is_ragged)) continue;
        SCOPED_TRACE("page size " + std::to_string(page_size) + ", at most " +
                     std::to_string(max_prefix) + (is_ragged ? " ragged" : ""));
        AttentionOptions options{.causal = Causal::bottom_right, .max_shared_prefix = max_prefix};
        const auto with = batch.paged({page_size, page_size == 64}, is_ragged, options);
        options.max_shared_prefix = 0;
        EXPECT_EQ(with, batch.paged({page_size, page_size == 64}, is_ragged, options));
        if (page_size == 16) expect_bits_alone(batch, is_ragged, options, with);
      }
}

// Other runs of groups, other CTAs: every way to continue a prefix.
TEST_P(DecodePrefix, DoesNotDependOnTheItemsOfWork) {
  const Batch batch(GetParam(), kName);
  AttentionOptions options{.causal = Causal::bottom_right};
  const auto expected = batch.paged({16, false}, true, options);
  options.max_shared_prefix = kWhole;
  const bool is_large = batch.sizes().longest() > 6000;
  for (const std::uint32_t num_units : {1, 5, 50, 2, 16, 1024}) {
    if (is_large && num_units != 5 && num_units != 50) continue;
    EXPECT_EQ(batch.paged({16, false}, true, options, num_units), expected)
        << num_units << " units";
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, DecodePrefix, ::testing::ValuesIn(all_sizes()),
                         [](const auto& test) { return "Sizes" + std::to_string(test.index); });

// A call whose workspace is read: groups that are read once for the run of a sequence.
std::vector<std::int32_t> found_groups(const std::vector<std::int32_t>& lengths,
                                       const std::vector<std::vector<std::int32_t>>& table,
                                       std::int64_t page_size, AttentionOptions options) {
  const auto batch = static_cast<std::int64_t>(lengths.size());
  const auto columns = static_cast<std::int64_t>(table[0].size());
  constexpr std::int64_t kHeads = 32, kKvHeads = 8, kDim = 64, kPages = 4096;
  std::vector<std::int32_t> entries;
  for (const auto& row : table) entries.insert(entries.end(), row.begin(), row.end());
  const OnDevice<unsigned char> kv(numbers(DType::bf16, kPages * page_size * kDim, 1));
  const OnDevice<unsigned char> q(numbers(DType::bf16, batch * kHeads * kDim, 2)),
      out(numbers(DType::bf16, batch * kHeads * kDim, 3));
  const OnDevice<std::int32_t> table_device(entries), used(lengths);
  // All KV heads are the same memory.
  TensorView pages = on_device(kv.data(), DType::bf16, {kPages, page_size, kKvHeads, kDim});
  pages.strides[0] = page_size * kDim, pages.strides[1] = kDim, pages.strides[2] = 0;
  AttentionTensors t{.q = on_device(q.data(), DType::bf16, {batch, 1, kHeads, kDim}),
                     .k = pages,
                     .v = pages,
                     .out = on_device(out.data(), DType::bf16, {batch, 1, kHeads, kDim})};
  t.block_table = on_device(table_device.data(), DType::i32, {batch, columns});
  t.seqused_k = on_device(used.data(), DType::i32, {batch});
  const Plan plan = plan_attention(Problem(t, options), cuda_info(0));
  EXPECT_STREQ(plan.kernel(), kName) << plan.explain();
  if (std::string(plan.explain()).find("that neighbouring sequences share") == std::string::npos)
    return {};
  const std::size_t bytes = plan.workspace_bytes();
  const OnDevice<unsigned char> workspace(std::vector<unsigned char>(bytes, 0xFF));
  plan.run(t, {workspace.data(), bytes}, {});
  // They are the last numbers in front of what the alignment of other memory would need.
  const auto all = workspace.read();
  std::vector<std::int32_t> groups(lengths.size());
  std::memcpy(groups.data(), all.data() + bytes - 16 - 4 * groups.size(), 4 * groups.size());
  return groups;
}

TEST(DecodePrefixes, AreFoundBetweenNeighbours) {
  HEADRACE_NEEDS_GPU(90);
  constexpr std::int64_t kColumns = 150, kPage = 16;
  std::int32_t next = 0;
  std::vector<std::vector<std::int32_t>> table;
  std::vector<std::int32_t> lengths;
  const auto add = [&](std::int32_t length, std::int64_t shared_entries) {
    std::vector<std::int32_t> row(kColumns);
    for (std::int64_t i = 0; i < kColumns; ++i)
      row[static_cast<std::size_t>(i)] =
          i < shared_entries ? table.back()[static_cast<std::size_t>(i)] : next++ % 4096;
    table.push_back(row);
    lengths.push_back(length);
  };
  for (int i = 0; i < 20; ++i) add(2400, i == 0 ? 0 : 149);  // 2384 keys: 4 groups
  add(2400, 0);                                              // alone
  for (int i = 0; i < 4; ++i) add(1100, i == 0 ? 0 : 63);    // 1008 keys: 1 group
  for (int i = 0; i < 4; ++i) add(1024, i == 0 ? 0 : 150);   // the last group is not shared
  // The first has 1 group in common with those before it, and 4 with those behind it.
  for (int i = 0; i < 4; ++i) add(2400, i == 0 ? 64 : 130);
  const AttentionOptions options{.causal = Causal::bottom_right, .max_shared_prefix = kWhole};
  std::vector<std::int32_t> expected(20, 4);
  for (const std::int32_t groups : {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 4, 4})
    expected.push_back(groups);
  EXPECT_EQ(found_groups(lengths, table, kPage, options), expected);
  AttentionOptions less = options;
  less.max_shared_prefix = 1535;
  EXPECT_EQ(found_groups(lengths, table, kPage, less)[0], 2);
  less.max_shared_prefix = 511;
  EXPECT_TRUE(found_groups(lengths, table, kPage, less).empty());
  less = options;
  less.window_left = 1000;  // rows that do not see the prefix
  EXPECT_TRUE(found_groups(lengths, table, kPage, less).empty());
}

// Captured once, replayed with other tables and lengths.
TEST(DecodePrefixes, OfAGraphFollowTheTables) {
  HEADRACE_NEEDS_GPU(90);
  const std::int64_t batch = 24, columns = 80, size = 16, pages = 512, dim = 128;
  const OnDevice<unsigned char> kv(numbers(DType::bf16, pages * size * 8 * dim, 1));
  const OnDevice<unsigned char> q(numbers(DType::bf16, batch * 32 * dim, 2));
  const OnDevice<unsigned char> out(numbers(DType::bf16, batch * 32 * dim, 3));
  const OnDevice<unsigned char> other(numbers(DType::bf16, batch * 32 * dim, 4));
  const OnDevice<std::int32_t> table(
      std::vector<std::int32_t>(static_cast<std::size_t>(batch * columns))),
      used(std::vector<std::int32_t>(static_cast<std::size_t>(batch)));
  AttentionTensors t{.q = on_device(q.data(), DType::bf16, {batch, 1, 32, dim}),
                     .k = on_device(kv.data(), DType::bf16, {pages, size, 8, dim}),
                     .v = on_device(kv.data(), DType::bf16, {pages, size, 8, dim}),
                     .out = on_device(out.data(), DType::bf16, {batch, 1, 32, dim})};
  t.block_table = on_device(table.data(), DType::i32, {batch, columns});
  t.seqused_k = on_device(used.data(), DType::i32, {batch});
  const Plan plan = plan_attention(Problem(t, {.max_shared_prefix = columns * size}), cuda_info(0));
  ASSERT_NE(std::string(plan.explain()).find("1024 keys that neighbouring sequences share"),
            std::string::npos)
      << plan.explain();
  const Plan without = plan_attention(Problem(t), cuda_info(0));
  const OnDevice<unsigned char> workspace(
      std::vector<unsigned char>(plan.workspace_bytes() + 1, 0xFF));
  const Workspace memory{workspace.data(), plan.workspace_bytes()};
  AttentionTensors t_other = t;
  t_other.out = on_device(other.data(), DType::bf16, {batch, 1, 32, dim});
  cudaStream_t stream = nullptr;
  HEADRACE_EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  HEADRACE_EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < 3; ++i) plan.run(t, memory, {}, stream);
  HEADRACE_EXPECT_CUDA(cudaStreamEndCapture(stream, &graph));
  HEADRACE_EXPECT_CUDA(cudaGraphInstantiate(&replay, graph, 0));
  for (std::int32_t step = 0; step < 200; ++step) {
    std::vector<std::int32_t> lengths, entries;
    for (std::int32_t b = 0; b < batch; ++b) {
      lengths.push_back((step * 131 + b * 977) % (static_cast<std::int32_t>(columns * size) + 1));
      const std::int32_t shared = (step * 29 + b / 6 * 31) % 81;  // entries, in runs of six
      for (std::int32_t i = 0; i < columns; ++i)
        entries.push_back(i < shared && b % 6 != 0
                              ? entries[entries.size() - static_cast<std::size_t>(columns)]
                              : (step * 17 + b * 37 + i * 7) % static_cast<std::int32_t>(pages));
    }
    HEADRACE_EXPECT_CUDA(
        cudaMemcpy(used.data(), lengths.data(), lengths.size() * 4, cudaMemcpyHostToDevice));
    HEADRACE_EXPECT_CUDA(
        cudaMemcpy(table.data(), entries.data(), entries.size() * 4, cudaMemcpyHostToDevice));
    HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < 5; ++i) HEADRACE_EXPECT_CUDA(cudaGraphLaunch(replay, stream));
    HEADRACE_EXPECT_CUDA(cudaStreamSynchronize(stream));
    without.run(t_other, memory, {}, nullptr);
    ASSERT_EQ(other.read(), out.read()) << "step " << step;
  }
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace headrace::testing
