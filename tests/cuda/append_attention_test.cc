// Attention that begins beside the product which appends the newest keys: many steps one after the
// other, under load, have the bits of steps in which every kernel waits for the one before it.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <numeric>

#include "attention/forward.h"
#include "backends/cuda/backend.h"
#include "backends/cuda/elementwise/decoder_ops.h"
#include "core/dtype.h"
#include "cuda/gpu.h"
#include "cuda/random_elements.h"
#include "executor/common.h"
#include "stress/device_work.h"
#include "support/random.h"

namespace headrace::testing {
namespace {

using Elements = std::vector<std::uint16_t>;

// HEADRACE_TEST_ROUNDS: for longer runs.
int num_rounds() {
  const char* const rounds = std::getenv("HEADRACE_TEST_ROUNDS");
  return rounds == nullptr ? 3 : std::atoi(rounds);
}

struct Case {
  std::int64_t num_heads, num_kv_heads, head_dim, num_seqs, seqlen_q;
  std::int64_t first_length, num_steps;
  RopeLayout layout;
  const char* path;  // in the plan's note
  // The sequences of a step are the next tokens of one, each alone.
  bool is_one_sequence = false;
  std::int64_t page_size = 16, window = 0;
};

std::string text_of(const Case& c) {
  return format_text("{} and {} heads of {}, {} sequences of {} + {} x {} keys, {}{}, window {}",
                     c.num_heads, c.num_kv_heads, c.head_dim, c.num_seqs, c.first_length,
                     c.num_steps, c.seqlen_q, c.is_one_sequence ? "of one, " : "", c.page_size,
                     c.window);
}

class Steps {
 public:
  explicit Steps(const Case& c)
      : c_(c),
        weights_(random_elements(DType::bf16, width() * kColumns, 1, 0.05)),
        x_(random_elements(DType::bf16, kDistinct * num_tokens() * kColumns, 2, 1)),
        angles_(angles(c)),
        pages_(shuffled_pages()),
        arrays_(arrays_of_steps()) {
    HEADRACE_EXPECT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    spec_.num_heads = c.num_heads;
    spec_.rope_layout = c.layout;
    spec_.window = c.window;
    shape_ = {1, c.num_kv_heads, c.head_dim, c.head_dim, DType::bf16};
    const StepSize size{.num_tokens = num_tokens(),
                        .num_seqs = c.num_seqs,
                        .max_seqlen_q = c.seqlen_q,
                        .max_seqlen_k = longest(),
                        .max_pages = pages_of_seq(),
                        .max_recent = 0,
                        .max_shared_prefix = 0};
    device_ = cuda::device_info(0).value();
    const Status failed = plan_step(size, 0, view(nullptr), spec_, device_, plan_);
    EXPECT_FALSE(failed) << failed->message;
  }
  ~Steps() { cudaStreamDestroy(stream_); }

  std::string path() const { return plan_.schedule.note; }

  // What all steps write, then the cache. early: the product appends, and attention begins beside
  // it, while other work loads the GPU.
  std::array<Elements, 2> run(bool early) const {
    const OnDevice<std::uint16_t> cache(Elements(size(cache_elements()))),
        x(Elements(kColumns * size(num_tokens()))), qkv(Elements(size(num_tokens() * width()))),
        q(Elements(size(num_tokens() * q_width()))),
        out(Elements(size(c_.num_steps * num_tokens() * q_width())));
    const OnDevice<unsigned char> workspace(
        std::vector<unsigned char>(plan_.schedule.workspace_bytes + 1, 0xFF));
    const OnDevice<unsigned char> load{std::vector<unsigned char>(kLoadBytes)};
    fill_uniform(cache.data(), DType::bf16, cache_elements(), 3, 1, stream_);
    cudaStream_t load_stream = nullptr;
    HEADRACE_EXPECT_CUDA(cudaStreamCreateWithFlags(&load_stream, cudaStreamNonBlocking));
    for (std::int64_t step = 0; step < c_.num_steps; ++step) {
      if (early && step % 3 == 0) make_load(load.data(), kLoadBytes, load_stream);
      const Rows rows{qkv.data(), DType::bf16, num_tokens(), width()};
      const Rows queries{q.data(), DType::bf16, num_tokens(), q_width()};
      enqueue(step, early, view(cache.data()), x.data(), rows, queries,
              out.data() + step * num_tokens() * q_width(),
              {workspace.data(), plan_.schedule.workspace_bytes});
    }
    HEADRACE_EXPECT_CUDA(cudaStreamSynchronize(stream_));
    HEADRACE_EXPECT_CUDA(cudaStreamSynchronize(load_stream));
    HEADRACE_EXPECT_CUDA(cudaStreamDestroy(load_stream));
    return {out.read(), cache.read()};
  }

 private:
  static constexpr std::int64_t kColumns = 576, kDistinct = 32;
  static constexpr std::size_t kLoadBytes = 64 << 20;
  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

  std::int64_t num_tokens() const { return c_.num_seqs * c_.seqlen_q; }
  std::int64_t q_width() const { return c_.num_heads * c_.head_dim; }
  std::int64_t kv_width() const { return c_.num_kv_heads * c_.head_dim; }
  std::int64_t width() const { return q_width() + 2 * kv_width(); }
  // Of sequence s in a step, before it; sequence s begins s keys later.
  std::int64_t length(std::int64_t s, std::int64_t step) const {
    return c_.first_length + s + step * (c_.is_one_sequence ? c_.num_seqs : c_.seqlen_q);
  }
  std::int64_t longest() const { return length(c_.num_seqs - 1, c_.num_steps - 1) + c_.seqlen_q; }
  std::int64_t pages_of_seq() const { return (longest() + c_.page_size - 1) / c_.page_size; }
  std::int64_t first_page(std::int64_t s) const {
    return c_.is_one_sequence ? 0 : s * pages_of_seq();
  }
  std::int64_t num_pages() const { return c_.num_seqs * pages_of_seq(); }
  std::int64_t cache_elements() const { return 2 * num_pages() * c_.page_size * kv_width(); }

  static std::vector<float> angles(const Case& c) {
    Random random(4);
    std::vector<float> all(size(2 * c.num_seqs * c.seqlen_q * c.head_dim / 2));
    for (float& x : all) x = static_cast<float>(random.normal());
    return all;
  }
  std::vector<std::int32_t> shuffled_pages() const {
    Random random(5);
    std::vector<std::int32_t> pages(size(num_pages()));
    std::iota(pages.begin(), pages.end(), 0);
    for (std::size_t i = pages.size() - 1; i > 0; --i)
      std::swap(pages[i], pages[size(random.between(0, static_cast<std::int64_t>(i)))]);
    return pages;
  }

  struct Arrays {
    OnDevice<std::int64_t> slots;                                     // [steps, tokens]
    OnDevice<std::int32_t> seqused, rows, cu_seqlens_q, block_table;  // [steps, ...] of the first 2
  };
  Arrays arrays_of_steps() const {
    std::vector<std::int64_t> slots;
    std::vector<std::int32_t> seqused, rows, starts;
    for (std::int64_t step = 0; step < c_.num_steps; ++step)
      for (std::int64_t s = 0; s < c_.num_seqs; ++s) {
        const std::int64_t first = length(s, step);
        seqused.push_back(static_cast<std::int32_t>(first + c_.seqlen_q));
        for (std::int64_t i = 0; i < c_.seqlen_q; ++i) {
          const std::int64_t at = first + i;
          slots.push_back(pages_[size(first_page(s) + at / c_.page_size)] * c_.page_size +
                          at % c_.page_size);
          rows.push_back(
              static_cast<std::int32_t>(step % kDistinct * num_tokens() + s * c_.seqlen_q + i));
        }
      }
    for (std::int64_t s = 0; s <= c_.num_seqs; ++s)
      starts.push_back(static_cast<std::int32_t>(s * c_.seqlen_q));
    std::vector<std::int32_t> table;
    for (std::int64_t s = 0; s < c_.num_seqs; ++s) {
      const auto first = pages_.begin() + first_page(s);
      table.insert(table.end(), first, first + pages_of_seq());
    }
    return {OnDevice(slots), OnDevice(seqused), OnDevice(rows), OnDevice(starts), OnDevice(table)};
  }

  KvView view(std::uint16_t* cache) const {
    const auto operand = [&](std::int64_t first) {
      return Operand{.data = cache + first,
                     .stride_batch = c_.page_size * kv_width(),
                     .stride_seq = kv_width(),
                     .stride_head = c_.head_dim};
    };
    return {.shape = shape_,
            .page_size = c_.page_size,
            .num_pages = num_pages(),
            .k = operand(0),
            .v = operand(cache_elements() / 2),
            .layer_bytes = 0,
            .k_scale = {},
            .v_scale = {}};
  }

  static void expect_done(const Status& failed) { EXPECT_FALSE(failed) << failed->message; }

  void enqueue(std::int64_t step, bool early, const KvView& kv, std::uint16_t* x, const Rows& qkv,
               const Rows& q, void* out, const Workspace& workspace) const {
    // As before a product of a decoder: a kernel that lets it begin early.
    expect_done(cuda::gather_rows({.x = x_.data(),
                                   .rows = arrays_.rows.data() + step * num_tokens(),
                                   .out = x,
                                   .num_rows = num_tokens(),
                                   .width = kColumns},
                                  0, stream_));
    KvAppendArgs append = append_args(kv, spec_, 0, qkv, q);
    append.slot_mapping = arrays_.slots.data() + step * num_tokens();
    append.slot_stride = 1;
    append.rot_dim = c_.head_dim;
    append.tables = {.cos = angles_.data(),
                     .sin = angles_.data() + num_tokens() * c_.head_dim / 2,
                     .cos_stride = c_.head_dim / 2,
                     .sin_stride = c_.head_dim / 2,
                     .max_positions = num_tokens()};
    const std::uint16_t* w = weights_.data();
    const cuda::Matrix matrices[] = {{w, q_width()},
                                     {w + q_width() * kColumns, kv_width()},
                                     {w + (q_width() + kv_width()) * kColumns, kv_width()}};
    expect_done(cuda::multiply({.dtype = DType::bf16,
                                .matrices = matrices,
                                .columns = kColumns,
                                .num_tokens = num_tokens(),
                                .x = x,
                                .x_stride = kColumns,
                                .bias = nullptr,
                                .out = qkv.data,
                                .out_dtype = DType::bf16,
                                .out_stride = width(),
                                .adds_to_out = false,
                                .append = early ? &append : nullptr},
                               device_, stream_));
    if (!early) expect_done(cuda::kv_append(append, 0, stream_));
    AttentionArgs args = attention_args(kv, 0, q, out, q_width());
    args.ragged.cu_seqlens_q = arrays_.cu_seqlens_q.data();
    args.paged = {.block_table = arrays_.block_table.data(),
                  .stride_batch = pages_of_seq(),
                  .seqused_k = arrays_.seqused.data() + step * c_.num_seqs,
                  .seqused_stride = 1};
    args.follows_append = early;
    expect_done(headrace::run(plan_, args, workspace, stream_));
  }

  const Case c_;
  const OnDevice<std::uint16_t> weights_, x_;
  const OnDevice<float> angles_;
  const std::vector<std::int32_t> pages_;
  const Arrays arrays_;
  KvShape shape_{};
  AttentionSpec spec_;
  DeviceInfo device_;
  Plan plan_;
  cudaStream_t stream_ = nullptr;
};

// Lengths go over every block, split and group. Slots of later tokens hold other keys: those that
// are read too early differ.
TEST(AttentionBesideAnAppend, HasTheBitsOfAttentionBehindIt) {
  HEADRACE_NEEDS_GPU(90);
  using enum RopeLayout;
  constexpr const char *kCluster = "a cluster", *kShares = "an equal share", *kGrid = "persistent";
  for (const Case& c :
       {Case{12, 2, 128, 1, 1, 0, 1300, halves, kCluster},
        Case{9, 3, 64, 1, 2, 500, 300, interleaved, kCluster},
        Case{32, 8, 128, 1, 1, 1000, 600, interleaved, kCluster},
        Case{9, 3, 64, 16, 1, 400, 300, halves, kCluster},
        Case{32, 8, 128, 8, 2, 700, 200, interleaved, kCluster},
        Case{8, 1, 96, 5, 2, 7000, 100, halves, kShares},
        Case{32, 16, 64, 16, 1, 600, 300, halves, kShares},  // heads that shares cut
        Case{32, 16, 128, 9, 1, 2900, 100, interleaved, kShares},
        Case{12, 2, 128, 9, 1, 100, 60, halves, kCluster, true},
        Case{9, 3, 64, 16, 1, 0, 60, interleaved, kCluster, true},
        Case{32, 16, 64, 13, 1, 900, 60, halves, kShares, true},
        Case{9, 3, 64, 1, 1, 0, 400, halves, kCluster, false, 1},
        Case{12, 2, 128, 7, 2, 0, 200, interleaved, kCluster, false, 5},
        Case{32, 16, 64, 13, 1, 900, 60, halves, kShares, true, 8},
        Case{12, 2, 128, 3, 1, 0, 700, halves, kCluster, false, 16, 100},
        Case{32, 16, 64, 12, 1, 900, 100, halves, kShares, false, 16, 700},
        Case{32, 8, 64, 16, 1, 8480, 24, halves, kGrid},  // these have no keys to read early
        Case{2, 1, 256, 2, 3, 40, 100, halves, ""}}) {
    const Steps steps(c);
    ASSERT_NE(steps.path().find(c.path), std::string::npos) << text_of(c) << ": " << steps.path();
    const auto behind = steps.run(false);
    for (int round = 0; round < num_rounds(); ++round) {
      const auto beside = steps.run(true);
      ASSERT_EQ(beside[0], behind[0]) << text_of(c);
      ASSERT_EQ(beside[1], behind[1]) << text_of(c);
    }
  }
}

}  // namespace
}  // namespace headrace::testing
