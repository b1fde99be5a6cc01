// Panels of 8 rows in plain loops, for any machine; also documents the operations of an instruction
// set.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "backends/cpu/gemm/layout.h"
#include "backends/cpu/simd/element.h"

namespace headrace::cpu::gemm::scalar {

// One float per row.
struct Lanes {
  static constexpr int kWidth = 8;
  struct F {
    float v[kWidth];
  };

  template <class T>
  static F load(const T* p) {
    return load_partial(p, kWidth);
  }
  template <class T>
  static F load_partial(const T* p, int n) {
    F x{};
    for (int i = 0; i < n; ++i) x.v[i] = to_float(p[i]);
    return x;
  }
  static void store(float* p, const F& x) { std::memcpy(p, x.v, sizeof x.v); }
  static void store_partial(float* p, const F& x, int n) {
    std::memcpy(p, x.v, static_cast<std::size_t>(n) * sizeof(float));
  }
  static F zero() { return F{}; }
  static F set1(float a) {
    F x;
    for (float& v : x.v) v = a;
    return x;
  }
  static F add(const F& a, const F& b) {
    F x;
    for (int i = 0; i < kWidth; ++i) x.v[i] = a.v[i] + b.v[i];
    return x;
  }
  static F sub(const F& a, const F& b) {
    F x;
    for (int i = 0; i < kWidth; ++i) x.v[i] = a.v[i] - b.v[i];
    return x;
  }
  static F mul(const F& a, const F& b) {
    F x;
    for (int i = 0; i < kWidth; ++i) x.v[i] = a.v[i] * b.v[i];
    return x;
  }
};

struct Isa {
  using Vec = Lanes;
  static constexpr int kRows = Lanes::kWidth;
  struct Bytes {  // [row][column of a quad]
    std::uint8_t v[kRows * 4];
  };
  struct Ints {
    std::int32_t v[kRows];
  };

  static Bytes load_bytes(const std::uint8_t* p) {
    Bytes x;
    std::memcpy(x.v, p, sizeof x.v);
    return x;
  }
  static void store_bytes(std::uint8_t* p, const Bytes& x) { std::memcpy(p, x.v, sizeof x.v); }
  // 8-bit elements in the form for dot() and dots().
  static Bytes signed_bytes(const Bytes& a) { return a; }
  static Bytes low_nibbles(const Bytes& a) {
    Bytes x;
    for (int i = 0; i < kRows * 4; ++i) x.v[i] = a.v[i] & 15;
    return x;
  }
  static Bytes high_nibbles(const Bytes& a) {
    Bytes x;
    for (int i = 0; i < kRows * 4; ++i) x.v[i] = a.v[i] >> 4;
    return x;
  }
  // elements | (bits & mask) << shift, per byte; a negative shift is a right shift. The mask keeps
  // the bits within their byte.
  static Bytes with_high_bits(const Bytes& elements, const Bytes& bits, int mask, int shift) {
    Bytes x;
    for (int i = 0; i < kRows * 4; ++i) {
      const int kept = bits.v[i] & mask;
      x.v[i] =
          static_cast<std::uint8_t>(elements.v[i] | (shift >= 0 ? kept << shift : kept >> -shift));
    }
    return x;
  }
  static Lanes::F bytes_as_floats(const std::uint8_t* p) {
    Lanes::F x;
    for (int i = 0; i < kRows; ++i) x.v[i] = static_cast<float>(p[i]);
    return x;
  }
  static Lanes::F to_floats(const Ints& a) {
    Lanes::F x;
    for (int i = 0; i < kRows; ++i) x.v[i] = static_cast<float>(a.v[i]);
    return x;
  }
  // Not fused: without FMA hardware a fused multiply-add is a library call.
  static Lanes::F madd(const Lanes::F& a, const Lanes::F& b, const Lanes::F& c) {
    Lanes::F x;
    for (int i = 0; i < kRows; ++i) x.v[i] = a.v[i] * b.v[i] + c.v[i];
    return x;
  }

  // sum over the columns of quads [first, last) of element * x, for each row. kBits = 8: elements
  // are signed.
  template <int kBits>
  static Ints dot_quads(const Bytes* w, const std::int8_t* x, int first, int last) {
    Ints sum{};
    for (int q = first; q < last; ++q)
      for (int row = 0; row < kRows; ++row)
        for (int j = 0; j < 4; ++j) {
          const int element = w[q].v[row * 4 + j];
          const int value = kBits == 8 ? static_cast<std::int8_t>(element) : element;
          sum.v[row] += value * x[q * 4 + j];
        }
    return sum;
  }
  template <int kBits>
  static Ints dot(const Bytes (&w)[kQuads], const ActivationGroup& x) {
    return dot_quads<kBits>(w, x.elements, 0, kQuads);
  }

  // 6-bit elements with zero point 32 and one scale per 16 columns.
  struct TwoScales {
    std::int8_t v[kRows][2];
  };
  static TwoScales load_two_scales(const std::uint8_t* p) {
    TwoScales x;
    std::memcpy(x.v, p, sizeof x.v);
    return x;
  }
  static Ints dot_two_scales(const Bytes (&w)[kQuads], const TwoScales& scales,
                             const ActivationGroup& x) {
    const Ints first = dot_quads<6>(w, x.elements, 0, kQuads / 2);
    const Ints second = dot_quads<6>(w, x.elements, kQuads / 2, kQuads);
    Ints sum;
    for (int i = 0; i < kRows; ++i)
      sum.v[i] = scales.v[i][0] * (first.v[i] + 32 * x.minus_sums[0]) +
                 scales.v[i][1] * (second.v[i] + 32 * x.minus_sums[1]);
    return sum;
  }

  // Register tile: dots[t][p] of unpacked panels with tokens.
  template <int kBits, int kTokens, int kPanels>
  static void dots(const std::uint8_t (&w)[kQuads][kPanels][kRows * 4], const ActivationGroup* x,
                   Ints (&out)[kTokens][kPanels]) {
    for (int p = 0; p < kPanels; ++p) {
      Bytes bytes[kQuads];
      for (int q = 0; q < kQuads; ++q) bytes[q] = load_bytes(w[q][p]);
      for (int t = 0; t < kTokens; ++t) out[t][p] = dot<kBits>(bytes, x[t]);
    }
  }
  template <int kTokens, int kPanels>
  static void dots_two_scales(const std::uint8_t (&w)[kQuads][kPanels][kRows * 4],
                              const TwoScales* scales, const ActivationGroup* x,
                              Ints (&out)[kTokens][kPanels]) {
    for (int p = 0; p < kPanels; ++p) {
      Bytes bytes[kQuads];
      for (int q = 0; q < kQuads; ++q) bytes[q] = load_bytes(w[q][p]);
      for (int t = 0; t < kTokens; ++t) out[t][p] = dot_two_scales(bytes, scales[p], x[t]);
    }
  }

  static void quantise(const float* x, ActivationGroup& to) {
    std::uint32_t largest = 0;  // magnitudes compared as bits: NaN is above infinity
    for (int i = 0; i < kGroup; ++i)
      largest = std::max(largest, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu);
    const float magnitude = std::bit_cast<float>(largest);
    to = {};
    if (largest >= 0x7f800000u) {
      to.scale = to.scaled_sum = std::numeric_limits<float>::quiet_NaN();
      return;
    }
    if (magnitude < kSmallestMagnitude) return;
    const float factor = 127.0f / magnitude;
    int sums[2] = {};
    float products = 0, squares = 0;
    for (int i = 0; i < kGroup; ++i) {
      constexpr float kShift = 0x1.8p23f;  // adding it rounds to an integer, to nearest even
      const float rounded = x[i] * factor + kShift - kShift;
      products += x[i] * factor * rounded;
      squares += rounded * rounded;
      const auto element = static_cast<std::int8_t>(rounded);
      to.elements[i] = element;
      sums[i / 16] += element;
    }
    to.scale = magnitude / 127.0f * (products / squares);
    to.scaled_sum = to.scale * static_cast<float>(sums[0] + sums[1]);
    for (int i = 0; i < 2; ++i) to.minus_sums[i] = static_cast<std::int16_t>(-sums[i]);
  }
};

}  // namespace headrace::cpu::gemm::scalar
