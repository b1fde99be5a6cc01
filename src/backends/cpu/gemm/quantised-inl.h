// Panels of quantised rows with quantised activations.
//
// A group of a panel is unpacked into registers once (8 vectors of kRows x 4 bytes, a vector of
// scales, one of minima) and meets every token of the tile. The integer sum over the 32 columns is
// exact; then, in the order of the groups,
//   sum = fma(integer sum, scale * activation scale, sum)
//   sum = fma(minimum, activation scale * sum of the activation's elements, sum)
// whatever the tile is, so that a token's bits do not depend on it. An unsigned element's zero
// point z is a minimum of -z * scale.
#pragma once

#include "backends/cpu/gemm/instance.h"
#include "backends/cpu/simd/element.h"

namespace headrace::cpu::gemm {

// A group of a panel in registers.
template <class Isa, WeightType kType>
struct PanelGroup {
  using Vec = typename Isa::Vec;
  using F = typename Vec::F;
  using Bytes = typename Isa::Bytes;
  static constexpr GroupFormat kFormat = group_format(kType);
  static constexpr PanelLayout kLayout = panel_layout(kType, Isa::kRows);
  static constexpr int kVector = Isa::kRows * 4;
  static constexpr bool kHasTwoScales = kFormat.has_byte_scales && !kFormat.has_minimum;
  static constexpr bool kHasMinimum =
      kFormat.has_minimum || (kFormat.zero_point != 0 && !kHasTwoScales);

  Bytes elements[kQuads];
  F scale, minimum;
  typename Isa::TwoScales two_scales;

  // header: of the block, with the halves of the rows.
  inline void load(const uint8_t* header, const uint8_t* group) {
    load_elements(group);
    const uint8_t* scales = group + kLayout.element_bytes;
    const auto* halves = reinterpret_cast<const F16*>(kFormat.has_byte_scales ? header : scales);
    scale = Vec::load(halves);
    if constexpr (kHasTwoScales) {
      two_scales = Isa::load_two_scales(scales);
      return;
    }
    if constexpr (kFormat.has_byte_scales) scale = Vec::mul(scale, Isa::bytes_as_floats(scales));
    if constexpr (kFormat.has_minimum) {
      minimum = Vec::load(halves + Isa::kRows);
      if constexpr (kFormat.has_byte_scales)
        minimum =
            Vec::sub(Vec::zero(), Vec::mul(minimum, Isa::bytes_as_floats(scales + Isa::kRows)));
    } else if constexpr (kHasMinimum) {
      minimum = Vec::mul(scale, Vec::set1(static_cast<float>(-kFormat.zero_point)));
    }
  }

  inline F add_product(const ActivationGroup& x, F sum) const {
    typename Isa::Ints dot;
    if constexpr (kHasTwoScales) {
      dot = Isa::dot_two_scales(elements, two_scales, x);
    } else {
      dot = Isa::template dot<kFormat.bits>(elements, x);
    }
    sum = Isa::madd(Isa::to_floats(dot), Vec::mul(scale, Vec::set1(x.scale)), sum);
    if constexpr (kHasMinimum) sum = Isa::madd(minimum, Vec::set1(x.scaled_sum), sum);
    return sum;
  }

 private:
  inline void load_elements(const uint8_t* group) {
    if constexpr (kFormat.bits == 8) {
#pragma GCC unroll 8
      for (int q = 0; q < kQuads; ++q) elements[q] = Isa::load_bytes(group + q * kVector);
      return;
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Bytes nibbles = Isa::load_bytes(group + i * kVector);
      elements[i] = Isa::low_nibbles(nibbles);
      elements[i + 4] = Isa::high_nibbles(nibbles);
    }
    if constexpr (kFormat.bits == 5) {
      const Bytes bits = Isa::load_bytes(group + 4 * kVector);
#pragma GCC unroll 8
      for (int q = 0; q < kQuads; ++q)
        elements[q] = Isa::with_high_bits(elements[q], bits, 1 << q, 4 - q);
    }
    if constexpr (kFormat.bits == 6) {
      const Bytes bits[2] = {Isa::load_bytes(group + 4 * kVector),
                             Isa::load_bytes(group + 5 * kVector)};
#pragma GCC unroll 8
      for (int q = 0; q < kQuads; ++q)
        elements[q] = Isa::with_high_bits(elements[q], bits[q / 4], 3 << q % 4 * 2, 4 - q % 4 * 2);
    }
  }
};

template <class Vec>
inline void store_rows(const PanelCall& call, int64_t token, int64_t row, typename Vec::F sum) {
  float* out = call.out + token * call.out_stride + row;
  if (call.rows - row >= Vec::kWidth) {
    if (call.bias != nullptr) sum = Vec::add(sum, Vec::load(call.bias + row));
    if (call.add_to_out) sum = Vec::add(Vec::load(out), sum);
    Vec::store(out, sum);
  } else {
    const int n = static_cast<int>(call.rows - row);
    if (call.bias != nullptr) sum = Vec::add(sum, Vec::load_partial(call.bias + row, n));
    if (call.add_to_out) sum = Vec::add(Vec::load_partial(out, n), sum);
    Vec::store_partial(out, sum, n);
  }
}

// kTokens: those of the tile where that is known (their sums stay in registers), 0 where not.
template <class Isa, WeightType kType, int kTokens>
inline void panel_with_tokens(const PanelCall& call, int64_t panel) {
  using Vec = typename Isa::Vec;
  using Group = PanelGroup<Isa, kType>;
  constexpr PanelLayout kLayout = Group::kLayout;
  constexpr int64_t kBlock = kLayout.groups_per_block * kGroup;
  const int64_t num_tokens = kTokens > 0 ? kTokens : call.num_tokens;
  typename Vec::F sums[kTokens > 0 ? kTokens : kTokenTile];
  for (int64_t t = 0; t < num_tokens; ++t) sums[t] = Vec::zero();

  const int64_t num_blocks = call.columns / kBlock;
  const auto* block =
      reinterpret_cast<const uint8_t*>(call.panels) + panel * num_blocks * kLayout.block_bytes;
  const ActivationGroup* x = call.activations;
  for (int64_t b = 0; b < num_blocks; ++b, block += kLayout.block_bytes) {
    for (int g = 0; g < kLayout.groups_per_block; ++g, x += num_tokens) {
      Group group;
      group.load(block, block + kLayout.header_bytes + g * kLayout.group_bytes);
      for (int64_t t = 0; t < num_tokens; ++t) sums[t] = group.add_product(x[t], sums[t]);
    }
  }
  for (int64_t t = 0; t < num_tokens; ++t) store_rows<Vec>(call, t, panel * Isa::kRows, sums[t]);
}

template <class Isa, WeightType kType>
void quantised_panels(const PanelCall& call) {
  for (int64_t panel = call.first_panel; panel < call.last_panel; ++panel) {
    if (call.num_tokens == 1)
      panel_with_tokens<Isa, kType, 1>(call, panel);
    else
      panel_with_tokens<Isa, kType, 0>(call, panel);
  }
}

template <class Isa>
void quantise_tokens(const float* x, int64_t x_stride, int64_t num_tokens, int64_t num_groups,
                     ActivationGroup* to) {
  for (int64_t t = 0; t < num_tokens; ++t)
    for (int64_t g = 0; g < num_groups; ++g)
      Isa::quantise(x + t * x_stride + g * kGroup, to[g * num_tokens + t]);
}

}  // namespace headrace::cpu::gemm
