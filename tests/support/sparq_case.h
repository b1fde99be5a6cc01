// Cases of SparQ attention for the tests of the CPU and of CUDA: tensors, and SparQ in double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ops/softmax_test_tensor.h"
#include "ops/sparq.h"
#include "support/random.h"

namespace headrace::testing {

struct SparqCase {
  DType dtype = DType::f32;
  std::int64_t num_kv_heads = 2, group = 1, head_dim = 16, head_dim_v = 16;
  std::int64_t seqlen_k = 40;                    // of the buffers
  std::vector<std::int32_t> lengths = {40, 17};  // of the sequences
  std::int64_t num_components = 4, num_keys = 8, local_window = 2;
  std::int64_t page_size = 0;       // 0: not paged
  bool has_pages_in_order = false;  // each is followed by the next one; else shuffled
  bool is_head_major = false;       // heads before slots in memory
  std::int64_t gap = 0;
  bool has_mean = true;
  double scale = std::numeric_limits<double>::quiet_NaN();
  std::uint64_t seed = 1;
};

inline std::string text_of(const SparqCase& c) {
  std::string text = dtype_name(c.dtype);
  const auto add = [&](const char* name, std::int64_t x) {
    text += std::string(" ") + name + " " + std::to_string(x);
  };
  add("kv_heads", c.num_kv_heads), add("group", c.group), add("dim", c.head_dim);
  add("dim_v", c.head_dim_v), add("seqlen_k", c.seqlen_k), add("r", c.num_components);
  add("k", c.num_keys), add("l", c.local_window), add("page", c.page_size);
  add("in_order", c.has_pages_in_order), add("head_major", c.is_head_major), add("gap", c.gap),
      add("mean", c.has_mean);
  text += " lengths";
  for (const std::int32_t length : c.lengths) text += ' ' + std::to_string(length);
  return text + " seed " + std::to_string(c.seed);
}

// Random tensors. Slots behind the last key, pages of no sequence and gaps are NaN; entries of
// block_table behind the used ones are no pages.
class SparqCall {
 public:
  explicit SparqCall(const SparqCase& c) : c_(c), random_(c.seed) {
    make_block_table();
    const std::vector<int> keys =
        c.is_head_major ? std::vector{0, 2, 1, 3} : std::vector{0, 1, 2, 3};
    const std::int64_t slots = page_size();
    k_ = tensor(c.dtype, {num_pages_, slots, c.num_kv_heads, c.head_dim}, keys);
    v_ = tensor(c.dtype, {num_pages_, slots, c.num_kv_heads, c.head_dim_v}, keys);
    components_ = tensor(c.dtype, {num_pages_, c.num_kv_heads, c.head_dim, slots}, {0, 1, 2, 3});
    q_ = tensor(c.dtype, {batch(), num_heads(), c.head_dim}, {0, 1, 2});
    out_ = tensor(c.dtype, {batch(), num_heads(), c.head_dim_v}, {0, 1, 2});
    v_sum_ = tensor(DType::f32, {batch(), c.num_kv_heads, c.head_dim_v}, {0, 1, 2});
    indices_ = tensor(DType::i32, {batch(), c.num_kv_heads, c.num_keys}, {0, 1, 2});
    alpha_ = tensor(DType::f32, {batch(), num_heads()}, {0, 1});
    for_elements(q_->view(), [&](std::int64_t, std::int64_t at) {
      const double x = random_.normal();
      put(*q_, at, x * x * x);  // heavy-tailed
    });
    for_used_elements(*k_, [&](std::int64_t at) { put(*k_, at, random_.normal()); });
    for_used_elements(*v_, [&](std::int64_t at) { put(*v_, at, random_.normal() + 0.5); });
    update_copies();
  }

  std::int64_t batch() const { return static_cast<std::int64_t>(c_.lengths.size()); }
  std::int64_t num_heads() const { return c_.num_kv_heads * c_.group; }
  std::int64_t page_size() const { return c_.page_size > 0 ? c_.page_size : c_.seqlen_k; }
  Tensor& q() { return *q_; }
  Tensor& k() { return *k_; }
  Tensor& v() { return *v_; }
  Tensor& components() { return *components_; }
  Tensor& out() { return *out_; }
  Tensor& alpha() { return *alpha_; }
  Tensor& v_sum() { return *v_sum_; }
  std::vector<std::int32_t>& block_table() { return block_table_; }
  std::vector<std::int32_t>& lengths() { return c_.lengths; }
  std::vector<Tensor*> memory() {
    return {q_.get(),   k_.get(),     components_.get(), v_.get(),
            out_.get(), v_sum_.get(), indices_.get(),    alpha_.get()};
  }

  headrace_sparq_tensors tensors() {
    headrace_sparq_tensors t{.struct_size = sizeof t,
                             .q = q_->view(),
                             .k = k_->view(),
                             .k_components = components_->view(),
                             .v = v_->view(),
                             .out = out_->view(),
                             .v_sum = c_.has_mean ? v_sum_->view() : TensorView(),
                             .block_table = TensorView(),
                             .seqused_k = TensorView(c_.lengths.data(), DType::i32, {batch()}),
                             .indices = indices_->view(),
                             .alpha = alpha_->view(),
                             .quantised = nullptr};
    if (c_.page_size > 0)
      t.block_table = TensorView(block_table_.data(), DType::i32, {batch(), max_pages_});
    return t;
  }
  headrace_sparq_options options() const {
    headrace_sparq_options o = default_sparq_options();
    o.softmax_scale = c_.scale;
    o.num_components = c_.num_components;
    o.num_keys = c_.num_keys;
    o.local_window = c_.local_window;
    return o;
  }

  // Offset of key j of sequence b in k or v.
  std::int64_t at(const Tensor& x, std::int64_t b, std::int64_t j, std::int64_t head,
                  std::int64_t column) const {
    const TensorView& view = x.view();
    return page(b, j) * view.strides[0] + j % page_size() * view.strides[1] +
           head * view.strides[2] + column * view.strides[3];
  }
  std::int64_t component_at(std::int64_t b, std::int64_t j, std::int64_t head,
                            std::int64_t c) const {
    const TensorView& view = components_->view();
    return page(b, j) * view.strides[0] + head * view.strides[1] + c * view.strides[2] +
           j % page_size() * view.strides[3];
  }
  static double get(const Tensor& x, std::int64_t at) {
    return load_as_double(x.view().type(), x.view().data, at);
  }
  static void put(Tensor& x, std::int64_t at, double value) {
    store_from_double(x.view().type(), x.view().data, at, value);
  }
  std::vector<std::int64_t> keys(std::int64_t b, std::int64_t head) const {
    std::vector<std::int64_t> found;
    const TensorView& view = indices_->view();
    for (std::int64_t i = 0; i < c_.num_keys; ++i)
      found.push_back(static_cast<const std::int32_t*>(
          view.data)[b * view.strides[0] + head * view.strides[1] + i * view.strides[2]]);
    return found;
  }
  // k_components and v_sum from k and v.
  void update_copies() {
    for (std::int64_t b = 0; b < batch(); ++b)
      for (std::int64_t head = 0; head < c_.num_kv_heads; ++head) {
        for (std::int64_t j = 0; j < length(b); ++j)
          for (std::int64_t c = 0; c < c_.head_dim; ++c)
            put(*components_, component_at(b, j, head, c), get(*k_, at(*k_, b, j, head, c)));
        for (std::int64_t c = 0; c < c_.head_dim_v; ++c) {
          float sum = 0;
          for (std::int64_t j = 0; j < length(b); ++j)
            sum += static_cast<float>(get(*v_, at(*v_, b, j, head, c)));
          put(*v_sum_, b * v_sum_->view().strides[0] + head * v_sum_->view().strides[1] + c, sum);
        }
      }
  }

  // The largest components, in float as the contract has them.
  std::vector<std::int64_t> chosen_components(std::int64_t b, std::int64_t head) const {
    std::vector<std::pair<float, std::int64_t>> sums;
    for (std::int64_t c = 0; c < c_.head_dim; ++c) {
      float sum = 0;
      for (std::int64_t h = 0; h < c_.group; ++h)
        sum += std::fabs(static_cast<float>(query(b, head * c_.group + h, c)));
      sums.emplace_back(-sum, c);
    }
    std::sort(sums.begin(), sums.end());
    std::vector<std::int64_t> chosen;
    for (std::int64_t i = 0; i < c_.num_components; ++i)
      chosen.push_back(sums[static_cast<std::size_t>(i)].second);
    return chosen;
  }

  // Step 1 of a query, in double.
  Doubles estimates(std::int64_t b, std::int64_t query_head) const {
    const std::int64_t head = query_head / c_.group;
    const std::vector<std::int64_t> chosen = chosen_components(b, head);
    double of_chosen = 0, of_all = 0;
    for (const std::int64_t c : chosen) of_chosen += std::abs(query(b, query_head, c));
    for (std::int64_t c = 0; c < c_.head_dim; ++c) of_all += std::abs(query(b, query_head, c));
    const double share = of_chosen == 0 ? 1 : of_chosen / of_all;
    Doubles scores;
    for (std::int64_t j = 0; j < length(b); ++j) {
      double score = 0;
      for (const std::int64_t c : chosen)
        score += query(b, query_head, c) * get(*components_, component_at(b, j, head, c));
      scores.push_back(score * scale() / std::sqrt(share));
    }
    return softmax(scores);
  }

  // Compares what was written with SparQ in double, given the keys that were chosen.
  void expect_sparq() {
    for (std::int64_t b = 0; b < batch(); ++b)
      for (std::int64_t head = 0; head < c_.num_kv_heads; ++head) {
        const std::vector<std::int64_t> chosen = expect_keys(b, head);
        for (std::int64_t h = 0; h < c_.group; ++h) expect_out(b, head * c_.group + h, chosen);
        if (::testing::Test::HasFailure()) return;
      }
    for (const Tensor* x : {out_.get(), indices_.get(), alpha_.get()})
      EXPECT_TRUE(x->has_kept_gaps()) << text_of(c_);
  }

 private:
  std::unique_ptr<Tensor> tensor(DType dtype, const Shape& shape, const std::vector<int>& order) {
    return std::make_unique<Tensor>(dtype, shape, order, c_.gap);
  }
  std::int64_t length(std::int64_t b) const { return c_.lengths[static_cast<std::size_t>(b)]; }
  double scale() const {
    return std::isnan(c_.scale) ? 1 / std::sqrt(static_cast<double>(c_.head_dim)) : c_.scale;
  }
  std::int64_t page(std::int64_t b, std::int64_t j) const {
    if (c_.page_size == 0) return b;
    return block_table_[static_cast<std::size_t>(b * max_pages_ + j / c_.page_size)];
  }
  double query(std::int64_t b, std::int64_t head, std::int64_t c) const {
    return get(*q_, b * q_->view().strides[0] + head * q_->view().strides[1] + c);
  }
  void make_block_table() {
    num_pages_ = batch();
    if (c_.page_size == 0) return;
    max_pages_ = (c_.seqlen_k + c_.page_size - 1) / c_.page_size;
    num_pages_ = batch() * max_pages_ + 3;
    std::vector<std::int32_t> pages(static_cast<std::size_t>(num_pages_));
    for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<std::int32_t>(i);
    for (std::size_t i = pages.size(); i > 1 && !c_.has_pages_in_order; --i)
      std::swap(
          pages[i - 1],
          pages[static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(i) - 1))]);
    for (std::int64_t b = 0; b < batch(); ++b)
      for (std::int64_t i = 0; i < max_pages_; ++i)
        block_table_.push_back(i * c_.page_size < length(b)
                                   ? pages[static_cast<std::size_t>(b * max_pages_ + i)]
                                   : std::numeric_limits<std::int32_t>::min());
  }
  template <class Body>
  void for_used_elements(const Tensor& x, Body body) {
    for (std::int64_t b = 0; b < batch(); ++b)
      for (std::int64_t j = 0; j < length(b); ++j)
        for (std::int64_t head = 0; head < c_.num_kv_heads; ++head)
          for (std::int64_t c = 0; c < x.view().shape[3]; ++c) body(at(x, b, j, head, c));
  }
  static Doubles softmax(const Doubles& scores) {
    double most = -std::numeric_limits<double>::infinity(), sum = 0;
    for (const double s : scores) most = std::max(most, s);
    for (const double s : scores) sum += std::exp(s - most);
    Doubles p;
    for (const double s : scores) p.push_back(std::exp(s - most) / sum);
    return p;
  }

  // The keys of a group: their number, order and window, and that no other key has a clearly
  // larger estimate. A score of magnitude s errs by head_dim u s in float, its exponential by as
  // much; scores here are below 200.
  std::vector<std::int64_t> expect_keys(std::int64_t b, std::int64_t head) {
    std::vector<std::int64_t> all = keys(b, head);
    const std::int64_t num = std::min<std::int64_t>(c_.num_keys, length(b));
    const std::vector<std::int64_t> chosen(all.begin(), all.begin() + num);
    for (std::size_t i = chosen.size(); i < all.size(); ++i) EXPECT_EQ(all[i], -1) << text_of(c_);
    std::vector<bool> is_chosen(static_cast<std::size_t>(length(b)));
    std::int64_t last = -1;
    for (const std::int64_t j : chosen) {
      EXPECT_GT(j, last) << text_of(c_);
      EXPECT_LT(j, length(b)) << text_of(c_);
      if (::testing::Test::HasFailure()) return chosen;
      is_chosen[static_cast<std::size_t>(last = j)] = true;
    }
    Doubles p(static_cast<std::size_t>(length(b)));
    for (std::int64_t h = 0; h < c_.group; ++h) {
      const Doubles one = estimates(b, head * c_.group + h);
      for (std::size_t j = 0; j < p.size(); ++j) p[j] += one[j];
    }
    const std::int64_t num_local = std::min(c_.local_window, num);
    double least = std::numeric_limits<double>::infinity(), most = 0;
    for (std::int64_t j = 0; j < length(b); ++j) {
      const double x = p[static_cast<std::size_t>(j)];
      if (j >= length(b) - num_local) {
        EXPECT_TRUE(is_chosen[static_cast<std::size_t>(j)]) << j << ' ' << text_of(c_);
      } else if (is_chosen[static_cast<std::size_t>(j)]) {
        least = std::min(least, x);
      } else {
        most = std::max(most, x);
      }
    }
    EXPECT_GE(least, most * (1 - 1e-3) - 1e-37) << text_of(c_);
    return chosen;
  }

  void expect_out(std::int64_t b, std::int64_t query_head,
                  const std::vector<std::int64_t>& chosen) {
    const std::int64_t head = query_head / c_.group;
    const TensorView &out = out_->view(), &sums = v_sum_->view();
    Doubles scores;
    for (const std::int64_t j : chosen) {
      double score = 0;
      for (std::int64_t c = 0; c < c_.head_dim; ++c)
        score += query(b, query_head, c) * get(*k_, at(*k_, b, j, head, c));
      scores.push_back(score * scale());
    }
    const Doubles s = softmax(scores);
    double alpha = 1;
    if (static_cast<std::int64_t>(chosen.size()) < length(b)) {
      const Doubles p = estimates(b, query_head);
      alpha = 0;
      for (const std::int64_t j : chosen) alpha += p[static_cast<std::size_t>(j)];
    }
    const double got_alpha =
        get(*alpha_, b * alpha_->view().strides[0] + query_head * alpha_->view().strides[1]);
    EXPECT_NEAR(got_alpha, alpha, 1e-4) << text_of(c_) << " head " << query_head;
    EXPECT_TRUE(got_alpha >= 0 && got_alpha <= 1) << got_alpha << text_of(c_);
    for (std::int64_t c = 0; c < c_.head_dim_v; ++c) {
      double want = 0, magnitude = 0;
      for (std::size_t i = 0; i < chosen.size(); ++i) {
        const double x = get(*v_, at(*v_, b, chosen[i], head, c));
        want += s[i] * x;
        magnitude = std::max(magnitude, std::abs(x));
      }
      if (c_.has_mean && alpha != 1)
        want = alpha * want + (1 - alpha) / static_cast<double>(length(b)) *
                                  get(*v_sum_, b * sums.strides[0] + head * sums.strides[1] + c);
      const double error = 3e-4 * magnitude;
      EXPECT_NEAR(get(*out_, b * out.strides[0] + query_head * out.strides[1] + c), want,
                  error + rounding_of(c_.dtype, std::abs(want) + error))
          << text_of(c_) << " sequence " << b << " head " << query_head << " column " << c;
    }
  }

  SparqCase c_;
  Random random_;
  std::int64_t num_pages_ = 0, max_pages_ = 0;
  std::vector<std::int32_t> block_table_;
  std::unique_ptr<Tensor> q_, k_, v_, components_, out_, v_sum_, indices_, alpha_;
};

// Calls body(case) for every dtype, group and kind of memory, with random sizes.
template <class Body>
void for_sparq_cases(int num_rounds, Body body) {
  constexpr std::int64_t kDims[] = {1, 7, 16, 33, 64, 80, 128, 576};
  constexpr std::int64_t kPages[] = {0, 1, 16, 24, 64};
  constexpr std::int64_t kLengths[] = {1, 15, 64, 100, 1023, 1024, 1100, 2500, 5000};
  Random random(11);
  for (int round = 0; round < num_rounds; ++round)
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
      for (const std::int64_t group : {1, 3, 4, 9}) {
        SparqCase c;
        c.dtype = dtype;
        c.group = group;
        c.num_kv_heads = random.between(1, 3);
        c.head_dim = random.pick(kDims);
        c.head_dim_v = random.pick(kDims);
        c.seqlen_k = random.pick(kLengths);
        while (c.seqlen_k * (c.head_dim + c.head_dim_v) > 150000) c.seqlen_k /= 3;
        c.lengths.clear();
        for (std::int64_t b = random.between(1, 3); b > 0; --b)
          c.lengths.push_back(static_cast<std::int32_t>(
              random.chance(30) ? c.seqlen_k : random.between(0, c.seqlen_k)));
        c.num_components = random.between(1, c.head_dim);
        c.num_keys = random.chance(20) ? c.seqlen_k + 1 : random.between(1, 200);
        c.local_window = random.chance(20) ? c.num_keys + 3 : random.between(0, c.num_keys);
        c.page_size = random.pick(kPages);
        c.is_head_major = random.chance(50);
        c.gap = random.pick({std::int64_t{0}, std::int64_t{3}});
        c.has_mean = random.chance(60);
        if (random.chance(30)) c.scale = 0.3;
        c.seed = random.next() % 1000000;
        body(c);
        if (::testing::Test::HasFailure()) return;
      }
}

}  // namespace headrace::testing
