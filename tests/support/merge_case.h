// Cases of a merge of attention states for the tests of the CPU and of CUDA: tensors, and what must
// be written, in double.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ops/merge_states.h"
#include "ops/softmax_test_tensor.h"
#include "support/random.h"

namespace headrace::testing {

inline constexpr double kNoKeys = -std::numeric_limits<double>::infinity();

struct MergeCase {
  int num_states = 2;
  bool is_ragged = false;
  std::int64_t batch = 1, seqlen = 3, num_heads = 2, head_dim_v = 8;
  DType dtype = DType::f32, out_dtype = DType::f32;
  bool is_transposed = false, is_result_transposed = false;  // heads before rows in memory
  std::int64_t gap = 0;
  int in_place = -1;  // the state that out and lse replace
  bool has_lse = true;
  double lse_size = 3;
  std::uint64_t seed = 1;
};

inline std::string text_of(const MergeCase& c) {
  const auto number = [](auto x) { return std::to_string(static_cast<long long>(x)) + ' '; };
  return "states " + number(c.num_states) + "shape " + number(c.batch) + number(c.seqlen) +
         number(c.num_heads) + number(c.head_dim_v) + "ragged " + number(c.is_ragged) +
         dtype_name(c.dtype) + ' ' + dtype_name(c.out_dtype) + " transposed " +
         number(c.is_transposed) + number(c.is_result_transposed) + "gap " + number(c.gap) +
         "in place " + number(c.in_place) + "seed " + number(c.seed);
}

// Random states; a fifth of them saw no key, and every element of their out is NaN.
class MergeCall {
 public:
  explicit MergeCall(const MergeCase& c) : c_(c) {
    Random random(c.seed);
    for (int i = 0; i < c.num_states; ++i) {
      outs_.push_back(out_tensor(c.dtype, c.is_transposed));
      lses_.push_back(lse_tensor(c.is_transposed));
      Doubles lses(num_rows()), out(num_rows() * dim());
      for (double& lse : lses)
        lse = random.chance(20) ? kNoKeys : static_cast<float>(random.normal() * c.lse_size);
      for (std::size_t j = 0; j < out.size(); ++j)
        out[j] = lses[lse_idx(j / dim())] == kNoKeys ? NAN : random.normal();
      set_state(i, out, lses);
    }
    if (c.in_place >= 0) return;
    out_ = out_tensor(c.out_dtype, c.is_result_transposed);
    lse_ = lse_tensor(c.is_result_transposed);
  }

  // Row-major, [.., seqlen, num_heads, head_dim_v] and [.., num_heads, seqlen].
  void set_state(int i, const Doubles& out, const Doubles& lse) {
    outs_[static_cast<std::size_t>(i)]->set(out);
    lses_[static_cast<std::size_t>(i)]->set(lse);
  }
  Tensor& out() { return out_ ? *out_ : *outs_[static_cast<std::size_t>(c_.in_place)]; }
  Tensor& lse() { return lse_ ? *lse_ : *lses_[static_cast<std::size_t>(c_.in_place)]; }
  std::vector<Tensor*> memory() {
    std::vector<Tensor*> all;
    for (auto* list : {&outs_, &lses_})
      for (auto& tensor : *list) all.push_back(tensor.get());
    if (out_) all.insert(all.end(), {out_.get(), lse_.get()});
    return all;
  }

  // The views; they are those of the call that `tensors` refers to.
  struct Views {
    std::vector<headrace_tensor> outs, lses;
    headrace_merge_states_tensors tensors{};
  };
  Views views() {
    Views v;
    for (auto& x : outs_) v.outs.push_back(x->view());
    for (auto& x : lses_) v.lses.push_back(x->view());
    v.tensors = {.struct_size = sizeof v.tensors,
                 .num_states = c_.num_states,
                 .outs = v.outs.data(),
                 .lses = v.lses.data(),
                 .out = out().view(),
                 .lse = c_.has_lse ? lse().view() : TensorView()};
    return v;
  }

  // In double, with the error of a merge in f32. u = 2^-24, n states, M the largest |out| of a
  // column. Pairwise: a step rounds a share, a product and a sum (3 u M), and the sum of the
  // weights (u / 4 of each share). All at once: a weight has u times its distance to the largest
  // lse (at most 0.37 u of the whole for each state) and 4 u of the exponential, their sum n u, the
  // quotient u, n products u M.
  struct Expected {
    Doubles out, out_error, lse, lse_error;
  };
  Expected expected() const {
    constexpr double kU = 0x1p-24;
    const auto n = static_cast<double>(c_.num_states);
    Expected want{Doubles(num_rows() * dim()), Doubles(num_rows() * dim()), Doubles(num_rows()),
                  Doubles(num_rows())};
    std::vector<Doubles> outs, lses;
    for (const auto& x : outs_) outs.push_back(x->values());
    for (const auto& x : lses_) lses.push_back(x->values());
    for (std::size_t row = 0; row < num_rows(); ++row) {
      const std::size_t at = lse_idx(row);
      double top = kNoKeys, sum = 0;
      for (const Doubles& lse : lses) top = std::max(top, lse[at]);
      for (const Doubles& lse : lses)
        if (lse[at] != kNoKeys) sum += std::exp(lse[at] - top);
      want.lse[at] = sum == 0 ? kNoKeys : top + std::log(sum);
      want.lse_error[at] = sum == 0 ? 0 : (2 * n + 14) * kU + kU * std::abs(want.lse[at]);
      for (std::size_t d = row * dim(); d < (row + 1) * dim(); ++d) {
        double largest = 0;
        for (std::size_t i = 0; i < outs.size(); ++i) {
          if (lses[i][at] == kNoKeys) continue;
          want.out[d] += std::exp(lses[i][at] - top) / sum * outs[i][d];
          largest = std::max(largest, std::abs(outs[i][d]));
        }
        const double error = ((4 * n + 5) * kU + n * 0x1p-126) * largest;
        want.out_error[d] = error + rounding_of(c_.out_dtype, std::abs(want.out[d]) + error);
      }
    }
    return want;
  }
  void expect_merged(const Expected& want) {
    const Doubles got = out().values(), got_lse = lse().values();
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want.out[i], want.out_error[i]) << text_of(c_) << " element " << i;
    for (std::size_t i = 0; c_.has_lse && i < got_lse.size(); ++i) {
      if (want.lse[i] == kNoKeys) {
        ASSERT_EQ(got_lse[i], kNoKeys) << text_of(c_) << " row " << i;
      } else {
        ASSERT_NEAR(got_lse[i], want.lse[i], want.lse_error[i]) << text_of(c_) << " row " << i;
      }
    }
    for (const Tensor* x : memory()) EXPECT_TRUE(x->has_kept_gaps()) << text_of(c_);
  }

 private:
  std::size_t num_rows() const {
    return static_cast<std::size_t>((c_.is_ragged ? 1 : c_.batch) * c_.seqlen * c_.num_heads);
  }
  std::size_t dim() const { return static_cast<std::size_t>(c_.head_dim_v); }
  // Of row (batch, seq, head) of an out.
  std::size_t lse_idx(std::size_t row) const {
    const auto heads = static_cast<std::size_t>(c_.num_heads);
    const auto seqlen = static_cast<std::size_t>(c_.seqlen);
    const std::size_t head = row % heads, seq = row / heads % seqlen;
    return (row / heads / seqlen * heads + head) * seqlen + seq;
  }
  std::unique_ptr<Tensor> out_tensor(DType dtype, bool is_transposed) const {
    if (c_.is_ragged)
      return std::make_unique<Tensor>(
          dtype, Shape{c_.seqlen, c_.num_heads, c_.head_dim_v},
          is_transposed ? std::vector<int>{1, 0, 2} : std::vector<int>{0, 1, 2}, c_.gap);
    return std::make_unique<Tensor>(
        dtype, Shape{c_.batch, c_.seqlen, c_.num_heads, c_.head_dim_v},
        is_transposed ? std::vector<int>{0, 2, 1, 3} : std::vector<int>{0, 1, 2, 3}, c_.gap);
  }
  std::unique_ptr<Tensor> lse_tensor(bool is_transposed) const {
    if (c_.is_ragged)
      return std::make_unique<Tensor>(
          DType::f32, Shape{c_.num_heads, c_.seqlen},
          is_transposed ? std::vector<int>{1, 0} : std::vector<int>{0, 1}, c_.gap);
    return std::make_unique<Tensor>(
        DType::f32, Shape{c_.batch, c_.num_heads, c_.seqlen},
        is_transposed ? std::vector<int>{0, 2, 1} : std::vector<int>{0, 1, 2}, c_.gap);
  }

  MergeCase c_;
  std::vector<std::unique_ptr<Tensor>> outs_, lses_;
  std::unique_ptr<Tensor> out_, lse_;
};

// Calls body(case) for every pair of dtypes and number of states, with random shapes and layouts.
template <class Body>
void for_merge_cases(Body body) {
  constexpr DType kDtypes[] = {DType::f32, DType::f16, DType::bf16};
  constexpr std::int64_t kDims[] = {1, 7, 16, 33, 64, 128, 130, 576};
  Random random(7);
  for (const DType dtype : kDtypes)
    for (const DType out_dtype : kDtypes)
      for (const int num_states : {1, 2, 3, 5, 8, 33, kMaxStates}) {
        MergeCase c;
        c.num_states = num_states;
        c.is_ragged = random.chance(40);
        c.batch = random.between(1, 3);
        c.seqlen = random.between(1, 5);
        c.num_heads = random.between(1, 4);
        c.head_dim_v = random.pick(kDims);
        c.dtype = dtype;
        c.out_dtype = out_dtype;
        c.is_transposed = random.chance(50);
        c.is_result_transposed = random.chance(50);
        c.gap = random.pick({std::int64_t{0}, std::int64_t{3}});
        if (dtype == out_dtype && random.chance(40))
          c.in_place = static_cast<int>(random.between(0, num_states - 1));
        c.has_lse = random.chance(80);
        c.lse_size = random.pick({0.1, 3.0, 100.0});
        c.seed = random.next() % 1000000;
        body(c);
        if (::testing::Test::HasFatalFailure()) return;
      }
}

}  // namespace headrace::testing
