// Cases of an append for the tests of the CPU and of CUDA: tensors, and what must be written, in
// double.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "ops/kv_append.h"
#include "ops/rope_options.h"
#include "ops/softmax_test_tensor.h"
#include "support/random.h"

namespace headrace::testing {

enum class Rotation { none, frequencies, tables };

struct AppendCase {
  std::int64_t num_tokens = 5, num_heads = 4, num_kv_heads = 2;
  std::int64_t head_dim = 16, head_dim_v = 16, page_size = 4;
  DType dtype = DType::f32, q_out_dtype = DType::f32;
  DType k_page_dtype = DType::f32, v_page_dtype = DType::f32;
  DType side_dtype = DType::f32;        // of q's norm and cos
  DType other_side_dtype = DType::f32;  // of k's norm and sin
  Rotation rotation = Rotation::frequencies;
  RopeLayout layout = RopeLayout::interleaved;
  std::int64_t rot_dim = 16;
  double attention_factor = 1;
  bool has_q = true, has_kv = true, has_q_norm = false, has_k_norm = false;
  bool has_factors = false, has_hadamard = false;
  bool is_in_place = false, is_fused = true;  // q, k and v slices of one buffer
  std::vector<int> order = {0, 1, 2}, page_order = {0, 1, 2, 3};
  std::int64_t gap = 0, page_gap = 0;  // those of k, v, q_out, sin and v_pages are multiples
  std::int64_t last_position = 100000;
  std::uint64_t seed = 1;
};

inline std::string text_of(const AppendCase& c) {
  const auto number = [](auto x) { return std::to_string(static_cast<long long>(x)) + ' '; };
  return "tokens " + number(c.num_tokens) + "heads " + number(c.num_heads) +
         number(c.num_kv_heads) + "dims " + number(c.head_dim) + number(c.head_dim_v) + "page " +
         number(c.page_size) + dtype_name(c.dtype) + ' ' + dtype_name(c.q_out_dtype) + ' ' +
         dtype_name(c.k_page_dtype) + ' ' + dtype_name(c.v_page_dtype) + " rotation " +
         number(c.rotation) + "layout " + number(c.layout) + "rot_dim " + number(c.rot_dim) +
         "norms " + number(c.has_q_norm) + number(c.has_k_norm) + "factors " +
         number(c.has_factors) + "hadamard " + number(c.has_hadamard) + "seed " + number(c.seed);
}

// Everything that a case does not fix is drawn from `random`.
inline AppendCase random_case(Random& random, DType dtype, DType page_dtype, Rotation rotation,
                              RopeLayout layout) {
  constexpr DType kDtypes[] = {DType::f32, DType::f16, DType::bf16};
  constexpr std::int64_t kDims[] = {2, 17, 64, 80, 96, 128, 130, 256, 576};
  const std::vector<int> orders[] = {{0, 1, 2}, {1, 0, 2}};
  const std::vector<int> page_orders[] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {2, 1, 0, 3}, {1, 0, 2, 3}};
  AppendCase c;
  c.dtype = dtype;
  c.k_page_dtype = page_dtype;
  c.v_page_dtype = random.chance(50) ? page_dtype : random.pick(kDtypes);
  c.rotation = rotation;
  c.layout = layout;
  c.num_tokens = random.between(1, 9);
  c.num_heads = random.between(1, 6);
  c.num_kv_heads = random.between(1, 3);
  c.head_dim = random.pick(kDims);
  c.head_dim_v = random.chance(50) ? c.head_dim : random.pick(kDims);
  c.page_size = random.pick({std::int64_t{1}, std::int64_t{3}, std::int64_t{16}});
  c.q_out_dtype = random.pick(kDtypes);
  c.side_dtype = c.other_side_dtype = random.pick(kDtypes);
  c.rot_dim = 2 * random.between(1, c.head_dim / 2);
  if (random.chance(50)) c.rot_dim = c.head_dim / 2 * 2;
  c.attention_factor = random.chance(30) ? 1.2 : 1;
  c.has_q_norm = random.chance(50);
  c.has_k_norm = random.chance(50);
  c.has_hadamard = random.chance(30);
  c.has_q = random.chance(80);
  c.has_kv = !c.has_q || random.chance(80);
  c.is_in_place = random.chance(30);
  if (c.is_in_place) c.q_out_dtype = c.dtype;
  c.is_fused = c.head_dim == c.head_dim_v && random.chance(50);
  c.order = orders[random.between(0, 1)];
  c.page_order = page_orders[random.between(0, 3)];
  c.gap = random.pick({std::int64_t{0}, std::int64_t{1}, std::int64_t{16}});
  c.page_gap = random.pick({std::int64_t{0}, std::int64_t{5}, std::int64_t{8}});
  c.seed = random.next() % 1000000;
  c.has_factors = random.chance(30);
  if (c.has_factors) c.num_heads = c.num_kv_heads * random.between(1, 3);
  return c;
}

// The memory of a call. Slots are distinct, about a fifth of them negative; pages start as NaN.
class AppendCall {
 public:
  explicit AppendCall(const AppendCase& c)
      : c_(c),
        random_(c.seed),
        num_pages_(c.num_tokens / c.page_size + 3),
        positions_(static_cast<std::size_t>(c.num_tokens)),
        slots_(positions_.size()) {
    make_activations();
    k_pages_ = filled(c.k_page_dtype, {num_pages_, c.page_size, c.num_kv_heads, c.head_dim},
                      c.page_order, c.page_gap, 0);
    v_pages_ = filled(c.v_page_dtype, {num_pages_, c.page_size, c.num_kv_heads, c.head_dim_v},
                      c.page_order, 2 * c.page_gap, 0);
    q_norm_ = filled(c.side_dtype, {c.head_dim}, {0}, 0, 1);
    k_norm_ = filled(c.other_side_dtype, {c.head_dim}, {0}, 0, 1);
    const std::int64_t max_positions = c.rotation == Rotation::tables ? 40 : c.last_position + 1;
    for (auto& position : positions_)
      position = static_cast<std::int32_t>(random_.between(0, max_positions - 1));
    if (c.rotation == Rotation::tables) {
      cos_ = filled(c.side_dtype, {max_positions, c.rot_dim / 2}, {0, 1}, c.gap, 1);
      sin_ = filled(c.other_side_dtype, {max_positions, c.rot_dim / 2}, {0, 1}, 2 * c.gap, 1);
    }
    draw_slots();
    make_factors();
  }
  AppendCall(const AppendCall&) = delete;

  const AppendCase& options() const { return c_; }
  std::vector<std::int32_t>& positions() { return positions_; }
  std::vector<std::int64_t>& slots() { return slots_; }
  Tensor& k_pages() { return *k_pages_; }
  Tensor& v_pages() { return *v_pages_; }
  Tensor& q_out() { return c_.is_in_place ? *(c_.is_fused ? fused_ : q_) : *q_out_; }
  // Every tensor with its memory, for copies to a device.
  std::vector<Tensor*> memory() {
    std::vector<Tensor*> all;
    for (auto* x : {&fused_, &q_, &k_, &v_, &q_out_, &k_pages_, &v_pages_, &q_norm_, &k_norm_,
                    &cos_, &sin_, &factors_})
      if (*x) all.push_back(x->get());
    return all;
  }

  headrace_kv_append_tensors tensors() {
    headrace_kv_append_tensors t{};
    t.struct_size = sizeof t;
    const std::int64_t n = c_.num_tokens;
    if (c_.has_q) {
      t.q = q_view();
      t.q_out = c_.is_in_place ? q_view() : q_out_->view();
      if (c_.has_q_norm) t.q_norm_weight = q_norm_->view();
    }
    if (c_.has_kv) {
      t.k = k_view();
      t.v = v_view();
      t.k_pages = k_pages_->view();
      t.v_pages = v_pages_->view();
      t.slot_mapping = TensorView(slots_.data(), DType::i64, {n});
      if (c_.has_k_norm) t.k_norm_weight = k_norm_->view();
    }
    if (c_.rotation != Rotation::none) t.positions = TensorView(positions_.data(), DType::i32, {n});
    if (c_.rotation == Rotation::tables) {
      t.cos = cos_->view();
      t.sin = sin_->view();
    }
    if (c_.has_factors) t.channel_factors = factors_->view();
    return t;
  }
  headrace_kv_append_options append_options() const {
    headrace_kv_append_options o = default_kv_append_options();
    o.norm_eps = kEps;
    o.hadamard = c_.has_hadamard;
    return o;
  }
  headrace_rope_options rope() const {
    headrace_rope_options rope = default_rope_options();
    rope.layout =
        c_.layout == RopeLayout::halves ? HEADRACE_ROPE_HALVES : HEADRACE_ROPE_INTERLEAVED;
    rope.base = kBase;
    if (c_.rotation == Rotation::frequencies) {
      rope.rot_dim = c_.rot_dim;
      rope.attention_factor = c_.attention_factor;
    }
    return rope;
  }

  // What the call must write, and how far floats may be from it.
  struct Expected {
    std::vector<double> values, tolerance;
  };
  Expected expected_q() const {
    return rows_of(q_values_, c_.num_heads, c_.has_q_norm, *q_norm_,
                   [](double x, double factor) { return x * factor; });
  }
  Expected expected_k() const {
    return rows_of(k_values_, c_.num_kv_heads, c_.has_k_norm, *k_norm_,
                   [](double x, double factor) { return x / factor; });
  }
  const Doubles& expected_v() const { return v_values_; }

  // q_out and the pages hold what they must; slots that no token has are unchanged.
  void expect_written(const std::string& trace) {
    SCOPED_TRACE(trace + text_of(c_));
    if (c_.has_q) {
      const TensorView view = c_.is_in_place ? q_view() : q_out_->view();
      expect_near(read(view), expected_q(), c_.q_out_dtype);
    }
    if (!c_.has_kv) return;
    expect_pages(*k_pages_, expected_k(), c_.head_dim);
    expect_pages(*v_pages_, {v_values_, Doubles(v_values_.size())}, c_.head_dim_v);
  }

 private:
  static constexpr double kBase = 10000, kEps = 1e-5;
  using Owner = std::unique_ptr<Tensor>;

  // `size` 0: NaN everywhere, as unwritten memory.
  Owner filled(DType dtype, const Shape& shape, const std::vector<int>& order, std::int64_t gap,
               double size) {
    auto tensor = std::make_unique<Tensor>(dtype, shape, order, gap);
    if (size == 0) return tensor;
    Doubles values(static_cast<std::size_t>(count_of(shape)));
    for (double& value : values) value = random_.normal() * size;
    tensor->set(values);
    return tensor;
  }
  static Doubles read(const TensorView& view) {
    Doubles all(static_cast<std::size_t>(view.num_elements()));
    for_elements(view, [&](std::int64_t i, std::int64_t offset) {
      all[static_cast<std::size_t>(i)] = load_as_double(view.type(), view.data, offset);
    });
    return all;
  }

  void make_activations() {
    const std::int64_t n = c_.num_tokens, dim = c_.head_dim;
    if (c_.is_fused) {
      fused_ = filled(c_.dtype, {n, c_.num_heads + 2 * c_.num_kv_heads, dim}, c_.order, c_.gap, 2);
    } else {
      q_ = filled(c_.dtype, {n, c_.num_heads, dim}, c_.order, c_.gap, 2);
      k_ = filled(c_.dtype, {n, c_.num_kv_heads, dim}, c_.order, 2 * c_.gap, 2);
      v_ = filled(c_.dtype, {n, c_.num_kv_heads, c_.head_dim_v}, c_.order, 3 * c_.gap, 2);
    }
    if (!c_.is_in_place)
      q_out_ = filled(c_.q_out_dtype, {n, c_.num_heads, dim}, c_.order, 4 * c_.gap, 0);
    q_values_ = read(q_view());
    k_values_ = read(k_view());
    v_values_ = read(v_view());
  }
  TensorView q_view() const {
    return c_.is_fused ? *fused_->view().slice(1, 0, c_.num_heads) : q_->view();
  }
  TensorView k_view() const {
    return c_.is_fused ? *fused_->view().slice(1, c_.num_heads, c_.num_heads + c_.num_kv_heads)
                       : k_->view();
  }
  TensorView v_view() const {
    const std::int64_t first = c_.num_heads + c_.num_kv_heads;
    return c_.is_fused ? *fused_->view().slice(1, first, first + c_.num_kv_heads) : v_->view();
  }

  void draw_slots() {
    std::vector<std::int64_t> all;
    for (std::int64_t slot = 0; slot < num_pages_ * c_.page_size; ++slot) all.push_back(slot);
    for (auto& slot : slots_) {
      const auto i =
          static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(all.size()) - 1));
      slot = random_.chance(20) ? -1 - random_.between(0, 100) : all[i];
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  // Powers of two: products and quotients are exact.
  void make_factors() {
    factors_ = std::make_unique<Tensor>(DType::f32, Shape{c_.num_kv_heads, c_.head_dim},
                                        std::vector<int>{0, 1}, c_.gap);
    Doubles values(static_cast<std::size_t>(c_.num_kv_heads * c_.head_dim));
    for (double& value : values) value = std::ldexp(1.0, static_cast<int>(random_.between(-4, 8)));
    factors_->set(values);
  }

  // Cosine and sine of a pair, and their error in float units: 1 for the rounding, 2 for a GPU's
  // sine and cosine in float.
  struct Angle {
    double cos, sin, error;
  };
  Angle angle_of(std::size_t token, std::int64_t pair) const {
    const std::int64_t position = positions_[token];
    if (c_.rotation == Rotation::tables) {
      const auto at = [&](const Tensor& table) {
        const TensorView& view = table.view();
        return load_as_double(view.type(), view.data, position * view.strides[0] + pair);
      };
      return {at(*cos_), at(*sin_), 0};
    }
    const double angle =
        static_cast<double>(position) /
        std::pow(kBase, 2 * static_cast<double>(pair) / static_cast<double>(c_.rot_dim));
    const double factor = c_.attention_factor;
    return {std::cos(angle) * factor, std::sin(angle) * factor,
            (3 * kUnit + std::abs(angle) * 0x1p-50) * factor};
  }

  // scaled(x, factor): an element and that of its channel.
  template <class Scaled>
  Expected rows_of(const Doubles& x, std::int64_t num_heads, bool has_norm, const Tensor& norm,
                   Scaled scaled) const {
    Expected rows{x, Doubles(x.size())};
    const auto dim = static_cast<std::size_t>(c_.head_dim);
    const Doubles weight = norm.values(), factors = factors_->values();
    const auto heads = static_cast<std::size_t>(num_heads);
    for (std::size_t row = 0; row * dim < x.size(); ++row) {
      double* y = &rows.values[row * dim];
      double* error = &rows.tolerance[row * dim];
      if (has_norm) normalise(weight, y, error);
      if (c_.rotation != Rotation::none) rotate(row / heads, y, error);
      for (std::size_t i = 0; c_.has_factors && i < dim; ++i) {
        const auto group = heads / static_cast<std::size_t>(c_.num_kv_heads);
        const double factor = factors[row % heads / group * dim + i];
        y[i] = scaled(y[i], factor);
        error[i] = scaled(error[i], factor);
      }
      if (c_.has_hadamard) multiply_by_hadamard(y, error);
    }
    return rows;
  }
  // By its definition: element (i, j) is -1 to the number of bits that i and j share. A float sum
  // of n elements by log2(n) <= 9 additions, and a product.
  void multiply_by_hadamard(double* y, double* error) const {
    std::int64_t n = 1;
    while (c_.head_dim % (2 * n) == 0) n *= 2;
    const double scale = 1 / std::sqrt(static_cast<double>(n));
    for (std::int64_t first = 0; n > 1 && first < c_.head_dim; first += n) {
      const Doubles x(y + first, y + first + n), e(error + first, error + first + n);
      for (std::int64_t i = 0; i < n; ++i) {
        double sum = 0, size = 0, before = 0;
        for (std::int64_t j = 0; j < n; ++j) {
          const auto k = static_cast<std::size_t>(j);
          sum += std::popcount(static_cast<std::uint64_t>(i & j)) % 2 == 0 ? x[k] : -x[k];
          size += std::abs(x[k]);
          before += e[k];
        }
        y[first + i] = sum * scale;
        error[first + i] = (before + 11 * kUnit * (size + before)) * scale;
      }
    }
  }
  // A sum of squares: at most 18 squares in each of 32 lanes, 5 steps of a reduction, and their
  // products; halved by the square root. Then a square root, a quotient and two products.
  void normalise(const Doubles& weight, double* y, double* error) const {
    double sum = 0;
    for (std::size_t i = 0; i < weight.size(); ++i) sum += y[i] * y[i];
    const double scale = 1 / std::sqrt(sum / static_cast<double>(weight.size()) + kEps);
    for (std::size_t i = 0; i < weight.size(); ++i) {
      y[i] *= scale * weight[i];
      error[i] = 18 * kUnit * std::abs(y[i]);
    }
  }
  void rotate(std::size_t token, double* y, double* error) const {
    for (std::int64_t pair = 0; pair < c_.rot_dim / 2; ++pair) {
      const bool is_halves = c_.layout == RopeLayout::halves;
      const std::int64_t i = is_halves ? pair : 2 * pair;
      const std::int64_t j = is_halves ? pair + c_.rot_dim / 2 : 2 * pair + 1;
      const Angle angle = angle_of(token, pair);
      const double a = y[i], b = y[j];
      y[i] = a * angle.cos - b * angle.sin;
      y[j] = b * angle.cos + a * angle.sin;
      const double size = std::abs(a) + std::abs(b);
      const double largest = std::max(std::abs(angle.cos), std::abs(angle.sin));
      error[i] = error[j] =
          size * (angle.error + 2 * kUnit * largest) + (error[i] + error[j]) * largest;
    }
  }

  static void expect_near(const Doubles& got, const Expected& want, DType dtype) {
    ASSERT_EQ(got.size(), want.values.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double error = want.tolerance[i];
      const double bound =
          error == 0 ? 0 : error + rounding_of(dtype, std::abs(want.values[i]) + error);
      if (error == 0) {  // copied: exactly one rounding
        double rounded = 0;
        store_from_double(dtype, &rounded, 0, want.values[i]);
        ASSERT_EQ(got[i], load_as_double(dtype, &rounded, 0)) << "element " << i;
      } else {
        ASSERT_NEAR(got[i], want.values[i], bound) << "element " << i;
      }
    }
  }
  void expect_pages(const Tensor& pages, const Expected& tokens, std::int64_t dim) const {
    const Doubles got = pages.values();  // [page, slot, head, dim], row-major
    const auto row = static_cast<std::size_t>(c_.num_kv_heads * dim);
    std::vector<bool> is_taken(got.size() / row);
    for (std::size_t token = 0; token < slots_.size(); ++token) {
      if (slots_[token] < 0) continue;
      const auto slot = static_cast<std::size_t>(slots_[token]);
      is_taken[slot] = true;
      const auto part = [row](const Doubles& x, std::size_t i) {
        const auto begin = x.begin() + static_cast<std::ptrdiff_t>(i * row);
        return Doubles(begin, begin + static_cast<std::ptrdiff_t>(row));
      };
      expect_near(part(got, slot), {part(tokens.values, token), part(tokens.tolerance, token)},
                  pages.view().type());
    }
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_TRUE(is_taken[i / row] || std::isnan(got[i])) << "slot " << i / row;
    EXPECT_TRUE(pages.has_kept_gaps());
  }

  static constexpr double kUnit = 0x1p-24;

  AppendCase c_;
  Random random_;
  std::int64_t num_pages_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int64_t> slots_;
  Owner fused_, q_, k_, v_, q_out_, k_pages_, v_pages_, q_norm_, k_norm_, cos_, sin_, factors_;
  Doubles q_values_, k_values_, v_values_;
};

// body(case) for every dtype of activations and pages, rotation and layout, three times each.
template <class Body>
void for_append_cases(Body body) {
  constexpr DType kDtypes[] = {DType::f32, DType::f16, DType::bf16};
  Random random(1);
  for (const DType dtype : kDtypes)
    for (const DType page_dtype : kDtypes)
      for (const Rotation rotation : {Rotation::none, Rotation::frequencies, Rotation::tables})
        for (const RopeLayout layout : {RopeLayout::interleaved, RopeLayout::halves})
          for (int i = 0; i < 3; ++i)
            body(random_case(random, dtype, page_dtype, rotation, layout));
}

}  // namespace headrace::testing
