// A paged KV cache in GPU memory: after forks, copies on write, moves and swaps every sequence
// reads the keys and values that were written for it, and attention over its pages has the bits of
// the contiguous call. The rules of the cache itself are tested on the CPU (src/kv_cache/).
#include <headrace/kv_cache.hpp>
#include <map>
#include <random>

#include "cuda/repeat.h"

namespace headrace::testing {
namespace {

constexpr std::int64_t kLayers = 2, kHeads = 2, kDim = 64, kNumPages = 40, kHostPages = 20;
constexpr std::int64_t kRow = kHeads * kDim;  // elements of a token

using Rows = std::vector<std::uint16_t>;  // [token][head][dim]

class GpuCache {
 public:
  GpuCache(std::int64_t page_size, KvLayout layout)
      : cache_({.num_layers = kLayers,
                .num_kv_heads = kHeads,
                .head_dim = kDim,
                .num_pages = kNumPages,
                .num_host_pages = kHostPages,
                .page_size = page_size,
                .dtype = DType::bf16,
                .layout = layout,
                .device_type = HEADRACE_CUDA}),
        page_size_(page_size) {}

  KvCache& cache() { return cache_; }
  // Of a layer, K or V: what the sequence must read.
  std::map<std::int64_t, std::vector<Rows>> model;  // sequence -> [2 * layer + is_v]

  void add(std::int64_t sequence) { model[sequence].resize(2 * kLayers); }

  // Reserves slots and writes random rows into all of them; the model gets those of `keep`.
  void write(std::int64_t sequence, std::int64_t count, const std::vector<std::int64_t>& keep) {
    cache_.reserve(sequence, count);
    const std::int32_t num_tokens = static_cast<std::int32_t>(count);
    std::vector<std::int64_t> slots(static_cast<std::size_t>(count));
    cache_.fill_batch(
        {.sequences = {&sequence, 1}, .num_tokens = {&num_tokens, 1}, .slot_mapping = slots});
    for (std::int64_t part = 0; part < 2 * kLayers; ++part)
      for (std::int64_t i = 0; i < count; ++i) {
        Rows row(kRow);
        for (auto& x : row) x = static_cast<std::uint16_t>(random_() & 0xBFFF);  // below 2
        copy_row(part, slots[static_cast<std::size_t>(i)], row.data(), true);
        for (const std::int64_t kept : keep)
          if (kept == i) {
            Rows& rows = model[sequence][static_cast<std::size_t>(part)];
            rows.insert(rows.end(), row.begin(), row.end());
          }
      }
    HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  }
  void commit(std::int64_t sequence, std::int64_t count) {
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < count; ++i)
      tokens.push_back(static_cast<std::int32_t>(random_() % 1000));
    cache_.commit(sequence, tokens);
  }

  std::vector<std::int32_t> table(std::int64_t sequence) {
    std::vector<std::int32_t> pages(kNumPages);
    const std::int32_t none = 0;
    cache_.fill_batch({.sequences = {&sequence, 1},
                       .num_tokens = {&none, 1},
                       .max_pages = kNumPages,
                       .block_table = pages});
    return pages;
  }
  void expect_contents(std::int64_t sequence) {
    HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
    const std::vector<std::int32_t> pages = table(sequence);
    for (std::int64_t part = 0; part < 2 * kLayers; ++part) {
      const Rows& expected = model[sequence][static_cast<std::size_t>(part)];
      for (std::int64_t token = 0; token * kRow < static_cast<std::int64_t>(expected.size());
           ++token) {
        Rows row(kRow);
        const std::int64_t page = pages[static_cast<std::size_t>(token / page_size_)];
        copy_row(part, page * page_size_ + token % page_size_, row.data(), false);
        ASSERT_TRUE(std::equal(row.begin(), row.end(), expected.begin() + token * kRow))
            << "sequence " << sequence << ", part " << part << ", token " << token;
      }
    }
  }
  void expect_all() {
    for (const auto& [sequence, rows] : model) expect_contents(sequence);
  }

 private:
  void copy_row(std::int64_t part, std::int64_t slot, std::uint16_t* row, bool is_write) {
    const TensorView pages = part % 2 == 0 ? cache_.k_pages(part / 2) : cache_.v_pages(part / 2);
    for (std::int64_t head = 0; head < kHeads; ++head) {
      auto* at = static_cast<std::uint16_t*>(pages.data) + slot / page_size_ * pages.strides[0] +
                 slot % page_size_ * pages.strides[1] + head * pages.strides[2];
      std::uint16_t* mine = row + head * kDim;
      HEADRACE_EXPECT_CUDA(cudaMemcpy(is_write ? at : mine, is_write ? mine : at,
                                      kDim * sizeof *mine, cudaMemcpyDefault));
    }
  }

  KvCache cache_;
  const std::int64_t page_size_;
  std::mt19937 random_{7};
};

std::vector<std::int64_t> all_of(std::int64_t count) {
  std::vector<std::int64_t> x;
  for (std::int64_t i = 0; i < count; ++i) x.push_back(i);
  return x;
}

TEST(KvCacheOnGpu, KeepsWhatWasWritten) {
  HEADRACE_NEEDS_GPU(80);
  for (const KvLayout layout : {KvLayout::nhd, KvLayout::hnd})
    for (const std::int64_t page_size : {1, 5, 16}) {
      SCOPED_TRACE("page size " + std::to_string(page_size));
      GpuCache gpu(page_size, layout);
      const std::vector<std::int32_t> prompt = {1, 2, 3, 4, 5, 6, 7};
      const std::int64_t one = gpu.cache().add(prompt).sequence;
      gpu.add(one);
      gpu.write(one, 7, all_of(7));
      gpu.cache().commit(one, prompt);
      const std::int64_t two = gpu.cache().fork(one);  // shares pages until one of them writes
      gpu.model[two] = gpu.model[one];
      gpu.write(one, 2, all_of(2));
      gpu.commit(one, 2);
      gpu.write(two, 3, all_of(3));
      gpu.commit(two, 3);
      gpu.expect_all();
      // A draft tree of five nodes, of which the first and the last two are accepted.
      gpu.write(two, 5, {0, 3, 4});
      const std::int64_t first = gpu.cache().info(two).length;
      const std::vector<std::int64_t> accepted = {first, first + 3, first + 4};
      gpu.cache().move(two, accepted);
      gpu.commit(two, 3);
      gpu.expect_all();
      gpu.cache().swap_out(one);
      gpu.write(two, 4, all_of(4));
      gpu.commit(two, 4);
      gpu.cache().swap_in(one);
      gpu.expect_all();
    }
}

TEST(KvCacheOnGpu, AttentionReadsItsPages) {
  HEADRACE_NEEDS_GPU(80);
  GpuCache gpu(5, KvLayout::hnd);
  const std::vector<std::int32_t> prompt(33, 1);
  const std::int64_t sequence = gpu.cache().add(prompt).sequence;
  gpu.add(sequence);
  gpu.write(sequence, 33, all_of(33));
  gpu.cache().commit(sequence, prompt);
  const OnDevice<unsigned char> q(numbers(DType::bf16, 4 * kDim, 3));
  const OnDevice<std::uint16_t> k(gpu.model[sequence][2]), v(gpu.model[sequence][3]);
  const OnDevice<std::int32_t> table(gpu.table(sequence)), used({33});
  const auto view = [](void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
    TensorView x(data, dtype, shape);
    x.device_type = HEADRACE_CUDA;
    return x;
  };
  const OnDevice<unsigned char> paged(numbers(DType::bf16, 4 * kDim, 4));
  const OnDevice<unsigned char> contiguous(numbers(DType::bf16, 4 * kDim, 5));
  AttentionTensors t{.q = view(q.data(), DType::bf16, {1, 1, 4, kDim}),
                     .k = gpu.cache().k_pages(1),
                     .v = gpu.cache().v_pages(1),
                     .out = view(paged.data(), DType::bf16, {1, 1, 4, kDim})};
  t.block_table = view(table.data(), DType::i32, {1, kNumPages});
  t.seqused_k = view(used.data(), DType::i32, {1});
  attention_forward(t);
  attention_forward({.q = t.q,
                     .k = view(k.data(), DType::bf16, {1, 33, kHeads, kDim}),
                     .v = view(v.data(), DType::bf16, {1, 33, kHeads, kDim}),
                     .out = view(contiguous.data(), DType::bf16, {1, 1, 4, kDim})});
  EXPECT_EQ(paged.read(), contiguous.read());
}

}  // namespace
}  // namespace headrace::testing
