// The elementwise operators, compiled for every instruction set (Vec). Products are not fused with
// sums, and the sum of squares always runs over 32 lanes, independent of the vector width: every
// instruction set gives the same bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "backends/cpu/elementwise/elementwise.h"
#include "backends/cpu/elementwise/merge_states-inl.h"
#include "backends/cpu/elementwise/silu-inl.h"
#include "backends/cpu/simd/element.h"

namespace headrace::cpu {

template <class Vec>
struct ElementwiseKernels {
  using F = typename Vec::F;
  static constexpr int kWidth = Vec::kWidth;
  static constexpr int kUnroll = 4;
  // For the sum of squares. A float accumulates kBlock / kLanes squares, then kLanes such sums: 13
  // roundings. Blocks are summed in double: 13 * 2^-24 bounds the relative error for every width.
  static constexpr int kLanes = 32;
  static constexpr int64_t kBlock = 256;

  template <class E>
  static F load(const E* p, int64_t n) {  // the first min(n, lanes) elements
    return n >= kWidth ? Vec::load(p) : Vec::load_partial(p, static_cast<int>(n));
  }
  template <class E>
  static void store(E* p, F x, int64_t n) {
    if (n >= kWidth) {
      Vec::store(p, x);
    } else {
      Vec::store_partial(p, x, static_cast<int>(n));
    }
  }

  // ---- rms_norm ----

  static float sum_of_block(const float* x, int64_t n) {
    constexpr int kNumVecs = kLanes / kWidth;
    F sums[kNumVecs];
    for (int v = 0; v < kNumVecs; ++v) sums[v] = Vec::zero();
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      for (int v = 0; v < kNumVecs; ++v) {
        const F y = Vec::load(x + i + v * kWidth);
        sums[v] = Vec::add(sums[v], Vec::mul(y, y));
      }
    }
    for (int v = 0; i < n; ++v, i += kWidth) {
      const F y = load(x + i, n - i);
      sums[v] = Vec::add(sums[v], Vec::mul(y, y));
    }
    for (int half = kNumVecs / 2; half > 0; half /= 2)
      for (int v = 0; v < half; ++v) sums[v] = Vec::add(sums[v], sums[v + half]);
    return Vec::sum(sums[0]);
  }

  static void rms_norm(const RmsNorm& call, RowRange rows) {
    for (int64_t row = rows.first; row < rows.last; ++row) {
      const float* x = call.x + row * call.x_stride;
      float* out = call.out + row * call.out_stride;
      double sum = 0;
      for (int64_t i = 0; i < call.width; i += kBlock)
        sum += static_cast<double>(sum_of_block(x + i, std::min(kBlock, call.width - i)));
      const double mean = sum / static_cast<double>(call.width);
      const F scale =
          Vec::set1(static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(call.eps))));
      for (int64_t i = 0; i < call.width; i += kWidth) {
        const int64_t n = call.width - i;
        F y = Vec::mul(load(x + i, n), scale);
        if (call.weight != nullptr) y = Vec::mul(y, load(call.weight + i, n));
        store(out + i, y, n);
      }
    }
  }

  // ---- rope: the first rot_dim elements of a head, (a, b) -> (a cos - b sin, b cos + a sin) ----

  template <class From, class To>
  static void copy_row(const From* x, To* out, int64_t width) {
    for (int64_t i = 0; i < width; i += kWidth) store(out + i, load(x + i, width - i), width - i);
  }

  template <class E>
  static void rotate_halves(const float* x, E* out, const float* cos, const float* sin,
                            int64_t half) {
    for (int64_t i = 0; i < half; i += kWidth) {
      const int64_t n = half - i;
      const F a = load(x + i, n), b = load(x + half + i, n);
      const F c = load(cos + i, n), s = load(sin + i, n);
      store(out + i, Vec::sub(Vec::mul(a, c), Vec::mul(b, s)), n);
      store(out + half + i, Vec::add(Vec::mul(b, c), Vec::mul(a, s)), n);
    }
  }

  template <class E>
  static void rotate_pairs(const float* x, E* out, const float* cos, const float* sin,
                           int64_t num_pairs) {
    int64_t i = 0;
    if constexpr (kWidth > 1) {
      alignas(64) float signs[kWidth];
      for (int lane = 0; lane < kWidth; ++lane) signs[lane] = lane % 2 == 0 ? -1.0f : 1.0f;
      const F sign = Vec::load(signs);
      for (; i + kWidth / 2 <= num_pairs; i += kWidth / 2) {
        const F a = Vec::load(x + 2 * i);
        const F s = Vec::mul(Vec::load_twice(sin + i), sign);
        const F turned = Vec::mul(Vec::swap_pairs(a), s);
        Vec::store(out + 2 * i, Vec::add(Vec::mul(a, Vec::load_twice(cos + i)), turned));
      }
    }
    for (; i < num_pairs; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      from_float(a * cos[i] - b * sin[i], out[2 * i]);
      from_float(b * cos[i] + a * sin[i], out[2 * i + 1]);
    }
  }

  // ---- the rest ----

  static void swiglu(const Swiglu& call, RowRange rows) {
    constexpr int kStep = kUnroll * kWidth;
    for (int64_t row = rows.first; row < rows.last; ++row) {
      const float* gate = call.gate + row * call.gate_stride;
      const float* up = call.up + row * call.up_stride;
      float* out = call.out + row * call.out_stride;
      int64_t i = 0;
      for (; i + kStep <= call.width; i += kStep) {
        F g[kUnroll];
        for (int v = 0; v < kUnroll; ++v) g[v] = Vec::load(gate + i + v * kWidth);
        silu<Vec>(g);
        for (int v = 0; v < kUnroll; ++v)
          Vec::store(out + i + v * kWidth, Vec::mul(g[v], Vec::load(up + i + v * kWidth)));
      }
      for (; i < call.width; i += kWidth) {
        const int64_t n = call.width - i;
        F g[1] = {load(gate + i, n)};
        silu<Vec>(g);
        store(out + i, Vec::mul(g[0], load(up + i, n)), n);
      }
    }
  }

  template <class E>
  static void widen_as(const WidenRows& call, RowRange rows) {
    for (int64_t row = rows.first; row < rows.last; ++row)
      copy_row(static_cast<const E*>(call.x) + row * call.x_stride,
               call.out + row * call.out_stride, call.width);
  }

  static void widen(const WidenRows& call, RowRange rows) {
    switch (call.x_dtype) {
      case DType::f16:
        return widen_as<F16>(call, rows);
      case DType::bf16:
        return widen_as<Bf16>(call, rows);
      default:
        return widen_as<float>(call, rows);
    }
  }

  // ---- kv_append ----

  // A head on its way from q, k or v to q_out or a page, in float: read, normalised, rotated,
  // written.
  struct HeadRow {
    alignas(64) float x[kMaxAppendDim];
  };
  // The angles of a token, and the weights of the norms in float.
  struct AppendScratch {
    alignas(64) float cos[kMaxAppendDim / 2], sin[kMaxAppendDim / 2];
    alignas(64) float q_norm[kMaxAppendDim], k_norm[kMaxAppendDim];
  };

  // body(p): data + offset as a pointer to its elements.
  template <class Pointer, class Body>
  static void with_elements(DType dtype, Pointer data, int64_t offset, Body body) {
    constexpr bool kIsConst = std::is_const_v<std::remove_pointer_t<Pointer>>;
    const auto at = [&]<class E>(E*) {
      body(static_cast<std::conditional_t<kIsConst, const E, E>*>(data) + offset);
    };
    switch (dtype) {
      case DType::f16:
        return at(static_cast<F16*>(nullptr));
      case DType::bf16:
        return at(static_cast<Bf16*>(nullptr));
      default:
        return at(static_cast<float*>(nullptr));
    }
  }

  static void read_row(DType dtype, const void* data, int64_t offset, int64_t width, float* x) {
    with_elements(dtype, data, offset, [&](const auto* from) { copy_row(from, x, width); });
  }

  static void write_row(DType dtype, void* data, int64_t offset, int64_t width, const float* x) {
    with_elements(dtype, data, offset, [&](auto* to) { copy_row(x, to, width); });
  }

  static void read_angles(const KvAppendArgs& args, int64_t token, AppendScratch& scratch) {
    const int64_t half = args.rot_dim / 2;
    const int32_t position = args.positions[token * args.position_stride];
    const RopeTables& tables = args.tables;
    if (tables.cos != nullptr) {
      read_row(tables.cos_dtype, tables.cos, position * tables.cos_stride, half, scratch.cos);
      read_row(tables.sin_dtype, tables.sin, position * tables.sin_stride, half, scratch.sin);
      return;
    }
    rope_angles({args.frequencies, static_cast<size_t>(half)}, {&position, 1}, scratch.cos,
                scratch.sin, args.attention_factor);
  }

  // Every block times the Hadamard matrix, by butterflies: the step doubles.
  static void multiply_by_hadamard(int64_t block, float scale, int64_t width, float* x) {
    for (int64_t step = 1; step < block; step *= 2)
      for (int64_t first = 0; first < width; first += 2 * step) {
        float *low = x + first, *high = low + step;
        int64_t i = 0;
        for (; i + kWidth <= step; i += kWidth) {
          const F a = Vec::load(low + i), b = Vec::load(high + i);
          Vec::store(low + i, Vec::add(a, b));
          Vec::store(high + i, Vec::sub(a, b));
        }
        for (; i < step; ++i) {
          const float a = low[i], b = high[i];
          low[i] = a + b;
          high[i] = a - b;
        }
      }
    for (int64_t i = 0; i < width; ++i) x[i] *= scale;
  }

  static void norm_and_rotate(const KvAppendArgs& args, const AppendScratch& scratch,
                              const float* weight, float* x) {
    if (weight != nullptr)
      rms_norm({.x = x,
                .x_stride = 0,
                .weight = weight,
                .width = args.head_dim,
                .eps = args.norm_eps,
                .out = x,
                .out_stride = 0},
               {0, 1});
    if (args.layout == RopeLayout::halves) {
      rotate_halves(x, x, scratch.cos, scratch.sin, args.rot_dim / 2);
    } else {
      rotate_pairs(x, x, scratch.cos, scratch.sin, args.rot_dim / 2);
    }
  }

  // What keeps every product of q and k, so that codes of k lose less.
  static void spread_channels(const KvAppendArgs& args, int64_t head, bool is_k, float* x) {
    if (const ChannelFactors& by = args.channel_factors; by.data != nullptr) {
      const float* factors = by.data + (is_k ? head : head / by.group) * by.stride_head;
      for (int64_t i = 0; i < args.head_dim; ++i)
        x[i] = is_k ? x[i] / factors[i] : x[i] * factors[i];
    }
    if (args.hadamard_block > 1)
      multiply_by_hadamard(args.hadamard_block, args.hadamard_scale, args.head_dim, x);
  }

  // The first element of the largest magnitude; NaN if any is.
  static float extreme_of(const float* x, int64_t width) {
    float extreme = 0, top = 0;
    for (int64_t i = 0; i < width; ++i) {
      const float magnitude = __builtin_fabsf(x[i]);
      if (magnitude != magnitude) return x[i];
      if (magnitude > top) {
        top = magnitude;
        extreme = x[i];
      }
    }
    return extreme;
  }

  // Codes of a head, and its scale.
  static void write_codes(DType format, void* data, int64_t offset, int64_t width, const float* x,
                          float& scale) {
    scale = quantised_scale(format, extreme_of(x, width));
    const float inverse = inverse_scale(scale);
    if (format == DType::i8) {
      auto* to = static_cast<int8_t*>(data) + offset;
      for (int64_t i = 0; i < width; ++i) to[i] = quantise_i8(x[i], inverse);
    } else if (format == DType::f8e4m3) {
      auto* to = static_cast<uint8_t*>(data) + offset;
      for (int64_t i = 0; i < width; ++i) to[i] = quantise_e4m3(x[i], inverse);
    } else {
      auto* to = static_cast<uint8_t*>(data) + offset;
      for (int64_t i = 0; i < width / 2; ++i)
        to[i] = static_cast<uint8_t>(quantise_i4(x[2 * i], inverse) |
                                     quantise_i4(x[2 * i + 1], inverse) << 4);
    }
  }

  // Scales and zero points of the channels of a head.
  struct ChannelScales {
    alignas(64) float zero[kMaxAppendDim], inverse[kMaxAppendDim];

    [[gnu::noinline]] void set(int64_t channel, uint32_t word) {
      const ScaleAndZero x = unpack_scale(word);
      zero[channel] = x.zero;
      inverse[channel] = inverse_scale(x.scale);
    }
  };
  [[gnu::noinline]] static void write_packed(DType format, const float* x, int64_t width,
                                             const ChannelScales& by, uint8_t* to) {
    uint8_t codes[kMaxAppendDim];
    const float largest = largest_code(format);
    for (int64_t i = 0; i < width; ++i)
      codes[i] = quantise_unsigned(x[i], by.zero[i], by.inverse[i], largest);
    if (format == DType::u2x4) {
      for (int64_t i = 0; i < width / 4; ++i)
        to[i] = static_cast<uint8_t>(codes[4 * i] | codes[4 * i + 1] << 2 | codes[4 * i + 2] << 4 |
                                     codes[4 * i + 3] << 6);
    } else {
      for (int64_t i = 0; i < width / 2; ++i)
        to[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
    }
  }

  // The codes of a value, with a word for each kZeroPointGroup channels.
  [[gnu::noinline]] static void write_value(DType format, const float* x, int64_t width,
                                            uint8_t* to, uint32_t* words) {
    ChannelScales scales;
    for (int64_t first = 0; first < width; first += kZeroPointGroup) {
      const int64_t last = std::min(first + kZeroPointGroup, width);
      Extent extent;
      for (int64_t i = first; i < last; ++i) extent.add(x[i]);
      const uint32_t word = words[first / kZeroPointGroup] = scale_word(format, extent);
      for (int64_t i = first; i < last; ++i) scales.set(i, word);
    }
    write_packed(format, x, width, scales, to);
  }

  // The codes of the group of keys that ends with a token, from their recent rows.
  static void quantise_keys(const KvAppendArgs& args, int64_t slot, int64_t recent_slot,
                            int64_t head) {
    const PageRows &pages = args.k_pages, &recent = args.recent.k;
    HeadRow row;
    const auto read = [&](int64_t i) __attribute__((noinline)) {
      const int64_t from = recent_slot - (kZeroPointGroup - 1) + i;
      read_row(recent.dtype, recent.data, slot_offset(args.recent.group, recent, from, head),
               args.head_dim, row.x);
    };
    Extent extents[kMaxAppendDim];
    for (int64_t i = 0; i < kZeroPointGroup; ++i) {
      read(i);
      for (int64_t d = 0; d < args.head_dim; ++d) extents[d].add(row.x[d]);
    }
    auto* words =
        static_cast<uint32_t*>(args.k_scale.data) +
        slot_offset(args.page_size / kZeroPointGroup, args.k_scale, slot / kZeroPointGroup, head);
    ChannelScales scales;
    for (int64_t d = 0; d < args.head_dim; ++d)
      scales.set(d, words[d] = scale_word(pages.dtype, extents[d]));
    for (int64_t i = 0; i < kZeroPointGroup; ++i) {
      read(i);
      const int64_t to = slot_offset(args.page_size, pages, slot - (kZeroPointGroup - 1) + i, head);
      write_packed(pages.dtype, row.x, args.head_dim, scales,
                   static_cast<uint8_t*>(pages.data) + to);
    }
  }

  // The groups of keys that end with these tokens, after all tokens were appended.
  static void quantise_groups(const KvAppendArgs& args, RowRange tokens) {
    for (int64_t token = tokens.first; token < tokens.last; ++token) {
      const int64_t slot = args.slot_mapping[token * args.slot_stride];
      const int64_t recent = args.recent.slots[token * args.recent.slot_stride];
      if (recent < 0 || !ends_zero_point_group(slot)) continue;
      for (int64_t head = 0; head < args.num_kv_heads; ++head)
        quantise_keys(args, slot, recent, head);
    }
  }

  // A head of K or V, to its slots.
  struct Slots {
    int64_t slot, recent;  // negative: not stored
  };
  static void store_head(const KvAppendArgs& args, const Slots& slots, int64_t head, bool is_of_k,
                         const float* x) {
    const PageRows& pages = is_of_k ? args.k_pages : args.v_pages;
    const ScaleRows& scales = is_of_k ? args.k_scale : args.v_scale;
    const PageRows& recent = is_of_k ? args.recent.k : args.recent.v;
    const int64_t width = is_of_k ? args.head_dim : args.head_dim_v;
    if (slots.slot >= 0) {
      const int64_t at = slot_offset(args.page_size, pages, slots.slot, head);
      const int64_t scale_at = slot_offset(args.page_size, scales, slots.slot, head);
      if (has_zero_points(pages.dtype)) {
        if (!is_of_k)  // keys: quantise_groups()
          write_value(pages.dtype, x, width, static_cast<uint8_t*>(pages.data) + at,
                      static_cast<uint32_t*>(scales.data) + scale_at);
      } else if (scales.data != nullptr) {
        write_codes(pages.dtype, pages.data, at, width, x,
                    static_cast<float*>(scales.data)[scale_at]);
      } else {
        write_row(pages.dtype, pages.data, at, width, x);
      }
    }
    if (slots.recent >= 0)
      write_row(recent.dtype, recent.data,
                slot_offset(args.recent.group, recent, slots.recent, head), width, x);
  }

  static void append_token(const KvAppendArgs& args, const AppendScratch& scratch, int64_t token) {
    HeadRow row;
    const float* q_norm = args.q_norm.data == nullptr ? nullptr : scratch.q_norm;
    for (int64_t head = 0; head < args.num_heads; ++head) {
      const HeadRows &from = args.q, &to = args.q_out;
      read_row(from.dtype, from.data, token * from.stride_token + head * from.stride_head,
               args.head_dim, row.x);
      norm_and_rotate(args, scratch, q_norm, row.x);
      spread_channels(args, head, false, row.x);
      write_row(to.dtype, to.data, token * to.stride_token + head * to.stride_head, args.head_dim,
                row.x);
    }
    if (args.num_kv_heads == 0) return;
    const Slots slots{
        args.slot_mapping[token * args.slot_stride],
        args.recent.slots == nullptr ? -1 : args.recent.slots[token * args.recent.slot_stride]};
    if (slots.slot < 0 && slots.recent < 0) return;
    const float* k_norm = args.k_norm.data == nullptr ? nullptr : scratch.k_norm;
    for (int64_t head = 0; head < args.num_kv_heads; ++head) {
      const HeadRows &k = args.k, &v = args.v;
      read_row(k.dtype, k.data, token * k.stride_token + head * k.stride_head, args.head_dim,
               row.x);
      norm_and_rotate(args, scratch, k_norm, row.x);
      spread_channels(args, head, true, row.x);
      store_head(args, slots, head, true, row.x);
      read_row(v.dtype, v.data, token * v.stride_token + head * v.stride_head, args.head_dim_v,
               row.x);
      store_head(args, slots, head, false, row.x);
    }
  }

  static void kv_append(const KvAppendArgs& args, RowRange tokens) {
    AppendScratch scratch;
    if (args.q_norm.data != nullptr)
      read_row(args.q_norm.dtype, args.q_norm.data, 0, args.head_dim, scratch.q_norm);
    if (args.k_norm.data != nullptr)
      read_row(args.k_norm.dtype, args.k_norm.data, 0, args.head_dim, scratch.k_norm);
    for (int64_t token = tokens.first; token < tokens.last; ++token) {
      if (args.rot_dim > 0) read_angles(args, token, scratch);
      append_token(args, scratch, token);
    }
  }

  static constexpr ElementwiseOps make(const char* name, uint32_t cpu_isa) {
    return {name,  cpu_isa,   rms_norm,        swiglu,
            widen, kv_append, quantise_groups, MergeStates<Vec, ElementwiseKernels>::run};
  }
};

}  // namespace headrace::cpu
