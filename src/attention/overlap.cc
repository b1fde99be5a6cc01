#include "attention/overlap.h"

#include <algorithm>

namespace headrace {
namespace {

// Overlap of views a and b is a bounded linear Diophantine equation. Element x of a lies at
// a0 + sum(strides_a * x), so a and b overlap if sum(stride_i * t_i) == distance for some t_i in
// [low_i, high_i]: one term per axis, with axes of equal stride merged (their index differences
// add). With terms sorted by descending stride, the range that the smaller strides can still cover
// leaves very few candidates for each t_i: one or two in any view of a contiguous buffer.
struct Term {
  std::int64_t stride;     // bytes, positive
  std::int64_t low, high;  // bounds of the coefficient
};

// Far above what real layouts need (tens of steps); bounds the time to microseconds.
constexpr int kMaxSteps = 4096;
constexpr int kMaxTerms = 2 * HEADRACE_MAX_RANK + 1;

__int128_t floor_div(__int128_t a, std::int64_t b) {
  const __int128_t quotient = a / b;
  return a % b != 0 && a < 0 ? quotient - 1 : quotient;
}

class Equation {
 public:
  void add(std::int64_t stride, std::int64_t low, std::int64_t high) {
    if (low == 0 && high == 0) return;
    if (stride < 0) {
      stride = -stride;
      std::swap(low, high);
      low = -low;
      high = -high;
    }
    for (int i = 0; i < num_terms_; ++i) {
      if (!merges_ || terms_[i].stride != stride) continue;
      terms_[i].low += low;
      terms_[i].high += high;
      return;
    }
    terms_[num_terms_++] = {stride, low, high};
  }

  // For overlap within one view: only a nonzero solution counts, and axes of equal stride must not
  // be merged, because a step along one and back along the other is such a solution.
  void keep_axes_apart() { merges_ = false; }

  Overlap solve(__int128_t distance) {
    std::sort(terms_, terms_ + num_terms_,
              [](const Term& a, const Term& b) { return a.stride > b.stride; });
    reach_low_[num_terms_] = reach_high_[num_terms_] = 0;
    for (int i = num_terms_ - 1; i >= 0; --i) {
      const __int128_t stride = terms_[i].stride;
      reach_low_[i] = reach_low_[i + 1] + stride * terms_[i].low;
      reach_high_[i] = reach_high_[i + 1] + stride * terms_[i].high;
    }
    steps_ = 0;
    return search(0, distance, false);
  }

 private:
  Overlap search(int i, __int128_t rest, bool moved) {
    if (++steps_ > kMaxSteps) return Overlap::undecided;
    if (rest < reach_low_[i] || rest > reach_high_[i]) return Overlap::none;
    if (i == num_terms_) return moved || merges_ ? Overlap::certain : Overlap::none;
    const Term& term = terms_[i];
    if (term.stride == 0) {  // sorted last: any nonzero coefficient is a solution
      return rest == 0 ? Overlap::certain : Overlap::none;
    }
    // rest - stride * t must stay within the reach of the smaller strides.
    const __int128_t first =
        std::max<__int128_t>(term.low, -floor_div(reach_high_[i + 1] - rest, term.stride));
    const __int128_t last =
        std::min<__int128_t>(term.high, floor_div(rest - reach_low_[i + 1], term.stride));
    for (__int128_t t = first; t <= last; ++t) {
      const Overlap found = search(i + 1, rest - term.stride * t, moved || t != 0);
      if (found != Overlap::none) return found;
    }
    return Overlap::none;
  }

  Term terms_[kMaxTerms] = {};
  __int128_t reach_low_[kMaxTerms + 1] = {}, reach_high_[kMaxTerms + 1] = {};
  int num_terms_ = 0;
  int steps_ = 0;
  bool merges_ = true;
};

std::int64_t element_bytes(const headrace_tensor& tensor) {
  return static_cast<std::int64_t>(dtype_bytes(static_cast<DType>(tensor.dtype)));
}

bool is_empty(const headrace_tensor& tensor) {
  return std::any_of(tensor.shape, tensor.shape + tensor.rank,
                     [](std::int64_t size) { return size == 0; });
}

// Each axis steps over all that the axes behind it reach: any view of a contiguous buffer whose
// axes are in memory order. False says nothing.
bool is_nested(const headrace_tensor& tensor) {
  std::int64_t reach = 0;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    if (tensor.shape[i] <= 1) continue;
    if (tensor.strides[i] <= reach) return false;
    reach += (tensor.shape[i] - 1) * tensor.strides[i];
  }
  return true;
}

}  // namespace

AddressRange address_range(const headrace_tensor& tensor) {
  const auto data = reinterpret_cast<std::uintptr_t>(tensor.data);
  if (is_empty(tensor)) return {data, data};
  std::int64_t low = 0;
  std::int64_t high = 1;
  for (int i = 0; i < tensor.rank; ++i) {
    const std::int64_t reach = (tensor.shape[i] - 1) * tensor.strides[i];
    (reach < 0 ? low : high) += reach;
  }
  const std::int64_t bytes = element_bytes(tensor);
  return {data + static_cast<std::uintptr_t>(low * bytes),
          data + static_cast<std::uintptr_t>(high * bytes)};
}

Overlap overlap_between(const headrace_tensor& a, const AddressRange& range_a,
                        const headrace_tensor& b, const AddressRange& range_b) {
  if (range_a.begin == range_a.end || range_b.begin == range_b.end) return Overlap::none;
  if (range_a.end <= range_b.begin || range_b.end <= range_a.begin) return Overlap::none;
  const std::int64_t bytes_a = element_bytes(a);
  const std::int64_t bytes_b = element_bytes(b);
  Equation equation;
  for (int i = 0; i < a.rank; ++i) equation.add(a.strides[i] * bytes_a, 0, a.shape[i] - 1);
  for (int i = 0; i < b.rank; ++i) equation.add(b.strides[i] * bytes_b, -(b.shape[i] - 1), 0);
  equation.add(1, -(bytes_b - 1), bytes_a - 1);  // the bytes within an element
  return equation.solve(static_cast<__int128_t>(reinterpret_cast<std::uintptr_t>(b.data)) -
                        static_cast<__int128_t>(reinterpret_cast<std::uintptr_t>(a.data)));
}

Overlap overlap_within(const headrace_tensor& tensor) {
  if (is_empty(tensor) || is_nested(tensor)) return Overlap::none;
  Equation equation;
  equation.keep_axes_apart();
  for (int i = 0; i < tensor.rank; ++i)
    equation.add(tensor.strides[i], -(tensor.shape[i] - 1), tensor.shape[i] - 1);
  return equation.solve(0);
}

}  // namespace headrace
