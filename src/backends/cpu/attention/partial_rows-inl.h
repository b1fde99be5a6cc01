// Partial results of rows over disjoint keys, and how they merge.
#pragma once

#include <stdint.h>

#include <algorithm>
#include <cmath>

namespace headrace::cpu {

// A row over some of its keys: softmax(s) V normalized by these keys alone, their largest score and
// the sum of exp(s - maximum). Sum 0: no key, and `o` is undefined.
struct Partial {
  const float* o;  // whole vectors
  float factor;    // of o
  float maximum, sum;
};

// Partial results of rows in memory: O [o_stride], the maximum, the sum.
template <class Vec>
struct PartialRows {
  float* first;
  int64_t row_floats, o_stride;

  Partial operator[](int64_t r) const {
    const float* row = first + r * row_floats;
    return {row, 1.0f, row[o_stride], row[o_stride + 1]};
  }
  void clear(int64_t r) const { first[r * row_floats + o_stride + 1] = 0.0f; }

  // Merges later keys into row r, each side weighted by its fraction of the sum (FlashAttention-2,
  // section 3.1, on normalized partial results). An empty side changes no bit.
  void merge(int64_t r, const Partial& later) const {
    if (later.sum == 0.0f) return;
    const Partial before = (*this)[r];
    if (before.sum == 0.0f) return set(r, later);
    const float top = std::max(before.maximum, later.maximum);
    const auto weight = [top](const Partial& x) {
      return x.sum * (x.maximum == top ? 1.0 : std::exp(static_cast<double>(x.maximum) - top));
    };
    const double kept = weight(before), added = weight(later);
    const double total = kept + added;
    const auto factor = Vec::set1(later.factor);
    const auto old_share = Vec::set1(static_cast<float>(kept / total));
    const auto share = Vec::set1(static_cast<float>(added / total));
    float* row = first + r * row_floats;
    for (int64_t c = 0; c < o_stride; c += Vec::kWidth) {
      const auto x = Vec::mul(Vec::load(later.o + c), factor);
      Vec::store(row + c, Vec::fma(x, share, Vec::mul(Vec::load(row + c), old_share)));
    }
    row[o_stride] = top;
    row[o_stride + 1] = static_cast<float>(total);
  }

 private:
  // Row r, which is empty, becomes x.
  void set(int64_t r, const Partial& x) const {
    float* row = first + r * row_floats;
    const auto factor = Vec::set1(x.factor);
    // Adding +0 turns -0 into +0, as merging does.
    for (int64_t c = 0; c < o_stride; c += Vec::kWidth)
      Vec::store(row + c, Vec::add(Vec::mul(Vec::load(x.o + c), factor), Vec::zero()));
    row[o_stride] = x.maximum;
    row[o_stride + 1] = x.sum;
  }
};

}  // namespace headrace::cpu
