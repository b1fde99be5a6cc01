// SparQ attention over a quantised cache, for the tests of the CPU and of CUDA: what a call must
// return, in double, given the keys that it chose.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/softmax_test_tensor.h"
#include "ops/sparq.h"
#include "support/quantised_call.h"

namespace headrace::testing {

struct SparqCodesCase {
  QuantisedCase of_keys;  // with one query of each sequence
  std::int64_t num_components = 4, num_keys = 8, local_window = 2;
  bool has_mean = true;
};

inline SparqCodesCase random_sparq_codes_case(Random& random, DType dtype) {
  SparqCodesCase c{.of_keys = random_quantised_case(random, dtype)};
  QuantisedCase& x = c.of_keys;
  std::ranges::fill(x.queries, 1);
  x.window_left = -1;
  x.has_softcap = x.strict_rows = false;
  c.num_components = random.between(1, x.head_dim);
  c.num_keys = random.chance(20) ? 1200 : random.between(1, 60);
  c.local_window = random.between(0, c.num_keys);
  c.has_mean = random.chance(50);
  return c;
}

class SparqCodesCall {
 public:
  explicit SparqCodesCall(const SparqCodesCase& c) : keys(c.of_keys), c_(c) {
    const QuantisedCase& x = c.of_keys;
    batch_ = static_cast<std::int64_t>(x.keys.size());
    headrace_attention_tensors t = keys.tensors();
    num_pages_ = t.k.shape[0];
    table_ = static_cast<const std::int32_t*>(t.block_table.data);
    max_pages_ = t.block_table.shape[1];
    components.assign(
        at(num_pages_ * x.num_kv_heads * x.head_dim * x.page_size) * dtype_bytes(x.dtype), 0xff);
    v_sum.assign(at(batch_ * x.num_kv_heads * x.head_dim_v), 0);
    indices.assign(at(batch_ * x.num_kv_heads * c.num_keys), -7);
    alpha.assign(at(batch_ * x.num_heads), NAN);
    for_keys([&](std::int64_t b, std::int64_t head, std::int64_t j) {
      for (std::int64_t d = 0; d < x.head_dim; ++d)
        store_from_double(x.dtype, components.data(), component_at(b, head, j, d),
                          unquantised(true, b, head, j, d));
      for (std::int64_t d = 0; d < x.head_dim_v; ++d)
        v_sum[at((b * x.num_kv_heads + head) * x.head_dim_v + d)] +=
            static_cast<float>(value_of_codes(b, head, j, d));
    });
  }

  // What `dense` reads, with the memory of this call; of the device of `dense` they must be moved.
  headrace_sparq_tensors tensors(const headrace_attention_tensors& dense) {
    const QuantisedCase& x = c_.of_keys;
    headrace_sparq_tensors t{};
    t.struct_size = sizeof t;
    t.q = dense.q;
    t.k = dense.k;
    t.v = dense.v;
    t.out = dense.out;
    t.block_table = dense.block_table;
    t.seqused_k = dense.seqused_k;
    t.quantised = dense.quantised;
    t.k_components = TensorView(components.data(), x.dtype,
                                {num_pages_, x.num_kv_heads, x.head_dim, x.page_size});
    if (c_.has_mean)
      t.v_sum = TensorView(v_sum.data(), DType::f32, {batch_, x.num_kv_heads, x.head_dim_v});
    t.indices = TensorView(indices.data(), DType::i32, {batch_, x.num_kv_heads, c_.num_keys});
    t.alpha = TensorView(alpha.data(), DType::f32, {batch_, x.num_heads});
    return t;
  }
  headrace_sparq_options options() const {
    headrace_sparq_options o = default_sparq_options();
    o.num_components = c_.num_components;
    o.num_keys = c_.num_keys;
    o.local_window = c_.local_window;
    return o;
  }

  // Compares what was written with attention over the chosen keys, in double.
  void expect_attention_over_keys() const {
    const QuantisedCase& x = c_.of_keys;
    for (std::int64_t b = 0; b < batch_; ++b)
      for (std::int64_t head = 0; head < x.num_heads; ++head) {
        const std::vector<std::int64_t> chosen = keys_of(b, head);
        expect_row(b, head, chosen);
        if (::testing::Test::HasFailure()) return;
      }
  }
  std::int64_t component_at(std::int64_t b, std::int64_t head, std::int64_t j,
                            std::int64_t d) const {
    const QuantisedCase& x = c_.of_keys;
    const std::int64_t page = table_[b * max_pages_ + j / x.page_size];
    return ((page * x.num_kv_heads + head) * x.head_dim + d) * x.page_size + j % x.page_size;
  }
  // Calls body(sequence, KV head, key).
  template <class Body>
  void for_keys(Body body) const {
    const QuantisedCase& x = c_.of_keys;
    for (std::int64_t b = 0; b < batch_; ++b)
      for (std::int64_t head = 0; head < x.num_kv_heads; ++head)
        for (std::int64_t j = 0; j < x.keys[at(b)]; ++j) body(b, head, j);
  }
  double unquantised(bool is_of_k, std::int64_t b, std::int64_t kv_head, std::int64_t j,
                     std::int64_t d) const {
    return keys.element(QuantisedCall::Form::unquantised, is_of_k, b, 0, j, first_head(kv_head), d);
  }
  // In the form of earlier groups.
  double value_of_codes(std::int64_t b, std::int64_t kv_head, std::int64_t j,
                        std::int64_t d) const {
    constexpr std::int64_t kLater = 1 << 20;
    return keys.element(QuantisedCall::Form::stored, false, b, kLater, j, first_head(kv_head), d);
  }
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  QuantisedCall keys;
  std::vector<unsigned char> components;
  std::vector<float> v_sum, alpha;
  std::vector<std::int32_t> indices;

 private:
  std::int64_t group() const { return c_.of_keys.num_heads / c_.of_keys.num_kv_heads; }
  std::int64_t first_head(std::int64_t kv_head) const { return kv_head * group(); }

  // As many as there must be, ascending, with the last ones.
  std::vector<std::int64_t> keys_of(std::int64_t b, std::int64_t head) const {
    const QuantisedCase& x = c_.of_keys;
    const std::int64_t length = x.keys[at(b)], num = std::min(c_.num_keys, length);
    const auto* first = &indices[at((b * x.num_kv_heads + head / group()) * c_.num_keys)];
    std::vector<std::int64_t> chosen(first, first + num);
    EXPECT_TRUE(std::ranges::all_of(first + num, first + c_.num_keys,
                                    [](std::int32_t i) { return i == -1; }));
    EXPECT_TRUE(std::ranges::is_sorted(chosen, std::less_equal())) << text_of(x);
    EXPECT_TRUE(chosen.empty() || (chosen[0] >= 0 && chosen.back() < length)) << text_of(x);
    for (std::int64_t i = 1; i <= std::min(c_.local_window, num); ++i)
      EXPECT_EQ(chosen[at(num - i)], length - i) << text_of(x);
    return chosen;
  }

  void expect_row(std::int64_t b, std::int64_t head,
                  const std::vector<std::int64_t>& chosen) const {
    const QuantisedCase& x = c_.of_keys;
    const std::int64_t length = x.keys[at(b)];
    const auto element = [&](bool is_of_k, std::int64_t j, std::int64_t d) {
      return keys.element(QuantisedCall::Form::stored, is_of_k, b, length - 1, j, head, d);
    };
    std::vector<double> p;
    for (const std::int64_t j : chosen) {
      double score = 0;
      for (std::int64_t d = 0; d < x.head_dim; ++d)
        score += keys.query(b, 0, head, d) * element(true, j, d);
      p.push_back(score / std::sqrt(static_cast<double>(x.head_dim)));
    }
    const double top = *std::ranges::max_element(p);
    double sum = 0;
    for (double& score : p) sum += score = std::exp(score - top);
    const bool is_dense = static_cast<std::int64_t>(chosen.size()) == length;
    const double share = alpha[at(b * x.num_heads + head)];
    if (is_dense)
      EXPECT_EQ(share, 1) << text_of(x);
    else
      EXPECT_TRUE(share >= 0 && share <= 1) << share << ' ' << text_of(x);
    for (std::int64_t d = 0; d < x.head_dim_v; ++d) {
      double want = 0, magnitude = 0;
      for (std::size_t i = 0; i < chosen.size(); ++i) {
        const double value = element(false, chosen[i], d);
        want += p[i] / sum * value;
        magnitude = std::max(magnitude, std::abs(value));
      }
      if (c_.has_mean && !is_dense) {
        const std::int64_t row = b * x.num_kv_heads + head / group();
        want = share * want + (1 - share) * double{v_sum[at(row * x.head_dim_v + d)]} /
                                  static_cast<double>(length);
      }
      // Scores of magnitude s err by head_dim u s in float, and s is below 200 here.
      const double error = 3e-4 * magnitude;
      EXPECT_NEAR(keys.result(b, 0, head, d), want,
                  error + rounding_of(x.dtype, std::abs(want) + error))
          << text_of(x) << " sequence " << b << " head " << head << " column " << d;
    }
  }

  SparqCodesCase c_;
  std::int64_t batch_ = 0, num_pages_ = 0, max_pages_ = 0;
  const std::int32_t* table_ = nullptr;
};

}  // namespace headrace::testing
