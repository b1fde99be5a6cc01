// page_indptr on GPUs: every kernel gives the bits of the same pages in a block_table of one row
// length, reports offsets that break a rule, and reads nothing outside of the table.
#include <string>

#include "cuda/paged_batch.h"

namespace headrace::testing {
namespace {

struct KernelCase {
  const char* kernel;
  Sizes sizes;
};

// Decode: few groups of keys, a few sequences with many, more sequences than the grid has CTAs.
std::vector<KernelCase> all_cases() {
  std::vector<KernelCase> all = {
      {"cuda_sm90_decode", {{1}, {1}, 1, 4, 1, 128}},
      {"cuda_sm90_decode", {{63, 64, 65}, {1, 1, 1}, 1, 8, 2, 128}},
      {"cuda_sm90_decode", {{511, 0, 512, 513, 17}, {2, 1, 2, 0, 1}, 2, 8, 2, 64}},
      {"cuda_sm90_decode", {{20000, 3, 700}, {4, 4, 1}, 4, 8, 2, 128}},
      {"cuda_sm90_decode", {{1300, 40}, {8, 8}, 8, 2, 1, 120, DType::f16}},
      {"cuda_sm90_fwd", {{300, 129, 0, 16}, {300, 100, 5, 16}, 300, 2, 1, 128}},
      {"cuda_sm90_fwd", {{127, 128, 1}, {40, 128, 20}, 128, 4, 2, 64}},
      {"cuda_sm90_fwd", {{112, 1000}, {70, 70}, 70, 4, 1, 96, DType::f16}},
      {"cuda_sm90_fwd", {{63, 65, 511}, {63, 0, 190}, 190, 2, 2, 256, DType::f16}},
      {"cuda_sm80_fwd", {{300, 129, 0, 16}, {300, 100, 5, 16}, 300, 2, 1, 128, DType::f32}},
      {"cuda_sm80_fwd", {{2000, 3}, {2, 2}, 2, 4, 2, 64, DType::f32}},
      {"cuda_simple", {{70, 129, 0}, {20, 20, 3}, 20, 2, 1, 264}},
  };
  for (const std::int64_t queries : {2, 20}) {
    Sizes many{{}, {}, queries, 4, 2, 64};
    for (std::int64_t b = 0; b < 900; ++b) {
      many.lengths.push_back(b * 37 % 250);
      many.queries.push_back(b % (queries + 1));
    }
    all.push_back({queries == 2 ? "cuda_sm90_decode" : "cuda_sm90_fwd", many});
  }
  return all;
}

TEST(CudaPageIndptr, HasTheBitsOfABlockTable) {
  HEADRACE_NEEDS_GPU(90);
  int index = 0;
  for (const auto& [kernel, sizes] : all_cases()) {
    SCOPED_TRACE(std::string(kernel) + " case " + std::to_string(index++));
    const Batch batch(sizes, kernel);
    for (const std::int64_t page_size : {1, 16, 24, 64})
      for (const bool is_ragged : {false, true}) {
        if (sizes.batch() > 100 && page_size != 16) continue;
        const AttentionOptions options{.causal = Causal::bottom_right,
                                       .window_left = page_size == 24 ? 90 : -1};
        const bool is_hnd = page_size == 64;
        ASSERT_EQ(batch.paged({page_size, is_hnd, true}, is_ragged, options),
                  batch.paged({page_size, is_hnd, false}, is_ragged, options))
            << "page size " << page_size << (is_ragged ? " ragged" : "");
      }
  }
}

// Sequences that begin with the pages of the one before them.
TEST(CudaPageIndptr, SharesPrefixes) {
  HEADRACE_NEEDS_GPU(90);
  const Sizes sizes{.lengths = {1024, 1025, 1535, 1536, 1537, 2049, 513,  512,  511, 0,
                                900,  901,  3000, 3000, 3001, 3002, 5000, 5000, 700, 700},
                    .queries = std::vector<std::int64_t>(20, 1),
                    .seqlen_q = 1,
                    .heads = 64,
                    .kv_heads = 8,
                    .dim = 128,
                    .shared = {0, 1024, 1024, 1000, 1024, 1537, 512, 511,  511, 0,
                               0, 600,  512,  2990, 3000, 3000, 0,   4096, 0,   700}};
  const Batch batch(sizes, "cuda_sm90_decode");
  AttentionOptions sharing{.causal = Causal::bottom_right};
  sharing.max_shared_prefix = 1 << 20;
  for (const std::int64_t page_size : {8, 16, 64})
    EXPECT_EQ(batch.paged({page_size, false, true}, true, sharing),
              batch.paged({page_size, false, false}, true, {.causal = Causal::bottom_right}))
        << "page size " << page_size;
}

struct BadOffsets {
  std::vector<std::int32_t> indptr, used;
  const char* text;  // of the check; empty: a GPU has nothing to report
  bool is_refused;   // with options.checked
};

// Two sequences over 4 pages of 16 keys and a table {0, 1, 2, 3}.
std::vector<BadOffsets> bad_offsets() {
  constexpr const char* kFirst = "block_table on cuda:0: a used entry of sequence 0";
  constexpr const char* kSecond = "block_table on cuda:0: a used entry of sequence 1";
  return {{{0, 2, 4}, {32, 32}, "", false},
          {{1, 3, 3}, {32, 0}, "", false},
          {{0, 1, 3}, {32, 32}, kFirst, true},
          {{0, 2, 3}, {32, 17}, kSecond, true},
          {{2, 1, 4}, {16, 32}, kFirst, true},            // descending
          {{0, 4, 2}, {32, 16}, kSecond, true},           // descending
          {{-1, 2, 4}, {16, 32}, kFirst, true},           // before the table
          {{0, 4, 5}, {32, 16}, kSecond, true},           // behind the table
          {{0, 2, 2147483647}, {32, 33}, kSecond, true},  // its entries end with the table
          {{0, 2, 2147483647}, {32, 32}, "", true},       // not used
          {{2147483647, 2147483647, 4}, {1, 0}, kFirst, true},
          {{-2147483647 - 1, -2147483647 - 1, 4}, {1, 0}, kFirst, true}};
}

// Two sequences over pages of 16 keys, of one head.
class TwoSequences {
 public:
  static constexpr std::int64_t kPages = 4, kSize = 16;

  TwoSequences(const char* kernel, DType dtype, std::int64_t seqlen_q, std::int64_t dim)
      : kernel_(kernel),
        dtype_(dtype),
        seqlen_q_(seqlen_q),
        dim_(dim),
        kv_(numbers(dtype, kPages * kSize * dim, 1)),
        q_(numbers(dtype, 2 * seqlen_q * dim, 2)),
        out_(numbers(dtype, 2 * seqlen_q * dim, 3)) {}

  AttentionTensors tensors(const OnDevice<std::int32_t>& used) const {
    AttentionTensors t{.q = on_device(q_.data(), dtype_, {2, seqlen_q_, 1, dim_}),
                       .k = on_device(kv_.data(), dtype_, {kPages, kSize, 1, dim_}),
                       .v = on_device(kv_.data(), dtype_, {kPages, kSize, 1, dim_}),
                       .out = on_device(out_.data(), dtype_, {2, seqlen_q_, 1, dim_})};
    t.seqused_k = on_device(used.data(), DType::i32, {2});
    return t;
  }
  // Keys that the pages of a sequence have room for, of those in use; over a block_table.
  std::vector<unsigned char> out_of_rows(const BadOffsets& bad) const {
    std::vector<std::int32_t> pages(2 * kPages, kGarbage), used;
    for (std::size_t b = 0; b < 2; ++b) {
      const std::int64_t begin = bad.indptr[b],
                         end = std::min<std::int64_t>(bad.indptr[b + 1], kPages);
      const std::int64_t count = begin < 0 ? 0 : std::max<std::int64_t>(end - begin, 0);
      for (std::int64_t i = 0; i < count; ++i)
        pages[b * kPages + static_cast<std::size_t>(i)] = static_cast<std::int32_t>(begin + i);
      used.push_back(static_cast<std::int32_t>(std::min<std::int64_t>(bad.used[b], count * kSize)));
    }
    const OnDevice<std::int32_t> pages_device(pages), used_device(used);
    AttentionTensors t = tensors(used_device);
    t.block_table = on_device(pages_device.data(), DType::i32, {2, kPages});
    EXPECT_STREQ(plan_attention(Problem(t), cuda_info(0)).kernel(), kernel_);
    attention_forward(t);
    EXPECT_EQ(headrace_check(HEADRACE_CUDA, 0, nullptr), HEADRACE_OK) << headrace_last_error();
    return out_.read();
  }
  // Around the table lie numbers of pages, which no sequence may read.
  void expect_reports(const BadOffsets& bad) const {
    const std::vector<unsigned char> expected = out_of_rows(bad);
    const OnDevice<std::int32_t> table({0, 0, 1, 2, 3, 0, 0}), indptr(bad.indptr), used(bad.used);
    AttentionTensors t = tensors(used);
    t.block_table = on_device(table.data() + 1, DType::i32, {kPages});
    t.page_indptr = on_device(indptr.data(), DType::i32, {3});
    EXPECT_STREQ(plan_attention(Problem(t), cuda_info(0)).kernel(), kernel_);
    attention_forward(t);
    const bool is_wrong = *bad.text != 0;
    EXPECT_EQ(headrace_check(HEADRACE_CUDA, 0, nullptr),
              is_wrong ? HEADRACE_INVALID_ARGUMENT : HEADRACE_OK)
        << headrace_last_error();
    if (is_wrong) {
      EXPECT_EQ(std::string(headrace_last_error()).find(bad.text), 0u) << headrace_last_error();
    }
    EXPECT_EQ(out_.read(), expected) << "keys without a page, or of another sequence";
    AttentionOptions checked;
    checked.checked = true;
    if (bad.is_refused) {
      EXPECT_THROW(attention_forward(t, checked), Error);
    } else {
      EXPECT_NO_THROW(attention_forward(t, checked));
    }
    EXPECT_EQ(headrace_check(HEADRACE_CUDA, 0, nullptr), HEADRACE_OK) << headrace_last_error();
  }

 private:
  const char* kernel_;
  DType dtype_;
  std::int64_t seqlen_q_, dim_;
  OnDevice<unsigned char> kv_, q_, out_;
};

void expect_reports(const char* kernel, DType dtype, std::int64_t seqlen_q, std::int64_t dim) {
  const TwoSequences sequences(kernel, dtype, seqlen_q, dim);
  for (const BadOffsets& bad : bad_offsets()) {
    SCOPED_TRACE(std::string(kernel) + " indptr " + std::to_string(bad.indptr[0]) + ' ' +
                 std::to_string(bad.indptr[1]) + ' ' + std::to_string(bad.indptr[2]));
    sequences.expect_reports(bad);
  }
}

TEST(CudaPageIndptr, BadOffsetsAreReported) {
  HEADRACE_NEEDS_GPU(90);
  expect_reports("cuda_sm90_decode", DType::bf16, 1, 128);
  expect_reports("cuda_sm90_fwd", DType::bf16, 70, 128);
  expect_reports("cuda_sm80_fwd", DType::f32, 70, 128);
  expect_reports("cuda_sm80_fwd", DType::f32, 1, 64);
  expect_reports("cuda_simple", DType::bf16, 3, 264);
}

// A table without entries has no address, which kernels must not take for keys without pages.
TEST(CudaPageIndptr, ATableMayBeEmpty) {
  HEADRACE_NEEDS_GPU(90);
  const std::int64_t dim = 128;
  const OnDevice<unsigned char> kv(numbers(DType::bf16, 4 * 16 * dim, 1));
  const OnDevice<unsigned char> q(numbers(DType::bf16, 2 * dim, 2)),
      out(numbers(DType::bf16, 2 * dim, 3));
  for (const std::int32_t keys : {0, 5}) {
    const OnDevice<std::int32_t> indptr({0, 0, 0}), used({0, keys});
    AttentionTensors t{.q = on_device(q.data(), DType::bf16, {2, 1, 1, dim}),
                       .k = on_device(kv.data(), DType::bf16, {4, 16, 1, dim}),
                       .v = on_device(kv.data(), DType::bf16, {4, 16, 1, dim}),
                       .out = on_device(out.data(), DType::bf16, {2, 1, 1, dim})};
    t.block_table = on_device(nullptr, DType::i32, {0});
    t.page_indptr = on_device(indptr.data(), DType::i32, {3});
    t.seqused_k = on_device(used.data(), DType::i32, {2});
    AttentionOptions options;
    options.max_seqlen_k = 64;
    attention_forward(t, options);
    EXPECT_EQ(headrace_check(HEADRACE_CUDA, 0, nullptr),
              keys == 0 ? HEADRACE_OK : HEADRACE_INVALID_ARGUMENT);
    for (const unsigned char byte : out.read()) ASSERT_EQ(byte, 0);
  }
}

// A step of five sequences: their lengths, and the same pages in both forms.
struct Step {
  std::vector<std::int32_t> lengths, entries, offsets = {0}, rows;

  Step(std::int64_t step, std::int64_t most, std::int64_t size) {
    constexpr std::int64_t kBatch = 5;
    const std::int64_t pages = kBatch * most;
    rows.assign(static_cast<std::size_t>(pages), kGarbage);
    for (std::int64_t b = 0; b < kBatch; ++b) {
      lengths.push_back(static_cast<std::int32_t>((step * 131 + b * 977) % (most * size + 1)));
      for (std::int64_t i = 0; i * size < lengths.back(); ++i) {
        entries.push_back(static_cast<std::int32_t>((step * 17 + b * most + i * 7) % pages));
        rows[static_cast<std::size_t>(b * most + i)] = entries.back();
      }
      offsets.push_back(static_cast<std::int32_t>(entries.size()));
    }
    entries.resize(rows.size(), kGarbage);
  }
};
void copy_list(const OnDevice<std::int32_t>& to, const std::vector<std::int32_t>& from) {
  HEADRACE_EXPECT_CUDA(cudaMemcpy(to.data(), from.data(), from.size() * 4, cudaMemcpyHostToDevice));
}

// A graph is captured once and replayed with other lengths, offsets and tables, and has the bits of
// a block_table of one row length.
TEST(CudaPageIndptr, AGraphServesOtherOffsets) {
  HEADRACE_NEEDS_GPU(90);
  const std::int64_t batch = 5, most = 40, size = 16, pages = batch * most, dim = 128;
  const OnDevice<unsigned char> kv(numbers(DType::bf16, pages * size * 2 * dim, 1));
  const OnDevice<unsigned char> q(numbers(DType::bf16, batch * 8 * dim, 2)),
      out(numbers(DType::bf16, batch * 8 * dim, 3)),
      eager(numbers(DType::bf16, batch * 8 * dim, 4));
  const Step first(0, most, size);
  const OnDevice<std::int32_t> table(first.entries), rows(first.rows), indptr(first.offsets),
      used(first.lengths);
  AttentionTensors t{.q = on_device(q.data(), DType::bf16, {batch, 1, 8, dim}),
                     .k = on_device(kv.data(), DType::bf16, {pages, size, 2, dim}),
                     .v = on_device(kv.data(), DType::bf16, {pages, size, 2, dim}),
                     .out = on_device(eager.data(), DType::bf16, {batch, 1, 8, dim})};
  t.block_table = on_device(rows.data(), DType::i32, {batch, most});
  t.seqused_k = on_device(used.data(), DType::i32, {batch});
  AttentionTensors t_indptr = t;
  t_indptr.out = on_device(out.data(), DType::bf16, {batch, 1, 8, dim});
  t_indptr.block_table = on_device(table.data(), DType::i32, {pages});
  t_indptr.page_indptr = on_device(indptr.data(), DType::i32, {batch + 1});
  AttentionOptions options;
  options.max_seqlen_k = most * size;
  const Plan plan = plan_attention(Problem(t_indptr, options), cuda_info(0));
  const OnDevice<unsigned char> workspace(
      std::vector<unsigned char>(plan.workspace_bytes() + 1, 0xFF));
  cudaStream_t stream = nullptr;
  HEADRACE_EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  HEADRACE_EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  plan.run(t_indptr, {workspace.data(), plan.workspace_bytes()}, {}, stream);
  HEADRACE_EXPECT_CUDA(cudaStreamEndCapture(stream, &graph));
  HEADRACE_EXPECT_CUDA(cudaGraphInstantiate(&replay, graph, 0));
  for (std::int64_t i = 0; i < 50; ++i) {
    const Step step(i, most, size);
    copy_list(used, step.lengths);
    copy_list(table, step.entries);
    copy_list(indptr, step.offsets);
    copy_list(rows, step.rows);
    HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
    HEADRACE_EXPECT_CUDA(cudaGraphLaunch(replay, stream));
    HEADRACE_EXPECT_CUDA(cudaStreamSynchronize(stream));
    attention_forward(t);
    ASSERT_EQ(out.read(), eager.read()) << "step " << i;
  }
  EXPECT_EQ(headrace_check(HEADRACE_CUDA, 0, nullptr), HEADRACE_OK) << headrace_last_error();
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace headrace::testing
