// Online softmax of one row of a tile: dot products to probabilities (Milakov and Gimelshein 2018,
// FlashAttention algorithm 1).
#pragma once

#include <limits>
#include <type_traits>

#include "backends/cpu/attention/flash/config.h"
#include "backends/cpu/simd/exp-inl.h"
#include "core/args.h"
#include "core/philox.h"

namespace headrace::cpu::flash {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Log2 of the scale of probabilities if the sum of P V would overflow: then a million terms of the
// largest float stay finite. A power of two changes no digit.
inline constexpr int kOverflowShift = -20;

// Columns [begin, end) of a tile that a row sees, or the union for a block of rows. Empty: begin ==
// end.
struct Span {
  int begin, end;
  bool is_empty() const { return begin >= end; }
};

// Identifies a row of the attention matrix, for features that depend on it.
struct RowId {
  int64_t batch_idx, head, q_idx;
  Sequence sequence;
};

inline void fill(float* x, int begin, int end, float value) {
  for (int i = begin; i < end; ++i) x[i] = value;
}

// s[span] *= scales[span]. Columns outside may hold anything, NaN included.
template <class Vec>
inline void scale_columns(float* s, const float* scales, Span span) {
  int j = span.begin;
  for (; j + Vec::kWidth <= span.end; j += Vec::kWidth)
    Vec::store(s + j, Vec::mul(Vec::load(s + j), Vec::load(scales + j)));
  for (; j < span.end; ++j) s[j] *= scales[j];
}

// Calls body(j, std::integral_constant<int, n>) for n vectors at a time from `begin` to `end`,
// multiples of the width.
template <class Vec, class Body>
inline void for_vectors(int begin, int end, Body body) {
  constexpr int kN = 4;
  int j = begin;
  for (; j + kN * Vec::kWidth <= end; j += kN * Vec::kWidth)
    body(j, std::integral_constant<int, kN>{});
  for (; j < end; j += Vec::kWidth) body(j, std::integral_constant<int, 1>{});
}

// Raises `maximum` to that of a tile, scale * (the lanes of `largest`): rounding is monotonic, so
// that is the maximum of the products. Returns what scaled scores need before exp().
template <class Vec>
inline typename Vec::F raise_maximum(typename Vec::F largest, float scale, float& maximum) {
  const float tile_maximum = Vec::max_lane(largest) * scale;
  if (tile_maximum > maximum) maximum = tile_maximum;
  // If all scores so far are -inf, subtract 0: it gives zeros and propagates NaN.
  return Vec::set1(maximum == -kInfinity ? 0.0f : -maximum);
}
// x = 2^kShift exp(x * factor + minus_max); adds to `sum`.
template <class Vec, int kShift, int kN>
[[gnu::always_inline]] inline void exponentiate(typename Vec::F (&x)[kN], typename Vec::F factor,
                                                typename Vec::F minus_max, typename Vec::F& sum) {
  for (int i = 0; i < kN; ++i) x[i] = Vec::fma(x[i], factor, minus_max);
  exp_softmax<Vec, kShift>(x);
  for (int i = 0; i < kN; ++i) sum = Vec::add(sum, x[i]);
}

// softmax_row() of a row that sees all keys of a direct tile, in registers.
template <class Vec, int kShift>
[[gnu::noinline]] inline float softmax_whole_row(float* s, const float* key_scales, float scale,
                                                 float& maximum) {
  constexpr int kW = Vec::kWidth, kN = kDirectKeys / kW;
  typename Vec::F x[kN], largest = Vec::set1(-kInfinity), sum = Vec::zero();
  for (int i = 0; i < kN; ++i) x[i] = Vec::load(s + i * kW);
  if (key_scales != nullptr)
    for (int i = 0; i < kN; ++i) x[i] = Vec::mul(x[i], Vec::load(key_scales + i * kW));
  for (int i = 0; i < kN; ++i) largest = Vec::max(largest, x[i]);
  const auto minus_max = raise_maximum<Vec>(largest, scale, maximum);
  exponentiate<Vec, kShift>(x, Vec::set1(scale), minus_max, sum);
  for (int i = 0; i < kN; ++i) Vec::store(s + i * kW, x[i]);
  return Vec::sum(sum);
}

// Turns scores s[span], times `key_scales` unless that is null, into 2^kShift exp(scale * s -
// running maximum) in place, and into zero elsewhere in `block`, the columns that the row's block
// multiplies with V. scale > 0. Updates `maximum`. Returns the sum of the new terms, in an order
// that depends only on their columns.
template <class Vec, int kShift>
inline float softmax_row(float* s, const float* key_scales, Span span, Span block, float scale,
                         float& maximum) {
  using F = typename Vec::F;
  constexpr int kW = Vec::kWidth;
  if constexpr (kDirectKeys / kW <= 4) {
    if (span.begin == 0 && span.end == kDirectKeys && block.end == kDirectKeys)
      return softmax_whole_row<Vec, kShift>(s, key_scales, scale, maximum);
  }
  if (key_scales != nullptr) scale_columns<Vec>(s, key_scales, span);
  const int begin = span.begin / kW * kW;
  const int end = (span.end + kW - 1) / kW * kW;
  fill(s, begin, span.begin, -kInfinity);
  fill(s, span.end, end, -kInfinity);
  F largest = Vec::set1(-kInfinity);
  for (int j = begin; j < end; j += kW) largest = Vec::max(largest, Vec::load(s + j));
  const F minus_max = raise_maximum<Vec>(largest, scale, maximum), factor = Vec::set1(scale);
  F sum = Vec::zero();
  for_vectors<Vec>(
      begin, end, [&](int j, auto num) __attribute__((always_inline)) {
        constexpr int kN = decltype(num)::value;
        F x[kN];
        for (int i = 0; i < kN; ++i) x[i] = Vec::load(s + j + i * kW);
        exponentiate<Vec, kShift>(x, factor, minus_max, sum);
        for (int i = 0; i < kN; ++i) Vec::store(s + j + i * kW, x[i]);
      });
  fill(s, block.begin / kW * kW, begin, 0.0f);
  fill(s, end, (block.end + kW - 1) / kW * kW, 0.0f);
  return Vec::sum(sum);
}

// Turns scores s[begin, end) (multiples of the width) of a row with known lse into
// exp(scale * s - lse) in place.
template <class Vec>
inline void softmax_of_lse(float* s, int begin, int end, float scale, float lse) {
  constexpr int kW = Vec::kWidth;
  const auto factor = Vec::set1(scale), minus_lse = Vec::set1(-lse);
  for_vectors<Vec>(
      begin, end, [&](int j, auto num) __attribute__((always_inline)) {
        constexpr int kN = decltype(num)::value;
        typename Vec::F x[kN];
        for (int i = 0; i < kN; ++i) x[i] = Vec::fma(Vec::load(s + j + i * kW), factor, minus_lse);
        exp_softmax<Vec, 0>(x);
        for (int i = 0; i < kN; ++i) Vec::store(s + j + i * kW, x[i]);
      });
}

// row_scale = exp(old maximum - new maximum), the rescale factor of O and the row sum; exactly 1 if
// the maximum is unchanged (also for -inf and +inf). `count` is a multiple of the vector width.
template <class Vec>
inline void rescale_rows(const float* old_maximum, const float* new_maximum, const float* tile_sum,
                         int count, float* row_scale, float* row_sum) {
  for (int i = 0; i < count; i += Vec::kWidth) {
    const auto before = Vec::load(old_maximum + i), after = Vec::load(new_maximum + i);
    const auto change = Vec::select_less(before, after, Vec::sub(before, after), Vec::zero());
    const auto factor = exp_softmax<Vec>(change);
    Vec::store(row_scale + i, factor);
    Vec::store(row_sum + i, Vec::fma(Vec::load(row_sum + i), factor, Vec::load(tile_sum + i)));
  }
}

// Address of the first key of a row in a broadcastable operand.
inline int64_t score_row_offset(const ScoreOperand& x, const RowId& row) {
  return row.batch_idx * x.stride_batch + row.head * x.stride_head +
         (row.sequence.row_q + row.q_idx) * x.stride_q;
}

template <class Vec, class T>
inline typename Vec::F load_strided(const T* p, int64_t stride, int n) {
  if (stride == 0) return Vec::set1(to_float(*p));
  if (stride == 1) return n >= Vec::kWidth ? Vec::load(p) : Vec::load_partial(p, n);
  float buffer[Vec::kWidth] = {};
  for (int i = 0; i < n && i < Vec::kWidth; ++i) buffer[i] = to_float(p[i * stride]);
  return Vec::load(buffer);
}

template <class Vec>
inline typename Vec::F load_bias(const ScoreOperand& bias, int64_t offset, int n) {
  switch (bias.dtype) {
    case DType::f16:
      return load_strided<Vec>(static_cast<const F16*>(bias.data) + offset, bias.stride_k, n);
    case DType::bf16:
      return load_strided<Vec>(static_cast<const Bf16*>(bias.data) + offset, bias.stride_k, n);
    default:
      return load_strided<Vec>(static_cast<const float*>(bias.data) + offset, bias.stride_k, n);
  }
}

template <class Vec>
inline typename Vec::F apply_mask(const ScoreOperand& mask, int64_t offset, int n,
                                  typename Vec::F score) {
  const uint8_t* keep = static_cast<const uint8_t*>(mask.data) + offset;
  const auto hidden = Vec::set1(-kInfinity);
  if (mask.stride_k == 1 && n >= Vec::kWidth) return Vec::select_bytes(keep, score, hidden);
  uint8_t buffer[Vec::kWidth < 8 ? 8 : Vec::kWidth] = {};
  for (int i = 0; i < n && i < Vec::kWidth; ++i) buffer[i] = keep[i * mask.stride_k];
  return Vec::select_bytes(buffer, score, hidden);
}

// Masks by bit (key - (seqlen_k - seqlen_q)) of the query's words; earlier keys are visible.
inline void apply_tree_mask(const AttentionArgs& args, const RowId& row, int64_t first_key,
                            Span span, float* s) {
  const int64_t prefix = row.sequence.seqlen_k - row.sequence.seqlen_q;
  const uint32_t* words = args.tree_mask + row.batch_idx * args.tree_stride_batch +
                          (row.sequence.row_q + row.q_idx) * args.tree_stride_q;
  for (int j = span.begin; j < span.end; ++j) {
    const int64_t bit = first_key + j - prefix;
    if (bit >= 0 && (words[bit / 32] >> (bit % 32) & 1u) == 0) s[j] = -kInfinity;
  }
}

// s[span] = masked(softcap(scale * s) + ALiBi + bias). `num_keys`: existing keys of the tile. The
// softmax then uses scale 1.
template <class Vec>
inline void general_scores(const Problem& p, const AttentionArgs& args, const RowId& row,
                           int64_t first_key, int num_keys, Span span, float* s) {
  constexpr int kW = Vec::kWidth;
  const auto scale = Vec::set1(static_cast<float>(p.softmax_scale));
  const auto cap = Vec::set1(static_cast<float>(p.softcap));
  const auto inverse_cap = Vec::set1(has_softcap(p) ? static_cast<float>(1.0 / p.softcap) : 0.0f);
  const float slope = p.has_alibi ? args.alibi_slopes[row.batch_idx * args.alibi_stride_batch +
                                                      row.head * args.alibi_stride_head]
                                  : 0.0f;
  const int64_t diagonal =
      row.q_idx + diagonal_shift(p, row.sequence.seqlen_q, row.sequence.seqlen_k);
  const int64_t bias_row = args.bias.data != nullptr ? score_row_offset(args.bias, row) : 0;
  const int64_t mask_row = args.mask.data != nullptr ? score_row_offset(args.mask, row) : 0;
  for (int j = span.begin / kW * kW; j < span.end; j += kW) {
    const int64_t key = first_key + j;
    auto x = Vec::mul(Vec::load(s + j), scale);
    if (has_softcap(p)) x = Vec::mul(cap, tanh<Vec>(Vec::mul(x, inverse_cap)));
    if (p.has_alibi) {
      const auto distance =
          Vec::abs(Vec::add(Vec::set1(static_cast<float>(key - diagonal)), Vec::lane_index()));
      x = Vec::fma(Vec::set1(-slope), distance, x);
    }
    if (args.bias.data != nullptr)
      x = Vec::add(x, load_bias<Vec>(args.bias, bias_row + key * args.bias.stride_k, num_keys - j));
    if (args.mask.data != nullptr)
      x = apply_mask<Vec>(args.mask, mask_row + key * args.mask.stride_k, num_keys - j, x);
    Vec::store(s + j, x);
  }
  if (p.has_tree_mask) apply_tree_mask(args, row, first_key, span, s);
}

// Zeroes dropped probabilities; the finished row is multiplied by the scale of kept ones.
inline void dropout_row(const Problem& p, const AttentionArgs& args, const RowId& row,
                        int64_t first_key, Span span, float* s) {
  const DropoutRow random{
      .seed = args.dropout_seed,
      .offset = args.dropout_offset,
      .batch_head = static_cast<uint32_t>(row.batch_idx * p.num_heads + row.head),
      .query = static_cast<uint32_t>(row.q_idx)};
  const uint32_t threshold = dropout_keep_threshold(p.dropout_p);
  for (int j = span.begin / 32 * 32; j < span.end; j += 32) {  // tiles start at multiples of 32
    const int64_t key = first_key + j;
    for (int lane = 0; lane < 4; ++lane) {
      const PhiloxWords words = random.group(key / 64, static_cast<int>(key % 64 / 32), lane);
      for (int i = 0; i < 8; ++i) {
        const int column = j + i / 2 * 8 + lane * 2 + i % 2;
        const uint32_t bits = words.word[i / 2] >> (i % 2 * 16) & 0xFFFFu;
        if (bits >= threshold && column >= span.begin && column < span.end) s[column] = 0.0f;
      }
    }
  }
}

}  // namespace headrace::cpu::flash
