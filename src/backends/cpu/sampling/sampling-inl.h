// The passes over logits, compiled for every instruction set (Vec); all give the same bits.
#pragma once

#include <algorithm>
#include <limits>

#include "backends/cpu/sampling/sampling.h"
#include "backends/cpu/simd/exp-inl.h"

namespace headrace::cpu {

template <class Vec>
struct SamplingKernels {
  using F = typename Vec::F;
  static constexpr int kWidth = Vec::kWidth;
  static constexpr int kSumLanes = 16;

  static bool block_maxima(const BlockMaximaArgs& args) {
    const int64_t n = args.num_logits;
    const F infinity = Vec::set1(std::numeric_limits<float>::infinity());
    const F one = Vec::set1(1.0f), zero = Vec::zero();
    F wrong = zero;
    for (int64_t block = 0; block * kLogitBlock < n; ++block) {
      const float* p = args.logits + block * kLogitBlock;
      const int64_t rest = std::min(kLogitBlock, n - block * kLogitBlock);
      F max = Vec::set1(-std::numeric_limits<float>::infinity());
      int64_t i = 0;
      for (; i + kWidth <= rest; i += kWidth) {
        const F y = Vec::load(p + i);
        max = Vec::max(y, max);
        wrong = Vec::max(wrong, Vec::select_less(y, infinity, zero, one));
      }
      float block_max = Vec::max_lane(max);
      for (; i < rest; ++i) {
        block_max = p[i] > block_max ? p[i] : block_max;
        const F y = Vec::set1(p[i]);
        wrong = Vec::max(wrong, Vec::select_less(y, infinity, zero, one));
      }
      args.maxima[block] = block_max;
    }
    return Vec::max_lane(wrong) == 0.0f;
  }

  static double sum(const float* x, int64_t n) {
    double lanes[kSumLanes] = {};
    int64_t i = 0;
    for (; i + kSumLanes <= n; i += kSumLanes)
      for (int lane = 0; lane < kSumLanes; ++lane) lanes[lane] += mass_of(x[i + lane]);
    for (int lane = 0; i < n; ++lane, ++i) lanes[lane] += mass_of(x[i]);
    for (int half = kSumLanes / 2; half > 0; half /= 2)
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    return lanes[0];
  }

  template <int kN>
  static void weights(const float* x, F max, F temperature, float* out) {
    F y[kN];
    for (int v = 0; v < kN; ++v)
      y[v] = Vec::div(Vec::sub(Vec::load(x + v * kWidth), max), temperature);
    exp_softmax<Vec, 0>(y);
    for (int v = 0; v < kN; ++v) Vec::store(out + v * kWidth, y[v]);
  }

  static double exp_weights(const ExpWeightsArgs& args) {
    const float* x = args.logits;
    float* out = args.weights;
    const int64_t n = args.num_logits;
    const F m = Vec::set1(args.max), t = Vec::set1(args.temperature);
    constexpr int kUnroll = 4;
    int64_t i = 0;
    for (; i + kUnroll * kWidth <= n; i += kUnroll * kWidth) weights<kUnroll>(x + i, m, t, out + i);
    for (; i + kWidth <= n; i += kWidth) weights<1>(x + i, m, t, out + i);
    if (i < n) {
      const int rest = static_cast<int>(n - i);
      const F y = Vec::div(Vec::sub(Vec::load_partial(x + i, rest), m), t);
      // Lanes past the end hold (0 - max) / temperature: clamp them to the valid range of
      // exp_softmax.
      Vec::store_partial(out + i, exp_softmax<Vec>(Vec::min(Vec::zero(), y)), rest);
    }
    double total = 0;
    for (int64_t block = 0; block * kWeightBlock < n; ++block) {
      const int64_t first = block * kWeightBlock;
      args.block_sums[block] = sum(out + first, std::min(kWeightBlock, n - first));
      total += args.block_sums[block];
    }
    return total;
  }

  static constexpr SamplingOps make(const char* name, uint32_t cpu_isa) {
    return {name, cpu_isa, block_maxima, exp_weights};
  }
};

}  // namespace headrace::cpu
