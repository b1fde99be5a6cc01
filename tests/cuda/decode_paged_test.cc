// The decode kernel over pages: the bits of a row are those of the contiguous call of its sequence
// alone, whatever the page size, the layout and the order of the pages, the other sequences of the
// batch, and what lies in unused slots and table entries.
#include <string>

#include "cuda/paged_batch.h"

namespace headrace::testing {
namespace {

constexpr const char* kName = "cuda_sm90_decode";

// Lengths around blocks, splits, groups and chunks; batches of more sequences than threads that
// count them; sequences without keys and without queries.
std::vector<Sizes> all_sizes() {
  std::vector<Sizes> all = {
      {{1}, {1}, 1, 4, 1, 128},
      {{63, 64, 65}, {1, 1, 1}, 1, 8, 2, 128},
      {{511, 0, 512, 513, 17}, {2, 1, 2, 0, 1}, 2, 8, 2, 64},
      {{8191, 8192, 8193}, {1, 1, 1}, 1, 4, 1, 128},
      {{20000, 3, 700}, {4, 4, 1}, 4, 8, 2, 128},
      {{1300, 40}, {8, 8}, 8, 2, 1, 120, DType::f16},
      {{4097, 15, 16, 2049}, {1, 1, 1, 1}, 1, 6, 2, 96},
  };
  Sizes many{{}, {}, 2, 4, 2, 64};
  for (std::int64_t b = 0; b < 900; ++b) {
    many.lengths.push_back(b * 37 % 150);
    many.queries.push_back(b % 3);
  }
  all.push_back(many);
  // More heads than multiprocessors, of which shares have some alone and cut others; a window that
  // leaves two groups of different chunks.
  Sizes heads{{}, {}, 2, 8, 2, 64};
  for (std::int64_t b = 0; b < 100; ++b) {
    heads.lengths.push_back(b % 9 == 5 ? 8192 + 29 * b % 700 : b * 311 % 1700);
    heads.queries.push_back(b % 7 == 3 ? 0 : 1 + b % 2);
  }
  all.push_back(heads);
  Sizes equal{{}, {}, 1, 8, 2, 128};
  for (std::int64_t b = 0; b < 200; ++b) {
    equal.lengths.push_back(1024 + (b % 3 == 0 ? 36 : 0));
    equal.queries.push_back(1);
  }
  all.push_back(equal);
  // Two sequences for each thread that counts the batch, and heads of several items.
  Sizes pairs{{}, {}, 2, 4, 1, 64};
  for (std::int64_t b = 0; b < 150; ++b) {
    pairs.lengths.push_back(b % 10 == 3 ? 9000 + b : b * 211 % 1500);
    pairs.queries.push_back(b % 5 == 2 ? 0 : 1 + b % 2);
  }
  all.push_back(pairs);
  // More sequences than have their rows in shared memory; items of one group on many
  // multiprocessors.
  Sizes more{{}, {}, 2, 4, 1, 64};
  for (std::int64_t b = 0; b < 300; ++b) {
    more.lengths.push_back(b * 211 % 1600);
    more.queries.push_back(b % 5 == 2 ? 0 : 1 + b % 2);
  }
  all.push_back(more);
  return all;
}

class DecodePages : public ::testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override { HEADRACE_NEEDS_GPU(90); }
};

TEST_P(DecodePages, HaveTheBitsOfTheSequenceAlone) {
  const Batch batch(GetParam(), kName);
  const bool is_small = batch.sizes().batch() < 100;
  for (const std::int64_t page_size : {1, 3, 8, 16, 24, 64, 256})
    for (const bool is_hnd : {false, true})
      for (const bool is_ragged : {false, true}) {
        if (!is_small && page_size != 16) continue;
        SCOPED_TRACE("page size " + std::to_string(page_size) + (is_hnd ? " HND" : " NHD") +
                     (is_ragged ? " ragged" : ""));
        const AttentionOptions options{.causal = Causal::bottom_right,
                                       .window_left = is_hnd ? 600 : -1};
        expect_bits_alone(batch, is_ragged, options,
                          batch.paged({page_size, is_hnd}, is_ragged, options));
      }
}

TEST_P(DecodePages, DoNotDependOnTheItemsOfWork) {
  const Batch batch(GetParam(), kName);
  const std::vector<Bits> expected = batch.paged({16, false}, true, {});
  for (const std::uint32_t num_units : {1, 2, 5, 16, 50, 1024})
    EXPECT_EQ(batch.paged({16, false}, true, {}, num_units), expected) << num_units << " units";
}

INSTANTIATE_TEST_SUITE_P(Kernels, DecodePages, ::testing::ValuesIn(all_sizes()),
                         [](const auto& test) { return "Sizes" + std::to_string(test.index); });

TEST(DecodePagesErrors, AreReportedByTheCheck) {
  HEADRACE_NEEDS_GPU(90);
  expect_reported_errors(kName, 1);
}

// By clusters, equal shares and the persistent grid, which read entries ahead.
TEST(DecodePagesErrors, AreReportedWhateverTheWork) {
  HEADRACE_NEEDS_GPU(90);
  const std::int64_t pages = 4, size = 16, dim = 128;
  const OnDevice<unsigned char> kv(numbers(DType::bf16, pages * size * dim, 1));
  const struct {
    std::int64_t batch, num_used;  // entries of a sequence
  } works[] = {{2, 60}, {2, 2500}, {300, 256}};
  for (const auto& [batch, num_used] : works) {
    const std::int64_t columns = num_used + 1;
    const OnDevice<unsigned char> q(numbers(DType::bf16, batch * dim, 2)),
        out(numbers(DType::bf16, batch * dim, 3));
    const std::size_t num_seqs = static_cast<std::size_t>(batch);
    const OnDevice<std::int32_t> used(
        std::vector<std::int32_t>(num_seqs, static_cast<std::int32_t>(num_used * size)));
    const std::string error =
        "block_table on cuda:0: a used entry of sequence " + std::to_string(batch - 1);
    for (const std::int64_t bad :
         {std::int64_t{0}, std::int64_t{5}, num_used / 2, num_used - 1, num_used}) {
      SCOPED_TRACE(std::to_string(batch) + " sequences, entry " + std::to_string(bad) + " of " +
                   std::to_string(num_used));
      std::vector<std::int32_t> entries(num_seqs * static_cast<std::size_t>(columns), 1);
      entries[static_cast<std::size_t>((batch - 1) * columns + bad)] = pages;
      const OnDevice<std::int32_t> table(entries);
      AttentionTensors t{.q = on_device(q.data(), DType::bf16, {batch, 1, 1, dim}),
                         .k = on_device(kv.data(), DType::bf16, {pages, size, 1, dim}),
                         .v = on_device(kv.data(), DType::bf16, {pages, size, 1, dim}),
                         .out = on_device(out.data(), DType::bf16, {batch, 1, 1, dim})};
      t.block_table = on_device(table.data(), DType::i32, {batch, columns});
      t.seqused_k = on_device(used.data(), DType::i32, {batch});
      EXPECT_STREQ(plan_attention(Problem(t, AttentionOptions{}), cuda_info(0)).kernel(), kName);
      attention_forward(t);
      const headrace_status status = headrace_check(HEADRACE_CUDA, 0, nullptr);
      EXPECT_EQ(status, bad == num_used ? HEADRACE_OK : HEADRACE_INVALID_ARGUMENT);
      if (bad == num_used) continue;
      EXPECT_EQ(std::string(headrace_last_error()).find(error), 0u) << headrace_last_error();
    }
  }
}

// A graph is captured once and replayed with other lengths and tables.
TEST(DecodePagesGraph, ServesOtherLengths) {
  HEADRACE_NEEDS_GPU(90);
  const std::int64_t batch = 5, columns = 40, size = 16, pages = batch * columns, dim = 128;
  const OnDevice<unsigned char> kv(numbers(DType::bf16, pages * size * 2 * dim, 1));
  const OnDevice<unsigned char> q(numbers(DType::bf16, batch * 8 * dim, 2));
  const OnDevice<unsigned char> out(numbers(DType::bf16, batch * 8 * dim, 3));
  const OnDevice<unsigned char> eager(numbers(DType::bf16, batch * 8 * dim, 4));
  const OnDevice<std::int32_t> table(std::vector<std::int32_t>(batch * columns)),
      used({0, 0, 0, 0, 0});
  AttentionTensors t{.q = on_device(q.data(), DType::bf16, {batch, 1, 8, dim}),
                     .k = on_device(kv.data(), DType::bf16, {pages, size, 2, dim}),
                     .v = on_device(kv.data(), DType::bf16, {pages, size, 2, dim}),
                     .out = on_device(out.data(), DType::bf16, {batch, 1, 8, dim})};
  t.block_table = on_device(table.data(), DType::i32, {batch, columns});
  t.seqused_k = on_device(used.data(), DType::i32, {batch});
  const Plan plan = plan_attention(Problem(t), cuda_info(0));
  const OnDevice<unsigned char> workspace(
      std::vector<unsigned char>(plan.workspace_bytes() + 1, 0xFF));
  const Workspace memory{workspace.data(), plan.workspace_bytes()};
  cudaStream_t stream = nullptr;
  HEADRACE_EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  HEADRACE_EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  plan.run(t, memory, {}, stream);
  HEADRACE_EXPECT_CUDA(cudaStreamEndCapture(stream, &graph));
  HEADRACE_EXPECT_CUDA(cudaGraphInstantiate(&replay, graph, 0));
  AttentionTensors t_eager = t;
  t_eager.out = on_device(eager.data(), DType::bf16, {batch, 1, 8, dim});
  for (std::int64_t step = 0; step < 100; ++step) {
    std::vector<std::int32_t> lengths, entries;
    for (std::int64_t b = 0; b < batch; ++b) {
      lengths.push_back(static_cast<std::int32_t>((step * 131 + b * 977) % (columns * size + 1)));
      for (std::int64_t i = 0; i < columns; ++i)
        entries.push_back(static_cast<std::int32_t>((step * 17 + b * columns + i * 7) % pages));
    }
    HEADRACE_EXPECT_CUDA(
        cudaMemcpy(used.data(), lengths.data(), lengths.size() * 4, cudaMemcpyHostToDevice));
    HEADRACE_EXPECT_CUDA(
        cudaMemcpy(table.data(), entries.data(), entries.size() * 4, cudaMemcpyHostToDevice));
    HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
    HEADRACE_EXPECT_CUDA(cudaGraphLaunch(replay, stream));
    HEADRACE_EXPECT_CUDA(cudaStreamSynchronize(stream));
    plan.run(t_eager, memory, {}, nullptr);
    ASSERT_EQ(eager.read(), out.read()) << "step " << step;
  }
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace headrace::testing
