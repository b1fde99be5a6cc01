// Matmul of panels of quantized rows with quantized activations.
//
// One token (decode) loads a group of a panel from memory into registers. For more tokens,
// kTilePanels panels are unpacked to the stack once, kUnpackedGroups groups at a time, and
// multiplied with blocks of kTokenBlock tokens in a register tile.
//
// The integer sum over the 32 columns of a group is exact; then, in the order of the groups,
//   sum = fma(integer sum, scale * activation scale, sum)
//   sum = fma(minimum, activation scale * sum of the activation's elements, sum)
// in both cases, so that a token's bits depend neither on the path nor on the tile. An unsigned
// element's zero point z is a minimum of -z * scale.
#pragma once

#include "backends/cpu/gemm/instance.h"
#include "backends/cpu/simd/element.h"

namespace headrace::cpu::gemm {

// A group of a panel, held in registers.
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

  // header: the block's header with the halves of the rows.
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
      for (int q = 0; q < kQuads; ++q)
        elements[q] = Isa::signed_bytes(Isa::load_bytes(group + q * kVector));
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

// Distance of the software prefetch: hardware prefetch stops at the end of each page. The address
// may be past the matrix, which is harmless for a prefetch.
inline constexpr uintptr_t kPrefetchBytes = 2048;
template <class Isa>
inline void prefetch_ahead(const void* at) {
  __builtin_prefetch(
      reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(at) + kPrefetchBytes));
}
// Panels that one token multiplies at once, each a stream: hardware prefetch adds bandwidth for
// each stream.
inline constexpr int kStreams = 2;

// Iterates over the groups of a panel.
template <class Isa, WeightType kType>
struct PanelReader {
  static constexpr PanelLayout kLayout = panel_layout(kType, Isa::kRows);

  inline void begin(const PanelCall& call, int64_t panel) {
    const int64_t num_blocks = call.columns / (kLayout.groups_per_block * kGroup);
    block =
        reinterpret_cast<const uint8_t*>(call.panels) + panel * num_blocks * kLayout.block_bytes;
    index = 0;
  }

  inline void next(PanelGroup<Isa, kType>& group) {
    const uint8_t* at = block + kLayout.header_bytes + index * kLayout.group_bytes;
#pragma GCC unroll 8
    for (int i = 0; i < kLayout.group_bytes; i += 64) prefetch_ahead<Isa>(at + i);
    group.load(block, at);
    if (++index == kLayout.groups_per_block) {
      index = 0;
      block += kLayout.block_bytes;
    }
  }

  const uint8_t* block;  // the current block of the panel; starts with the header
  int index;             // index of the group in the block
};

// kPanels panels at distance `step`: memory is read in as many streams.
template <class Isa, WeightType kType, int kPanels>
inline void panels_with_one_token(const PanelCall& call, int64_t panel, int64_t step) {
  using Vec = typename Isa::Vec;
  typename Vec::F sums[kPanels];
  PanelReader<Isa, kType> readers[kPanels];
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) {
    sums[p] = Vec::zero();
    readers[p].begin(call, panel + p * step);
  }
  for (int64_t g = 0; g < call.columns / kGroup; ++g) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      PanelGroup<Isa, kType> group;
      readers[p].next(group);
      sums[p] = group.add_product(call.activations[g], sums[p]);
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p)
    store_rows<Vec>(call, 0, (panel + p * step) * Isa::kRows, sums[p]);
}

inline constexpr int kTilePanels = 2;
inline constexpr int kUnpackedGroups = 24;  // with scales 16 to 20 KiB of AVX2 panels

// A group of kTilePanels panels, with elements as bytes.
template <class Isa, WeightType kType>
struct UnpackedGroup {
  using Group = PanelGroup<Isa, kType>;
  alignas(64) uint8_t elements[kQuads][kTilePanels][Isa::kRows * 4];
  float scale[kTilePanels][Isa::kRows];
  float minimum[kTilePanels][Isa::kRows];
  typename Isa::TwoScales two_scales[Group::kHasTwoScales ? kTilePanels : 1];

  inline void put(int p, const Group& group) {
#pragma GCC unroll 8
    for (int q = 0; q < kQuads; ++q) Isa::store_bytes(elements[q][p], group.elements[q]);
    Isa::Vec::store(scale[p], group.scale);
    if constexpr (Group::kHasMinimum) Isa::Vec::store(minimum[p], group.minimum);
    if constexpr (Group::kHasTwoScales) two_scales[p] = group.two_scales;
  }
};

// sums [kTokens][kTilePanels][kRows] += kTokens tokens times the groups; x [num_groups, kTokens].
template <class Isa, WeightType kType, int kTokens>
inline void register_tile(const UnpackedGroup<Isa, kType>* groups, int num_groups,
                          const ActivationGroup* x, float* sums) {
  using Vec = typename Isa::Vec;
  using Group = PanelGroup<Isa, kType>;
  constexpr int kP = kTilePanels;
  typename Vec::F sum[kTokens][kP];
#pragma GCC unroll 8
  for (int i = 0; i < kTokens * kP; ++i) sum[i / kP][i % kP] = Vec::load(sums + i * Isa::kRows);
  for (int g = 0; g < num_groups; ++g, x += kTokens) {
    const UnpackedGroup<Isa, kType>& group = groups[g];
    typename Isa::Ints dots[kTokens][kP];
    if constexpr (Group::kHasTwoScales) {
      Isa::dots_two_scales(group.elements, group.two_scales, x, dots);
    } else {
      Isa::template dots<Group::kFormat.bits>(group.elements, x, dots);
    }
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
      const typename Vec::F x_scale = Vec::set1(x[t].scale);
      const typename Vec::F x_sum = Vec::set1(x[t].scaled_sum);
#pragma GCC unroll 2
      for (int p = 0; p < kP; ++p) {
        const typename Vec::F scale = Vec::mul(Vec::load(group.scale[p]), x_scale);
        sum[t][p] = Isa::madd(Isa::to_floats(dots[t][p]), scale, sum[t][p]);
        if constexpr (Group::kHasMinimum)
          sum[t][p] = Isa::madd(Vec::load(group.minimum[p]), x_sum, sum[t][p]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kTokens * kP; ++i) Vec::store(sums + i * Isa::kRows, sum[i / kP][i % kP]);
}

// Panels `panel` and `panel + 1`; `panel` twice if the latter is not part of the call.
template <class Isa, WeightType kType>
inline void panels_with_tokens(const PanelCall& call, int64_t panel) {
  using Vec = typename Isa::Vec;
  constexpr int kP = kTilePanels, kRows = Isa::kRows;
  static_assert(kTokenBlock == 4 && kUnpackedGroups % kSuperGroups == 0);
  const bool has_second = panel + 1 < call.last_panel;
  PanelReader<Isa, kType> readers[kP];
  for (int p = 0; p < kP; ++p) readers[p].begin(call, panel + (has_second ? p : 0));
  alignas(64) float sums[kTokenTile * kP * kRows];
  for (int64_t i = 0; i < call.num_tokens * kP; ++i) Vec::store(sums + i * kRows, Vec::zero());

  const int64_t num_groups = call.columns / kGroup;
  for (int64_t first = 0; first < num_groups; first += kUnpackedGroups) {
    const int64_t left = num_groups - first;
    const int count = static_cast<int>(left < kUnpackedGroups ? left : kUnpackedGroups);
    UnpackedGroup<Isa, kType> unpacked[kUnpackedGroups];
    for (int p = 0; p < kP; ++p)
      for (int g = 0; g < count; ++g) {
        PanelGroup<Isa, kType> group;
        readers[p].next(group);
        unpacked[g].put(p, group);
      }
    for (int64_t t = 0; t < call.num_tokens; t += kTokenBlock) {
      const int64_t tokens = call.num_tokens - t;
      const ActivationGroup* x = call.activations + t * num_groups;
      float* to = sums + t * kP * kRows;
      if (tokens >= 4)
        register_tile<Isa, kType, 4>(unpacked, count, x + first * 4, to);
      else if (tokens == 3)
        register_tile<Isa, kType, 3>(unpacked, count, x + first * 3, to);
      else if (tokens == 2)
        register_tile<Isa, kType, 2>(unpacked, count, x + first * 2, to);
      else
        register_tile<Isa, kType, 1>(unpacked, count, x + first, to);
    }
  }
  for (int64_t t = 0; t < call.num_tokens; ++t)
    for (int p = 0; p < (has_second ? kP : 1); ++p)
      store_rows<Vec>(call, t, (panel + p) * kRows, Vec::load(sums + (t * kP + p) * kRows));
}

template <class Isa, WeightType kType>
void quantised_panels(const PanelCall& call) {
  if (call.num_tokens == 1) {
    const int64_t step = (call.last_panel - call.first_panel) / kStreams;
    for (int64_t i = 0; i < step; ++i)
      panels_with_one_token<Isa, kType, kStreams>(call, call.first_panel + i, step);
    for (int64_t panel = call.first_panel + kStreams * step; panel < call.last_panel; ++panel)
      panels_with_one_token<Isa, kType, 1>(call, panel, 0);
  } else {
    for (int64_t panel = call.first_panel; panel < call.last_panel; panel += kTilePanels)
      panels_with_tokens<Isa, kType>(call, panel);
  }
}

template <class Isa>
void quantise_tokens(const float* x, int64_t x_stride, int64_t num_tokens, int64_t num_groups,
                     ActivationGroup* to) {
  for (int64_t first = 0; first < num_tokens; first += kTokenBlock) {
    const int64_t tokens = num_tokens - first < kTokenBlock ? num_tokens - first : kTokenBlock;
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t g = 0; g < num_groups; ++g)
        Isa::quantise(x + (first + t) * x_stride + g * kGroup,
                      to[first * num_groups + g * tokens + t]);
  }
}

}  // namespace headrace::cpu::gemm
