// SparQ attention over pages that steps append to, beside the same call over contiguous keys.
#include "executor/cpu_sparq.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/device.h"
#include "kv_cache/kv_pages.h"
#include "ops/sparq.h"

namespace headrace {
namespace {

constexpr std::int64_t kHeads = 3, kDim = 8, kDimV = 5, kPageSize = 4, kLayers = 2, kMaxPages = 6;
constexpr SparqSizes kSizes = {.num_components = 3, .num_keys = 9};

// Deterministic and without structure.
float element(std::int64_t layer, std::int64_t seq, std::int64_t token, std::int64_t i) {
  const std::int64_t n = (((layer * 2 + seq) * 50 + token) * 64) + i;
  return static_cast<float>(std::sin(static_cast<double>(n * n % 1009)));
}
float key(std::int64_t layer, std::int64_t seq, std::int64_t token, std::int64_t i) {
  return element(layer, seq, token, i);
}
float value(std::int64_t layer, std::int64_t seq, std::int64_t token, std::int64_t i) {
  return element(layer, seq, token, 30 + i);
}

// Two sequences whose pages are in no order.
class CpuSparqSteps : public ::testing::Test {
 protected:
  // Writes keys and values, and appends them in one step.
  void step(std::vector<std::int32_t> num_tokens) {
    slots_.clear();
    cu_seqlens_.assign(1, 0);
    for (std::size_t s = 0; s < 2; ++s) {
      for (std::int32_t i = 0; i < num_tokens[s]; ++i, ++lengths_[s]) write_token(s, lengths_[s]);
      cu_seqlens_.push_back(cu_seqlens_.back() + num_tokens[s]);
    }
    tokens_.assign(slots_.size(), 0);
    for (std::int64_t layer = 0; layer < kLayers; ++layer)
      ASSERT_FALSE(sparq_.append(batch(), pages_.kv_view(), layer));
  }

  void write_token(std::size_t seq, std::int32_t token) {
    const std::int64_t page = table_[seq * kMaxPages + static_cast<std::size_t>(token / kPageSize)];
    slots_.push_back(page * kPageSize + token % kPageSize);
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      for (std::int64_t i = 0; i < kHeads * kDim; ++i)
        static_cast<float*>(pages_.k(layer).data)[slots_.back() * kHeads * kDim + i] =
            key(layer, static_cast<std::int64_t>(seq), token, i);
      for (std::int64_t i = 0; i < kHeads * kDimV; ++i)
        static_cast<float*>(pages_.v(layer).data)[slots_.back() * kHeads * kDimV + i] =
            value(layer, static_cast<std::int64_t>(seq), token, i);
    }
  }

  Batch batch() const {
    Batch batch;
    batch.tokens = tokens_;
    batch.slot_mapping = slots_;
    batch.cu_seqlens_q = cu_seqlens_;
    batch.seqused_k = lengths_;
    batch.block_table = table_;
    batch.max_seqlen_k = std::max(lengths_[0], lengths_[1]);
    batch.sparq = kSizes;
    return batch;
  }

  // Of both sequences, as in a step of one token of each.
  std::vector<float> attend(std::int64_t layer, std::vector<float>& q) {
    std::vector<float> out(2 * kHeads * kDimV);
    AttentionSpec spec;
    spec.num_heads = kHeads;
    EXPECT_FALSE(sparq_.begin_step(batch(), pages_.kv_view(), spec));
    EXPECT_FALSE(sparq_.attention(
        batch(), pages_.kv_view(), layer,
        {.data = q.data(), .dtype = DType::f32, .num_rows = 2, .width = kHeads * kDim},
        out.data()));
    return out;
  }

  std::unique_ptr<Device> device_ = make_host_device(cpu_info().value());
  KvPageShape shape_{.kv = {.num_layers = kLayers,
                            .num_kv_heads = kHeads,
                            .head_dim = kDim,
                            .head_dim_v = kDimV,
                            .dtype = DType::f32,
                            .has_components = true,
                            .has_value_sums = true},
                     .layout = KvLayout::nhd,
                     .page_size = kPageSize,
                     .num_pages = 2 * kMaxPages};
  KvPages pages_{shape_, device_->info(),
                 device_->allocate(static_cast<std::size_t>(KvPages::num_bytes(shape_)))};
  CpuSparq sparq_{*device_};
  std::vector<std::int32_t> table_ = {7, 2, 9, 0, 4, 11, 5, 3, 8, 1, 10, 6};
  std::vector<std::int32_t> lengths_ = {0, 0}, cu_seqlens_, tokens_;
  std::vector<std::int64_t> slots_;
};

// The library's call over contiguous keys, whose values are summed at once.
std::vector<float> contiguous(std::int64_t layer, std::int64_t seq, std::int64_t length, float* q) {
  std::vector<float> k, v, components(static_cast<std::size_t>(length * kHeads * kDim)),
      sum(kHeads * kDimV), out(kHeads * kDimV);
  std::vector<std::int64_t> slots;
  for (std::int64_t token = 0; token < length; ++token) {
    slots.push_back(token);
    for (std::int64_t i = 0; i < kHeads * kDim; ++i) k.push_back(key(layer, seq, token, i));
    for (std::int64_t i = 0; i < kHeads * kDimV; ++i) v.push_back(value(layer, seq, token, i));
  }
  std::int32_t cu_seqlens[] = {0, static_cast<std::int32_t>(length)};
  headrace_sparq_append_tensors append{};
  append.k = TensorView(k.data(), DType::f32, {1, length, kHeads, kDim});
  append.v = TensorView(v.data(), DType::f32, {1, length, kHeads, kDimV});
  append.slot_mapping = TensorView(slots.data(), DType::i64, {length});
  append.k_components = TensorView(components.data(), DType::f32, {1, kHeads, kDim, length});
  append.v_sum = TensorView(sum.data(), DType::f32, {1, kHeads, kDimV});
  append.cu_seqlens = TensorView(cu_seqlens, DType::i32, {2});
  EXPECT_FALSE(sparq_append(append, nullptr));
  headrace_sparq_tensors t{};
  t.q = TensorView(q, DType::f32, {1, kHeads, kDim});
  t.k = append.k;
  t.v = append.v;
  t.k_components = append.k_components;
  t.v_sum = append.v_sum;
  t.out = TensorView(out.data(), DType::f32, {1, kHeads, kDimV});
  headrace_sparq_options options = default_sparq_options();
  options.num_components = kSizes.num_components;
  options.num_keys = kSizes.num_keys;
  options.local_window = kSizes.num_keys / 4;
  EXPECT_FALSE(sparq_attention(t, options, {}, nullptr));
  return out;
}

TEST_F(CpuSparqSteps, AreTheCallOverContiguousKeys) {
  std::vector<float> q;
  for (std::int64_t i = 0; i < 2 * kHeads * kDim; ++i) q.push_back(3 * element(9, 1, 1, i));
  const auto expect_contiguous = [&] {
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      std::vector<float> expected;
      for (std::size_t seq = 0; seq < 2; ++seq) {
        const std::vector<float> out =
            contiguous(layer, static_cast<std::int64_t>(seq), lengths_[seq],
                       q.data() + static_cast<std::int64_t>(seq) * kHeads * kDim);
        expected.insert(expected.end(), out.begin(), out.end());
      }
      EXPECT_EQ(attend(layer, q), expected) << layer << ", " << lengths_[0];
    }
  };
  step({11, 10});
  expect_contiguous();
  for (int i = 0; i < 4; ++i) {
    step({1, 1});
    expect_contiguous();
  }
  // Tokens that are replaced leave nothing in the sums, at the beginning of a page and within it.
  for (const std::int32_t length : {12, 10}) {
    lengths_ = {length, length};
    step({8, 3});
    expect_contiguous();
  }
}

}  // namespace
}  // namespace headrace
