// Softmax of rows, compiled for every instruction set (Vec). Sums run over 32 lanes in blocks,
// blocks are summed in double, and products are not fused with sums: every instruction set and
// layout gives the same bits.
//
// online: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, algorithm 3,
// in blocks: after the maximum of a block, its exponentials read the L1 cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/simd/exp-inl.h"
#include "backends/cpu/softmax/softmax.h"
#include "backends/cpu/softmax/softmax_rows-inl.h"

namespace headrace::cpu {

template <class Vec>
struct SoftmaxKernels {
  using F = typename Vec::F;
  using Layout = SoftmaxRows<Vec>;  // layout of rows
  static constexpr int kWidth = Vec::kWidth;
  static constexpr int kLanes = 32;
  static constexpr int kVecs = kLanes / kWidth;
  // A float sums kBlock / kLanes terms, then kLanes such sums: 13 roundings.
  static constexpr int64_t kBlock = 256;
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();

  // The maximum of scale * x and the sum of exp(scale * x - maximum).
  struct RowStats {
    float max = -kInfinity;
    double sum = 0;
    // The subtracted maximum; 0 for a row of only -inf, which gives zeros and propagates NaN.
    float max_or_zero() const { return max == -kInfinity ? 0.0f : max; }
    float inverse() const { return sum == 0 ? 0.0f : static_cast<float>(1.0 / sum); }
    float lse() const { return static_cast<float>(static_cast<double>(max) + std::log(sum)); }
  };

  // scale * x of up to kLanes elements, padded with -inf, which changes neither a maximum nor a sum
  // of exponentials.
  template <class E>
  static void load_scaled(const E* x, int64_t n, F scale, F (&s)[kVecs]) {
    if (n >= kLanes) {
      for (int v = 0; v < kVecs; ++v) s[v] = Vec::mul(Vec::load(x + v * kWidth), scale);
      return;
    }
    float buffer[kLanes] = {};
    for (int i = 0; i < n; ++i) buffer[i] = to_float(x[i]);
    for (int v = 0; v < kVecs; ++v)
      Vec::store(buffer + v * kWidth, Vec::mul(Vec::load(buffer + v * kWidth), scale));
    for (int64_t i = n; i < kLanes; ++i) buffer[i] = -kInfinity;
    for (int v = 0; v < kVecs; ++v) s[v] = Vec::load(buffer + v * kWidth);
  }

  template <class E>
  static void load_or_zero(const E* x, int64_t n, F (&s)[kVecs]) {
    for (int v = 0; v < kVecs; ++v, n -= kWidth) {
      if (n >= kWidth) {
        s[v] = Vec::load(x + v * kWidth);
      } else {
        s[v] = n > 0 ? Vec::load_partial(x + v * kWidth, static_cast<int>(n)) : Vec::zero();
      }
    }
  }

  template <class E>
  static void store(E* y, int64_t n, const F (&s)[kVecs]) {
    for (int v = 0; v < kVecs && n > 0; ++v, n -= kWidth) {
      if (n >= kWidth) {
        Vec::store(y + v * kWidth, s[v]);
      } else {
        Vec::store_partial(y + v * kWidth, s[v], static_cast<int>(n));
      }
    }
  }

  static float sum_of_lanes(F (&sums)[kVecs]) {
    for (int half = kVecs / 2; half > 0; half /= 2)
      for (int v = 0; v < half; ++v) sums[v] = Vec::add(sums[v], sums[v + half]);
    return Vec::sum(sums[0]);
  }

  // The maximum of `max` and all scale * x; ignores NaN, which the sum propagates.
  template <class E>
  static float max_of(const E* x, int64_t n, F scale, float max) {
    F largest[kVecs], s[kVecs];
    for (int v = 0; v < kVecs; ++v) largest[v] = Vec::set1(max);
    for (int64_t i = 0; i < n; i += kLanes) {
      load_scaled(x + i, n - i, scale, s);
      for (int v = 0; v < kVecs; ++v) largest[v] = Vec::max(s[v], largest[v]);
    }
    for (int v = 1; v < kVecs; ++v) largest[0] = Vec::max(largest[0], largest[v]);
    return Vec::max_lane(largest[0]);
  }

  // The sum of exp(scale * x - max) over one block. Writes the terms to `exps` unless it is null.
  template <class E>
  static float sum_of_block(const E* x, int64_t n, F scale, F max, float* exps) {
    F sums[kVecs], s[kVecs];
    for (int v = 0; v < kVecs; ++v) sums[v] = Vec::zero();
    for (int64_t i = 0; i < n; i += kLanes) {
      load_scaled(x + i, n - i, scale, s);
      for (int v = 0; v < kVecs; ++v) s[v] = Vec::sub(s[v], max);
      exp_softmax<Vec, 0>(s);
      for (int v = 0; v < kVecs; ++v) sums[v] = Vec::add(sums[v], s[v]);
      if (exps != nullptr)
        for (int v = 0; v < kVecs; ++v) Vec::store(exps + i + v * kWidth, s[v]);
    }
    return sum_of_lanes(sums);
  }

  template <class E>
  static void add_sum(const E* x, int64_t n, F scale, float* exps, RowStats& row) {
    const F max = Vec::set1(row.max_or_zero());
    for (int64_t i = 0; i < n; i += kBlock)
      row.sum += static_cast<double>(sum_of_block(x + i, std::min(kBlock, n - i), scale, max,
                                                  exps == nullptr ? nullptr : exps + i));
  }

  template <class E>
  static void add_online(const E* x, int64_t n, F scale, RowStats& row) {
    for (int64_t i = 0; i < n; i += kBlock) {
      const int64_t rest = std::min(kBlock, n - i);
      const float max = max_of(x + i, rest, scale, row.max);
      if (max > row.max) {
        row.sum *= std::exp(static_cast<double>(row.max) - static_cast<double>(max));
        row.max = max;
      }
      row.sum += static_cast<double>(
          sum_of_block(x + i, rest, scale, Vec::set1(row.max_or_zero()), nullptr));
    }
  }

  template <class E>
  static void write_probs(const E* x, int64_t n, F scale, const RowStats& row, E* y) {
    const F max = Vec::set1(row.max_or_zero()), inverse = Vec::set1(row.inverse());
    F s[kVecs];
    for (int64_t i = 0; i < n; i += kLanes) {
      load_scaled(x + i, n - i, scale, s);
      for (int v = 0; v < kVecs; ++v) s[v] = Vec::sub(s[v], max);
      exp_softmax<Vec, 0>(s);
      for (int v = 0; v < kVecs; ++v) s[v] = Vec::mul(s[v], inverse);
      store(y + i, n - i, s);
    }
  }

  // safe, for a row whose exponentials fit the cache: computes each once.
  template <class E>
  static void cached_row(const E* x, int64_t n, F scale, E* y, RowStats& row) {
    alignas(64) float exps[kMaxCachedRow];
    row.max = max_of(x, n, scale, row.max);
    add_sum(x, n, scale, exps, row);
    const F inverse = Vec::set1(row.inverse());
    F s[kVecs];
    for (int64_t i = 0; i < n; i += kLanes) {
      for (int v = 0; v < kVecs; ++v) s[v] = Vec::mul(Vec::load(exps + i + v * kWidth), inverse);
      store(y + i, n - i, s);
    }
  }

  template <class Rows>
  static void forward_of(const SoftmaxForwardArgs& args, Rows& rows, RowStats* row) {
    const F scale = Vec::set1(args.scale);
    if (algorithm_of(args) == SoftmaxAlgorithm::safe) {
      rows.read(
          [&](int r, const auto* x, int64_t n) { row[r].max = max_of(x, n, scale, row[r].max); });
      rows.read([&](int r, const auto* x, int64_t n) { add_sum(x, n, scale, nullptr, row[r]); });
    } else {
      rows.read([&](int r, const auto* x, int64_t n) { add_online(x, n, scale, row[r]); });
    }
    rows.write(
        [&](int r, const auto* x, auto* y, int64_t n) { write_probs(x, n, scale, row[r], y); });
  }

  template <class E>
  static void forward_as(const SoftmaxForwardArgs& args, RowRange range) {
    const bool is_contiguous = args.x.stride == 1 && args.y.stride == 1;
    const bool is_cached = args.rows.length <= kMaxCachedRow;
    for (int64_t first = range.first; first < range.last;) {
      const auto place = Layout::place_of(args.rows, first);
      const int count = is_contiguous ? 1
                                      : static_cast<int>(std::min<int64_t>(
                                            kPanelRows, std::min(place.rest, range.last - first)));
      RowStats row[kPanelRows];
      const E* x = Layout::template data_of<const E>(args.x, place);
      E* y = Layout::template data_of<E>(args.y, place);
      if (!is_contiguous) {
        typename Layout::template PanelRows<E> rows(args.rows, args.x, args.y, x, y, count);
        forward_of(args, rows, row);
      } else if (is_cached && algorithm_of(args) == SoftmaxAlgorithm::safe) {
        cached_row(x, args.rows.length, Vec::set1(args.scale), y, row[0]);
      } else {
        typename Layout::template DirectRow<E> rows{x, y, args.rows.length};
        forward_of(args, rows, row);
      }
      if (args.lse.data != nullptr) {
        auto* lse = Layout::template data_of<float>(args.lse, place);
        for (int r = 0; r < count; ++r)
          lse[r * Layout::last_stride(args.rows, args.lse)] = row[r].lse();
      }
      first += count;
    }
  }

  static void forward(const SoftmaxForwardArgs& args, RowRange range) {
    switch (args.dtype) {
      case DType::f16:
        return forward_as<F16>(args, range);
      case DType::bf16:
        return forward_as<Bf16>(args, range);
      default:
        return forward_as<float>(args, range);
    }
  }

  // ---- backward ----

  template <class E>
  static void add_products(const E* y, const E* dy, int64_t n, double& sum) {
    F sums[kVecs], a[kVecs], b[kVecs];
    for (int64_t block = 0; block < n; block += kBlock) {
      const int64_t end = std::min(block + kBlock, n);
      for (int v = 0; v < kVecs; ++v) sums[v] = Vec::zero();
      for (int64_t i = block; i < end; i += kLanes) {
        load_or_zero(y + i, end - i, a);
        load_or_zero(dy + i, end - i, b);
        for (int v = 0; v < kVecs; ++v) sums[v] = Vec::add(sums[v], Vec::mul(a[v], b[v]));
      }
      sum += static_cast<double>(sum_of_lanes(sums));
    }
  }

  template <class E>
  static void gradients(const E* y, const E* dy, int64_t n, F scale, double sum, E* dx) {
    const F delta = Vec::set1(static_cast<float>(sum));
    F a[kVecs], b[kVecs];
    for (int64_t i = 0; i < n; i += kLanes) {
      load_or_zero(y + i, n - i, a);
      load_or_zero(dy + i, n - i, b);
      for (int v = 0; v < kVecs; ++v) a[v] = Vec::mul(scale, Vec::mul(a[v], Vec::sub(b[v], delta)));
      store(dx + i, n - i, a);
    }
  }

  template <class E>
  static void backward_as(const SoftmaxBackwardArgs& args, RowRange range) {
    const bool is_contiguous = args.y.stride == 1 && args.dy.stride == 1 && args.dx.stride == 1;
    const F scale = Vec::set1(args.scale);
    const int64_t length = args.rows.length;
    for (int64_t first = range.first; first < range.last;) {
      const auto place = Layout::place_of(args.rows, first);
      const E *y = Layout::template data_of<const E>(args.y, place),
              *dy = Layout::template data_of<const E>(args.dy, place);
      E* dx = Layout::template data_of<E>(args.dx, place);
      if (is_contiguous) {
        double sum = 0;
        add_products(y, dy, length, sum);
        gradients(y, dy, length, scale, sum, dx);
        ++first;
        continue;
      }
      const int count =
          static_cast<int>(std::min<int64_t>(kPanelRows, std::min(place.rest, range.last - first)));
      double sums[kPanelRows] = {};
      typename Layout::template Panel<E> panel_y, panel_dy;
      for (int64_t i = 0; i < length; i += Layout::kPanelLength) {
        const int64_t n = std::min<int64_t>(Layout::kPanelLength, length - i);
        panel_y.gather(y, args.rows, args.y, i, n, count);
        panel_dy.gather(dy, args.rows, args.dy, i, n, count);
        for (int r = 0; r < count; ++r) add_products(panel_y.row(r), panel_dy.row(r), n, sums[r]);
      }
      for (int64_t i = 0; i < length; i += Layout::kPanelLength) {
        const int64_t n = std::min<int64_t>(Layout::kPanelLength, length - i);
        panel_y.gather(y, args.rows, args.y, i, n, count);
        panel_dy.gather(dy, args.rows, args.dy, i, n, count);
        for (int r = 0; r < count; ++r)
          gradients(panel_y.row(r), panel_dy.row(r), n, scale, sums[r], panel_y.row(r));
        panel_y.scatter(dx, args.rows, args.dx, i, n, count);
      }
      first += count;
    }
  }

  static void backward(const SoftmaxBackwardArgs& args, RowRange range) {
    switch (args.dtype) {
      case DType::f16:
        return backward_as<F16>(args, range);
      case DType::bf16:
        return backward_as<Bf16>(args, range);
      default:
        return backward_as<float>(args, range);
    }
  }

  static constexpr SoftmaxOps make(const char* name, uint32_t cpu_isa) {
    return {name, cpu_isa, forward, backward};
  }
};

}  // namespace headrace::cpu
