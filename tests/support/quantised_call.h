// Attention over quantised keys, for the tests of the CPU and of CUDA: a batch whose keys and
// values an append wrote, and what attention must return, in double.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "attention/validate.h"
#include "ops/kv_append.h"
#include "support/page_tables.h"
#include "support/quantised_case.h"

namespace headrace::testing {

inline headrace_attention_options options_of(const QuantisedCase& c) {
  headrace_attention_options o = default_options();
  o.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  o.max_seqlen_q = *std::ranges::max_element(c.queries);
  o.max_seqlen_k = *std::ranges::max_element(c.keys);
  o.window_left = c.window_left;
  o.softcap = c.has_softcap ? 3 : 0;
  o.strict_rows = c.strict_rows;
  return o;
}

// The memory of a call, with every key and value in both forms.
class QuantisedCall {
 public:
  explicit QuantisedCall(const QuantisedCase& c) : c_(c), random_(c.seed) {
    batch_ = static_cast<std::int64_t>(c.keys.size());
    cu_q_.push_back(0);
    for (const std::int32_t queries : c.queries) cu_q_.push_back(cu_q_.back() + queries);
    lay_out_pages();
    append_keys();
    if (c.has_per_sequence_scales)
      draw_scales();
    else
      replace_scales_of_keys();
    const std::int64_t rows = cu_q_.back();
    q_ = elements(c.dtype, rows * c.num_heads * c.head_dim);
    for (std::int64_t i = 0; i < rows * c.num_heads * c.head_dim; ++i)
      store_from_double(c.dtype, q_.data(), i,
                        c.q_scale * random_.normal() + (c.num_tail_keys > 0 ? 1 : 0));
    out_ = elements(c.dtype, rows * c.num_heads * c.head_dim_v);
    lse_.assign(static_cast<std::size_t>(rows * c.num_heads), 0);
  }
  QuantisedCall(const QuantisedCall&) = delete;

  const QuantisedCase& options() const { return c_; }
  std::int64_t num_rows() const { return cu_q_.back(); }
  std::vector<unsigned char>& out() { return out_; }
  std::vector<float>& lse() { return lse_; }

  headrace_attention_tensors tensors() {
    headrace_attention_tensors t{};
    t.struct_size = sizeof t;
    const std::int64_t rows = num_rows();
    t.q = TensorView(q_.data(), c_.dtype, {rows, c_.num_heads, c_.head_dim});
    t.k = pages_view(k_, c_.k_dtype, num_pages_, c_.page_size, c_.head_dim);
    t.v = pages_view(v_, c_.v_dtype, num_pages_, c_.page_size, c_.head_dim_v);
    t.out = TensorView(out_.data(), c_.dtype, {rows, c_.num_heads, c_.head_dim_v});
    t.lse = TensorView(lse_.data(), DType::f32, {c_.num_heads, rows});
    t.cu_seqlens_q = TensorView(cu_q_.data(), DType::i32, {batch_ + 1});
    t.block_table = TensorView(block_table_.data(), DType::i32, {batch_, max_pages_});
    if (c_.has_page_indptr) {
      const auto num_entries = static_cast<std::int64_t>(list_.pages.size());
      t.block_table = TensorView(list_.pages.data(), DType::i32, {num_entries});
      t.page_indptr = TensorView(list_.offsets.data(), DType::i32, {batch_ + 1});
    }
    t.seqused_k = TensorView(keys_.data(), DType::i32, {batch_});
    t.quantised = &quantised_;
    quantised_ = {};
    quantised_.struct_size = sizeof quantised_;
    if (c_.has_per_sequence_scales) {
      if (has_codes(c_.k_dtype))
        quantised_.k_scale = TensorView(k_scale_.data(), DType::f32, {batch_, c_.num_kv_heads});
      if (has_codes(c_.v_dtype))
        quantised_.v_scale = TensorView(v_scale_.data(), DType::f32, {batch_, c_.num_kv_heads});
    } else {
      if (has_codes(c_.k_dtype)) quantised_.k_scale = k_scale_view();
      if (has_codes(c_.v_dtype)) quantised_.v_scale = v_scale_view();
    }
    if (c_.group > 0) {
      quantised_.k_recent = pages_view(k_recent_, c_.dtype, num_recent_, c_.group, c_.head_dim);
      quantised_.v_recent = pages_view(v_recent_, c_.dtype, num_recent_, c_.group, c_.head_dim_v);
      quantised_.recent_table = TensorView(recent_table_.data(), DType::i32, {batch_, max_recent_});
    }
    return t;
  }
  headrace_attention_options attention_options() const { return options_of(c_); }

  // Of one sequence: only the last queries. The pages stay.
  void keep_last_queries(std::int32_t queries) {
    const std::int64_t dropped = c_.queries[0] - queries;
    const std::int64_t groups = c_.group == 0 ? 0 : first_group(0);
    q_.erase(q_.begin(), q_.begin() + static_cast<std::ptrdiff_t>(
                                          dropped * c_.num_heads * c_.head_dim *
                                          static_cast<std::int64_t>(dtype_bytes(c_.dtype))));
    c_.queries[0] = cu_q_[1] = queries;
    if (c_.group > 0)
      recent_table_.erase(recent_table_.begin(), recent_table_.begin() + (first_group(0) - groups));
    max_recent_ = static_cast<std::int64_t>(recent_table_.size());
  }

  // Everything that tensors() refers to, for copies to a device.
  struct Memory {
    void* data;
    std::size_t bytes;
  };
  std::vector<Memory> memory() {
    std::vector<Memory> all;
    for (auto* x : {&q_, &k_, &v_, &k_recent_, &v_recent_, &out_})
      all.push_back({x->data(), x->size()});
    for (auto* x : {&k_scale_, &v_scale_})
      all.push_back({x->data(), x->size() * sizeof(std::uint32_t)});
    all.push_back({lse_.data(), lse_.size() * sizeof(float)});
    for (auto* x : {&cu_q_, &keys_, &block_table_, &list_.pages, &list_.offsets, &recent_table_})
      all.push_back({x->data(), x->size() * sizeof(std::int32_t)});
    return all;
  }

  struct Row {
    std::vector<double> out, magnitude;  // [head_dim_v]; magnitude: sum of |p v|
    double lse = 0;
    std::vector<double> step;  // [head_dim_v]: sum of |p| times the |scales| of codes of v
    double key_step = 0;  // of keys with zero points: the largest |q scale| sqrt(head_dim), scaled
    double query_step = 0;  // the largest |q_d| times the norm of a key, scaled
  };
  // As a kernel sees the keys and values, or as a cache without codes would have them.
  enum class Form { stored, unquantised };
  Row expected(std::int64_t b, std::int64_t q_idx, std::int64_t head,
               Form form = Form::stored) const {
    const std::int64_t position = q_idx + c_.keys[at(b)] - c_.queries[at(b)];
    const std::int64_t first =
        c_.window_left < 0 ? 0 : std::max<std::int64_t>(0, position - c_.window_left);
    std::vector<double> scores;
    double largest_query = 0, largest_norm = 0;
    for (std::int64_t d = 0; d < c_.head_dim; ++d)
      largest_query = std::max(largest_query, std::abs(query(b, q_idx, head, d)));
    const double softmax_scale = 1 / std::sqrt(static_cast<double>(c_.head_dim));
    for (std::int64_t j = first; j <= position; ++j) {
      double dot = 0, squares = 0;
      for (std::int64_t d = 0; d < c_.head_dim; ++d) {
        const double x = element(form, true, b, position, j, head, d);
        dot += query(b, q_idx, head, d) * x;
        squares += x * x;
      }
      largest_norm = std::max(largest_norm, std::sqrt(squares));
      dot *= softmax_scale;
      scores.push_back(c_.has_softcap ? 3 * std::tanh(dot / 3) : dot);
    }
    const double top = *std::ranges::max_element(scores);
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - top);
    Row row{std::vector<double>(at(c_.head_dim_v)), std::vector<double>(at(c_.head_dim_v)),
            top + std::log(sum), std::vector<double>(at(c_.head_dim_v))};
    row.query_step = largest_query * largest_norm * softmax_scale;
    for (std::int64_t j = first; j <= position; ++j) {
      const double weight = scores[at(j - first)] / sum;
      for (std::int64_t d = 0; d < c_.head_dim_v; ++d) {
        const double term = weight * element(form, false, b, position, j, head, d);
        row.out[at(d)] += term;
        row.magnitude[at(d)] += std::abs(term);
        if (!is_recent(position, j))
          row.step[at(d)] += weight * std::abs(scale_of(false, b, j, head, d));
      }
      for (std::int64_t d = 0; has_zero_points(c_.k_dtype) && d < c_.head_dim; ++d)
        if (!is_recent(position, j))
          row.key_step = std::max(
              row.key_step, std::abs(query(b, q_idx, head, d)) * scale_of(true, b, j, head, d));
    }  // times sqrt(head_dim) and the softmax scale: 1
    return row;
  }
  double query(std::int64_t b, std::int64_t q_idx, std::int64_t head, std::int64_t d) const {
    return load_as_double(c_.dtype, q_.data(),
                          ((cu_q_[at(b)] + q_idx) * c_.num_heads + head) * c_.head_dim + d);
  }

  // Of a key or value j, as a query of sequence b at `position` sees it.
  double element(Form form, bool is_of_k, std::int64_t b, std::int64_t position, std::int64_t j,
                 std::int64_t head, std::int64_t d) const {
    if (form == Form::stored) return key(is_of_k, b, position, j, head, d);
    const std::int64_t first = std::accumulate(keys_.begin(), keys_.begin() + b, std::int64_t{0});
    const std::int64_t kv_head = head / (c_.num_heads / c_.num_kv_heads);
    const std::int64_t row = (first + j) * c_.num_kv_heads + kv_head;
    double rounded = 0;
    store_from_double(
        c_.dtype, &rounded, 0,
        is_of_k ? k_source_[at(row * c_.head_dim + d)] : v_source_[at(row * c_.head_dim_v + d)]);
    return load_as_double(c_.dtype, &rounded, 0);
  }
  double result(std::int64_t b, std::int64_t q_idx, std::int64_t head, std::int64_t d) const {
    return load_as_double(c_.dtype, out_.data(),
                          ((cu_q_[at(b)] + q_idx) * c_.num_heads + head) * c_.head_dim_v + d);
  }
  float result_lse(std::int64_t b, std::int64_t q_idx, std::int64_t head) const {
    return lse_[at(head * num_rows() + cu_q_[at(b)] + q_idx)];
  }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  static bool has_codes(DType dtype) { return dtype_bytes(dtype) == 1; }
  std::vector<unsigned char> elements(DType dtype, std::int64_t count) const {
    return std::vector<unsigned char>(at(count) * dtype_bytes(dtype), 0xff);  // NaN
  }
  // `rows` of a page and head, of codes, recent keys or scales.
  TensorView pages_view(void* memory, DType dtype, std::int64_t num_pages, std::int64_t rows,
                        std::int64_t width) const {
    const std::int64_t heads = c_.num_kv_heads;
    TensorView view(memory, dtype, {num_pages, rows, heads, width});
    if (c_.is_head_major) {
      view.strides[1] = width;
      view.strides[2] = rows * width;
    }
    return view;
  }
  TensorView pages_view(std::vector<unsigned char>& memory, DType dtype, std::int64_t num_pages,
                        std::int64_t page_size, std::int64_t dim) const {
    return pages_view(memory.data(), dtype, num_pages, page_size, stored_size(dtype, dim));
  }
  TensorView scales_view(std::vector<std::uint32_t>& memory) const {
    return *pages_view(memory.data(), DType::f32, num_pages_, c_.page_size, 1).select(3, 0);
  }
  TensorView k_scale_view() {
    if (!has_zero_points(c_.k_dtype)) return scales_view(k_scale_);
    return pages_view(k_scale_.data(), DType::u32, num_pages_, c_.page_size / kZeroPointGroup,
                      k_words());
  }
  TensorView v_scale_view() {
    if (!has_zero_points(c_.v_dtype)) return scales_view(v_scale_);
    return pages_view(v_scale_.data(), DType::u32, num_pages_, c_.page_size, v_words());
  }
  std::int64_t k_words() const { return scales_of_key(c_.k_dtype, c_.head_dim); }
  std::int64_t v_words() const { return scales_of_value(c_.v_dtype, c_.head_dim_v); }

  // Distinct pages in random order; entries behind the used ones are no pages.
  void lay_out_pages() {
    keys_ = c_.keys;
    const auto ceil = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
    max_pages_ = 0;
    std::int64_t used = 0, used_recent = 0;
    for (std::int64_t b = 0; b < batch_; ++b) {
      max_pages_ = std::max(max_pages_, ceil(keys_[at(b)], c_.page_size));
      used += ceil(keys_[at(b)], c_.page_size);
      if (c_.group == 0) continue;
      max_recent_ = std::max(max_recent_, num_groups(b));
      used_recent += num_groups(b);
    }
    num_pages_ = used + 2;
    num_recent_ = used_recent + 2;
    block_table_.assign(at(batch_ * max_pages_), kNoPage);
    recent_table_.assign(at(batch_ * max_recent_), -5);
    std::vector<std::int32_t> pages = shuffled(num_pages_), recent = shuffled(num_recent_);
    for (std::int64_t b = 0; b < batch_; ++b) {
      for (std::int64_t i = 0; i < ceil(keys_[at(b)], c_.page_size); ++i) {
        block_table_[at(b * max_pages_ + i)] = pages.back();
        pages.pop_back();
      }
      for (std::int64_t i = 0; c_.group > 0 && i < num_groups(b); ++i) {
        recent_table_[at(b * max_recent_ + i)] = recent.back();
        recent.pop_back();
      }
    }
    list_ = page_list_of({max_pages_, block_table_}, keys_, c_.page_size);
  }
  std::int64_t first_group(std::int64_t b) const {
    return (keys_[at(b)] - c_.queries[at(b)]) / c_.group;
  }
  std::int64_t num_groups(std::int64_t b) const {
    return (keys_[at(b)] - 1) / c_.group - first_group(b) + 1;
  }
  std::vector<std::int32_t> shuffled(std::int64_t count) {
    std::vector<std::int32_t> order(at(count));
    std::iota(order.begin(), order.end(), 0);
    for (std::int64_t i = count - 1; i > 0; --i)
      std::swap(order[at(i)], order[at(random_.between(0, i))]);
    return order;
  }

  // All keys of all sequences by one append. Recent pages of groups that no query sees are there
  // for keys with zero points, which are quantised from them.
  void append_keys() {
    std::vector<std::int64_t> slots, recent_slots;
    std::int64_t num_recent = num_recent_;
    for (std::int64_t b = 0; b < batch_; ++b)
      for (std::int64_t j = 0; j < keys_[at(b)]; ++j) {
        slots.push_back(block_table_[at(b * max_pages_ + j / c_.page_size)] * c_.page_size +
                        j % c_.page_size);
        if (c_.group > 0 && j / c_.group >= first_group(b)) {
          const std::int64_t entry = b * max_recent_ + j / c_.group - first_group(b);
          recent_slots.push_back(recent_table_[at(entry)] * c_.group + j % c_.group);
        } else if (has_zero_points(c_.k_dtype)) {
          if (j % c_.group == 0) ++num_recent;
          recent_slots.push_back((num_recent - 1) * c_.group + j % c_.group);
        } else {
          recent_slots.push_back(-1);
        }
      }
    const auto n = static_cast<std::int64_t>(slots.size());
    std::vector<float>&k = k_source_, &v = v_source_;
    k.resize(at(n * c_.num_kv_heads * c_.head_dim));
    v.resize(at(n * c_.num_kv_heads * c_.head_dim_v));
    for (float& x : k) x = static_cast<float>(random_.normal() * (random_.chance(2) ? 6 : 1));
    for (float& x : v) x = static_cast<float>(random_.normal());
    raise_tail_keys(k);
    k_ = elements(c_.k_dtype, num_pages_ * c_.page_size * c_.num_kv_heads *
                                  stored_size(c_.k_dtype, c_.head_dim));
    v_ = elements(c_.v_dtype, num_pages_ * c_.page_size * c_.num_kv_heads *
                                  stored_size(c_.v_dtype, c_.head_dim_v));
    k_recent_ = elements(c_.dtype, num_recent * c_.group * c_.num_kv_heads * c_.head_dim);
    v_recent_ = elements(c_.dtype, num_recent * c_.group * c_.num_kv_heads * c_.head_dim_v);
    constexpr std::uint32_t kNaN = 0xffffffffu;  // as one f32 or two f16
    k_scale_.assign(at(num_pages_ * c_.page_size * c_.num_kv_heads * k_words()), kNaN);
    v_scale_.assign(at(num_pages_ * c_.page_size * c_.num_kv_heads * v_words()), kNaN);
    headrace_kv_append_tensors t{};
    t.struct_size = sizeof t;
    headrace_quantised_kv x{};
    x.struct_size = sizeof x;
    t.quantised = &x;
    t.k = TensorView(k.data(), DType::f32, {n, c_.num_kv_heads, c_.head_dim});
    t.v = TensorView(v.data(), DType::f32, {n, c_.num_kv_heads, c_.head_dim_v});
    t.k_pages = pages_view(k_, c_.k_dtype, num_pages_, c_.page_size, c_.head_dim);
    t.v_pages = pages_view(v_, c_.v_dtype, num_pages_, c_.page_size, c_.head_dim_v);
    t.slot_mapping = TensorView(slots.data(), DType::i64, {n});
    if (has_codes(c_.k_dtype)) x.k_scale = k_scale_view();
    if (has_codes(c_.v_dtype)) x.v_scale = v_scale_view();
    if (c_.group > 0) {
      x.k_recent = pages_view(k_recent_, c_.dtype, num_recent, c_.group, c_.head_dim);
      x.v_recent = pages_view(v_recent_, c_.dtype, num_recent, c_.group, c_.head_dim_v);
      t.recent_slots = TensorView(recent_slots.data(), DType::i64, {n});
    }
    append_status_ = kv_append(t, default_kv_append_options(), nullptr, nullptr);
    const auto first_unseen = [&](std::int64_t dim) {
      return static_cast<std::ptrdiff_t>(at(num_recent_ * c_.group * c_.num_kv_heads * dim) *
                                         dtype_bytes(c_.dtype));
    };
    std::fill(k_recent_.begin() + first_unseen(c_.head_dim), k_recent_.end(), 0xff);
    std::fill(v_recent_.begin() + first_unseen(c_.head_dim_v), v_recent_.end(), 0xff);
  }

 public:
  const Status& append_status() const { return append_status_; }

 private:
  void draw_scales() {
    const auto draw = [this](double times, const std::vector<float>& given) {
      std::vector<std::uint32_t> scales;
      for (std::int64_t i = 0; i < batch_ * c_.num_kv_heads; ++i)
        scales.push_back(std::bit_cast<std::uint32_t>(
            given.empty() ? static_cast<float>(times * (0.01 + 0.01 * random_.uniform()))
                          : given[at(i)]));
      return scales;
    };
    k_scale_ = draw(c_.k_scale, c_.k_scales);
    v_scale_ = draw(c_.v_scale, c_.v_scales);
  }
  // Each key of a sequence and head has the given scale.
  void replace_scales_of_keys() {
    for (const auto& [given, scales] :
         {std::pair{&c_.k_scales, &k_scale_}, {&c_.v_scales, &v_scale_}})
      for (std::int64_t b = 0; b < batch_ && !given->empty(); ++b)
        for (std::int64_t j = 0; j < keys_[at(b)]; ++j) {
          const std::int64_t page = block_table_[at(b * max_pages_ + j / c_.page_size)];
          for (std::int64_t head = 0; head < c_.num_kv_heads; ++head)
            (*scales)[at((page * c_.page_size + j % c_.page_size) * c_.num_kv_heads + head)] =
                std::bit_cast<std::uint32_t>((*given)[at(b * c_.num_kv_heads + head)]);
        }
  }
  // Queries have a mean of 1.
  void raise_tail_keys(std::vector<float>& k) const {
    const std::int64_t row = c_.num_kv_heads * c_.head_dim;
    for (std::int64_t b = 0, end = 0; b < batch_; ++b) {
      end += keys_[at(b)];
      const auto tail = std::min<std::int64_t>(c_.num_tail_keys, keys_[at(b)]);
      for (std::int64_t i = (end - tail) * row; i < end * row; ++i) k[at(i)] += 1;
    }
  }

  // Of codes, recent keys or scales.
  std::int64_t row_of(std::int64_t page, std::int64_t page_size, std::int64_t slot,
                      std::int64_t kv_head) const {
    return c_.is_head_major ? (page * c_.num_kv_heads + kv_head) * page_size + slot
                            : (page * page_size + slot) * c_.num_kv_heads + kv_head;
  }
  // An element of the key or value j as a query of sequence b at `position` sees it.
  double key(bool is_of_k, std::int64_t b, std::int64_t position, std::int64_t j, std::int64_t head,
             std::int64_t d) const {
    const std::int64_t kv_head = head / (c_.num_heads / c_.num_kv_heads);
    const std::int64_t dim = is_of_k ? c_.head_dim : c_.head_dim_v;
    const auto offset = [&](std::int64_t page, std::int64_t page_size, std::int64_t slot,
                            std::int64_t width) {
      return row_of(page, page_size, slot, kv_head) * width;
    };
    if (is_recent(position, j)) {
      const std::int64_t page = recent_table_[at(b * max_recent_ + j / c_.group - first_group(b))];
      return load_as_double(c_.dtype, (is_of_k ? k_recent_ : v_recent_).data(),
                            offset(page, c_.group, j % c_.group, dim) + d);
    }
    const DType dtype = is_of_k ? c_.k_dtype : c_.v_dtype;
    const std::int64_t page = block_table_[at(b * max_pages_ + j / c_.page_size)];
    const double code = load_as_double(dtype, (is_of_k ? k_ : v_).data(),
                                       offset(page, c_.page_size, j % c_.page_size, dim) + d);
    if (has_zero_points(dtype)) {
      const std::uint32_t word = word_of(is_of_k, b, j, head, d);
      return load_as_double(DType::f16, &word, 1) + load_as_double(DType::f16, &word, 0) * code;
    }
    return has_codes(dtype) ? code * scale_of(is_of_k, b, j, head, d) : code;
  }
  // The scale and the zero point of a code.
  std::uint32_t word_of(bool is_of_k, std::int64_t b, std::int64_t j, std::int64_t head,
                        std::int64_t d) const {
    const std::int64_t page = block_table_[at(b * max_pages_ + j / c_.page_size)];
    const std::int64_t slot = j % c_.page_size;
    const std::int64_t kv_head = head / (c_.num_heads / c_.num_kv_heads);
    const std::int64_t first =
        is_of_k ? row_of(page, c_.page_size / kZeroPointGroup, slot / kZeroPointGroup, kv_head)
                : row_of(page, c_.page_size, slot, kv_head);
    return is_of_k ? k_scale_[at(first * k_words() + d)]
                   : v_scale_[at(first * v_words() + d / kZeroPointGroup)];
  }
  bool is_recent(std::int64_t position, std::int64_t j) const {
    return c_.group > 0 && j / c_.group == position / c_.group;
  }
  // Of an element's code; 0 if it has none.
  double scale_of(bool is_of_k, std::int64_t b, std::int64_t j, std::int64_t head,
                  std::int64_t d) const {
    const DType dtype = is_of_k ? c_.k_dtype : c_.v_dtype;
    if (!has_codes(dtype)) return 0;
    if (has_zero_points(dtype)) {
      const std::uint32_t word = word_of(is_of_k, b, j, head, d);
      return load_as_double(DType::f16, &word, 0);
    }
    const std::int64_t kv_head = head / (c_.num_heads / c_.num_kv_heads);
    const std::int64_t page = block_table_[at(b * max_pages_ + j / c_.page_size)];
    const std::int64_t idx = c_.has_per_sequence_scales
                                 ? b * c_.num_kv_heads + kv_head
                                 : row_of(page, c_.page_size, j % c_.page_size, kv_head);
    return load_as_double(DType::f32, (is_of_k ? k_scale_ : v_scale_).data(), idx);
  }

  QuantisedCase c_;
  Random random_;
  std::int64_t batch_ = 0, max_pages_ = 0, num_pages_ = 0, max_recent_ = 0, num_recent_ = 0;
  std::vector<std::int32_t> cu_q_, keys_, block_table_, recent_table_;
  PageList list_;  // block_table_ with rows of any length
  std::vector<unsigned char> q_, k_, v_, k_recent_, v_recent_, out_;
  std::vector<float> k_source_, v_source_;  // what was appended: [sum of keys, num_kv_heads, dim]
  std::vector<std::uint32_t> k_scale_, v_scale_;
  std::vector<float> lse_;
  headrace_quantised_kv quantised_{};
  Status append_status_;
};

// The tensors of a call whose memory lies elsewhere, on a device or between guard pages.
class MovedTensors {
 public:
  // copy(memory, view): the new address of the memory that the view begins; may change its dtype.
  template <class Copy>
  MovedTensors(QuantisedCall& call, std::int32_t device_type, Copy copy)
      : tensors(call.tensors()), quantised_(*tensors.quantised) {
    tensors.quantised = &quantised_;
    for (headrace_tensor* view :
         {&tensors.q, &tensors.k, &tensors.v, &tensors.out, &tensors.lse, &tensors.cu_seqlens_q,
          &tensors.block_table, &tensors.page_indptr, &tensors.seqused_k, &quantised_.k_scale,
          &quantised_.v_scale, &quantised_.k_recent, &quantised_.v_recent,
          &quantised_.recent_table}) {
      if (view->rank == 0) continue;
      view->device_type = device_type;
      for (const QuantisedCall::Memory& memory : call.memory()) {
        if (memory.bytes == 0 || memory.data != view->data) continue;
        view->data = copy(memory, *view);
        break;
      }
    }
  }
  MovedTensors(const MovedTensors&) = delete;

  headrace_attention_tensors tensors;

 private:
  headrace_quantised_kv quantised_;
};

}  // namespace headrace::testing
