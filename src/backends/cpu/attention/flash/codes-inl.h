// Quantised K and V. The products take codes as numbers, converted in registers, and their scales
// multiply scores and probabilities: a score is (q . code) * scale, a row of O the sum of
// (p * scale) * code. So a code costs no more than a 16-bit element, and no product is rounded.
// Codes with zero points become floats first.
#pragma once

#include "backends/cpu/attention/flash/integer_products-inl.h"
#include "backends/cpu/attention/flash/softmax-inl.h"
#include "backends/cpu/simd/prefetch.h"
#include "core/quantise.h"

namespace headrace::cpu::flash {

// Vectors of floats. Scalar code for codes would be a tenth of the library, for CPUs without AVX2.
template <class Isa>
inline constexpr bool kTakesCodes = Isa::kPair == 1 && Isa::Vec::kWidth > 1;

// A row of pairs of 4-bit codes -> 8-bit codes.
template <class Isa>
[[gnu::noinline]] inline void unpack_codes(const Int8* from, int64_t dim, Int8* to) {
  const auto* pairs = reinterpret_cast<const uint8_t*>(from);
  auto* codes = reinterpret_cast<int8_t*>(to);
  for (int64_t i = 0; i < dim / 2; ++i) {
    codes[2 * i] = static_cast<int8_t>((pairs[i] & 15) - 8);
    codes[2 * i + 1] = static_cast<int8_t>((pairs[i] >> 4) - 8);
  }
}

// scale[num] of words of scales and zero points, and middle[num], what the code `middle_code`
// stands for; whole vectors.
template <class Isa>
[[gnu::noinline]] inline void unpack_scales(const uint32_t* words, int64_t num, float middle_code,
                                            float* scale, float* middle) {
  using Vec = typename Isa::Vec;
  for (int64_t i = 0; i < num; i += Vec::kWidth) {
    typename Vec::F x, y;
    Words<Isa>::unpack_halves(words + i, x, y);
    Vec::store(scale + i, x);
    Vec::store(middle + i, Vec::fma(x, Vec::set1(middle_code), y));
  }
}

template <class Vec>
inline float dot(const float* a, const float* b, int64_t num) {
  auto sum = Vec::zero();
  for (int64_t i = 0; i < num; i += Vec::kWidth)
    sum = Vec::fma(load_columns<Vec>(a + i, num - i), load_columns<Vec>(b + i, num - i), sum);
  return Vec::sum(sum);
}

// x[span] += y
template <class Vec>
inline void add_to_columns(float* x, float y, Span span) {
  int j = span.begin;
  for (; j + Vec::kWidth <= span.end; j += Vec::kWidth)
    Vec::store(x + j, Vec::add(Vec::load(x + j), Vec::set1(y)));
  for (; j < span.end; ++j) x[j] += y;
}

// codes[dim], of a row of codes with zero points.
template <class Isa>
[[gnu::noinline]] inline void unpack_unsigned(DType format, const uint8_t* bytes, int64_t dim,
                                              uint8_t* codes) {
  if (format == DType::u2x4) {
    for (int64_t i = 0; i < dim / 4; ++i)
      for (int j = 0; j < 4; ++j) codes[4 * i + j] = bytes[i] >> 2 * j & 3;
  } else {
    for (int64_t i = 0; i < dim / 2; ++i) {
      codes[2 * i] = bytes[i] & 15;
      codes[2 * i + 1] = bytes[i] >> 4;
    }
  }
}

// scale[dim] and zero[dim], of channels that share them.
template <class Isa>
[[gnu::noinline]] inline void unpack_channels(const ScaleWords& x, int64_t dim, float* scale,
                                              float* zero) {
  for (int64_t d = 0; d < dim; ++d) {
    const ScaleAndZero channel = unpack_scale(x.words[d / x.channels]);
    scale[d] = channel.scale;
    zero[d] = channel.zero;
  }
}

// to[dim] = zero + scale * codes
template <class Isa>
[[gnu::noinline]] inline void scale_codes(const uint8_t* codes, int64_t dim, const float* scale,
                                          const float* zero, float* to) {
  for (int64_t d = 0; d < dim; ++d) to[d] = zero[d] + scale[d] * codes[d];
}

// The keys of one tile and KV head, in one form. E: the dtype of q and of recent keys.
template <class Isa, class E>
struct CodeTile {
  const Problem& p;
  const AttentionArgs& args;
  const Scratch& scratch;
  const Sequence& sequence;
  int64_t batch_idx, kv_head;
  KeyForm form;
  KeyRange seen;  // by any row of the task
  int64_t first_key;
  int num_keys;

  // K or V.
  struct Side {
    const Operand &stored, &recent;
    DType dtype;  // of `stored`
    int64_t dim;
    bool is_of_k;
  };
  Side k_side() const { return {args.k, args.recent.k, k_dtype_of(p), p.head_dim, true}; }
  Side v_side() const { return {args.v, args.recent.v, v_dtype_of(p), p.head_dim_v, false}; }

  // Addresses of the stored rows of `count` keys; behind the last key those of the last one.
  template <class C>
  [[gnu::noinline]] void find_stored(const Operand& x, int64_t key, int64_t count,
                                     const C** to) const {
    if (has_pages(p)) {
      const int32_t* pages = pages_of(args.paged, sequence, batch_idx);
      return find_addresses(p.page_size, pages, x, kv_head, sequence.seqlen_k, key, count, to);
    }
    const C* first =
        static_cast<const C*>(x.data) + row_offset(x, batch_idx, sequence.row_k + key, kv_head);
    const int64_t last = sequence.seqlen_k - key - 1;
    for (int64_t i = 0; i < count; ++i) to[i] = first + std::min(i, last) * x.stride_seq;
  }

  // The same of recent rows; of keys that no row sees, those of one that is seen.
  void find_recent(const Operand& x, const E** to) const {
    for (int64_t i = 0; i < num_keys; ++i) {
      const int64_t key = std::clamp(first_key + i, seen.begin, seen.end - 1);
      to[i] = static_cast<const E*>(x.data) +
              recent_offset(p, args.recent, x, sequence, batch_idx, key, kv_head);
    }
  }

  // Calls body(first, address, stride, count) for the scales of the keys [key, key + num), page by
  // page.
  template <class Body>
  void for_scales(const ScaleOperand& scale, int64_t key, int64_t num, Body body) const {
    const float* data = static_cast<const float*>(scale.data) + batch_idx * scale.stride_sequence;
    const Operand x{const_cast<float*>(data), scale.stride_batch, scale.stride_seq,
                    scale.stride_head};
    if (!has_pages(p))
      return body(0, data + row_offset(x, batch_idx, sequence.row_k + key, kv_head), x.stride_seq,
                  num);
    const int32_t* pages = pages_of(args.paged, sequence, batch_idx);
    for (int64_t i = 0; i < num;) {
      const int64_t slot = (key + i) % p.page_size;
      const int64_t count = std::min(num - i, p.page_size - slot);
      body(i, data + row_offset(x, pages[(key + i) / p.page_size], slot, kv_head), x.stride_seq,
           count);
      i += count;
    }
  }
  const ScaleOperand& scales_of(const Side& side) const {
    return side.is_of_k ? args.k_scale : args.v_scale;
  }
  // Scales and zero points of a stored key.
  const uint32_t* words_of(const Side& side, int64_t key) const {
    return scale_words(p, args, sequence, batch_idx, key, kv_head, side.is_of_k).words;
  }
  // to[num_heads][apart], of scales whose keys and heads are `stride` and `head_stride` apart.
  static void copy_scales(const float* from, int64_t stride, int64_t head_stride, int64_t num_keys,
                          int64_t num_heads, float* to, int64_t apart) {
    if (stride == 1) {
      // A line of each head at a time, as they are prefetched.
      constexpr int64_t kLine = 64 / sizeof(float);
      for (int64_t i = 0; i < num_keys; i += kLine)
        for (int64_t head = 0; head < num_heads; ++head) {
          const float* const line = from + head * head_stride + i;
          if (i + kLine <= num_keys)
            memcpy(to + head * apart + i, line, sizeof(float[kLine]));
          else
            std::copy(line, line + num_keys - i, to + head * apart + i);
        }
      return;
    }
    int64_t i = 0;
    for (; head_stride == 1 && num_heads % 4 == 0 && i + 4 <= num_keys; i += 4)
      for (int64_t head = 0; head < num_heads; head += 4)
        transpose_fours(from + i * stride + head, stride, to + head * apart + i, apart);
    for (; i < num_keys; ++i)
      for (int64_t head = 0; head < num_heads; ++head)
        to[head * apart + i] = from[i * stride + head * head_stride];
  }
  // The scales of the keys, for scores and probabilities, of `num_heads` KV heads from this one on,
  // `apart` floats from each other; null if there are none in this form.
  [[gnu::noinline]] const float* find_scales(const Side& side, int64_t num_heads, int64_t apart,
                                             float* to) const {
    const ScaleOperand& scale = scales_of(side);
    const bool is_fp8 = side.dtype == DType::f8e4m3;
    if (form == KeyForm::recent || has_zero_points(side.dtype)) return nullptr;
    const float unit = is_fp8 ? 1.0f / kE4m3Unit : 1.0f;
    if (scale.data == nullptr) {
      if (!is_fp8) return nullptr;
      for (int64_t head = 0; head < num_heads; ++head) fill(to + head * apart, 0, num_keys, unit);
      return to;
    }
    for_scales(scale, first_key, num_keys,
               [&](int64_t first, const float* from, int64_t stride, int64_t count) {
                 copy_scales(from, stride, scale.stride_head, count, num_heads, to + first, apart);
               });
    for (int64_t head = 0; is_fp8 && head < num_heads; ++head)
      for (int64_t i = 0; i < num_keys; ++i) to[head * apart + i] *= unit;
    return to;
  }
  // Prefetches this head's scales of the next tile. Where those of all `num_heads` share a line,
  // each head prefetches a part of the keys.
  [[gnu::noinline]] void fetch_scales(const Side& side, int64_t head, int64_t num_heads) const {
    const ScaleOperand& scale = scales_of(side);
    if (scale.data == nullptr || form == KeyForm::recent) return;
    const int64_t next = first_key + num_keys;
    int64_t begin = 0, end = std::min<int64_t>(num_keys, sequence.seqlen_k - next);
    if (has_zero_points(side.dtype) && side.is_of_k) {
      constexpr int64_t kLine = 64 / sizeof(uint32_t);
      for (int64_t i = 0; i < end; i += kZeroPointGroup)
        for (int64_t d = 0; d < side.dim; d += kLine) prefetch_line(words_of(side, next + i) + d);
      return;
    }
    if (num_heads * std::abs(scale.stride_head) <= 16) {
      begin = head * num_keys / num_heads;
      end = std::min(end, (head + 1) * num_keys / num_heads);
    }
    if (begin >= end) return;
    for_scales(scale, next + begin, end - begin,
               [](int64_t, const float* from, int64_t stride, int64_t count) {
                 const int64_t step =
                     std::max<int64_t>(16 / std::max<int64_t>(std::abs(stride), 1), 1);
                 for (int64_t i = 0; i < count; i += step) prefetch_line(from + i * stride);
               });
  }

  // Rows of floats of codes with zero points, in `to`, with kZeroPointRows more rows of scratch
  // memory behind them; of keys that no row sees, those of one that is seen.
  void dequantise(const Side& side, float* to) const {
    float* scale = to + num_keys * scratch.code_stride;
    float* zero = scale + scratch.code_stride;
    auto* codes = reinterpret_cast<uint8_t*>(zero + scratch.code_stride);
    const uint32_t* previous = nullptr;
    for (int i = 0; i < num_keys; ++i, to += scratch.code_stride) {
      const int64_t key = std::clamp(first_key + i, seen.begin, seen.end - 1);
      const ScaleWords x = scale_words(p, args, sequence, batch_idx, key, kv_head, side.is_of_k);
      if (x.words != previous) unpack_channels<Isa>(x, side.dim, scale, zero);
      previous = x.words;
      const auto* row = static_cast<const uint8_t*>(side.stored.data) +
                        key_offset(p, args.paged, side.stored, sequence, batch_idx, key, kv_head);
      unpack_unsigned<Isa>(side.dtype, row, side.dim, codes);
      scale_codes<Isa>(codes, side.dim, scale, zero, to);
    }
  }

  // Calls body(rows) with rows of codes, of E, or with kWiden of floats instead of E. Unpacked
  // codes and floats are written to `memory`, scratch.code_stride elements a row.
  template <bool kWiden, class Body>
  void with_rows(const Side& side, float* memory, Body body) const {
    const int64_t stride = scratch.code_stride;
    const auto with_codes = [&]<class C>(const C*) {
      Addresses<C, kMaxTileKeys> addresses;  // with kWiden also those that prefetches read
      find_stored(side.stored, first_key, kWiden ? kDirectAddresses<C> : num_keys, addresses);
      body(PagedRows<C>{addresses, 0});
    };
    if (form == KeyForm::stored && side.dtype == DType::i8)
      return with_codes(static_cast<const Int8*>(nullptr));
    if (form == KeyForm::stored && side.dtype == DType::f8e4m3)
      return with_codes(static_cast<const E4m3*>(nullptr));
    if (form == KeyForm::stored && side.dtype == DType::i4x2) {
      Addresses<Int8, kMaxTileKeys> pairs;
      find_stored(side.stored, first_key, num_keys, pairs);
      // As rows in pages: the products have one form for 8-bit codes.
      auto* codes = reinterpret_cast<Int8*>(memory);
      const Int8* addresses[kMaxTileKeys];
      for (int i = 0; i < num_keys; ++i) {
        addresses[i] = codes + i * stride;
        unpack_codes<Isa>(pairs[i], side.dim, codes + i * stride);
      }
      for (int64_t i = num_keys; i < kMaxTileKeys; ++i) addresses[i] = codes;
      return body(PagedRows<Int8>{addresses, 0});
    }
    if (form == KeyForm::stored && has_zero_points(side.dtype)) {
      dequantise(side, memory);
      return body(StridedRows<float>{memory, stride});
    }
    Addresses<E, kMaxTileKeys> addresses;
    if (form == KeyForm::recent)
      find_recent(side.recent, addresses);
    else
      find_stored(side.stored, first_key, num_keys, addresses);
    if constexpr (kWiden) {
      for (int i = 0; i < num_keys; ++i)
        Isa::copy_row(addresses[i], side.dim, memory + i * stride, side.dim);
      body(StridedRows<float>{memory, stride});
    } else {
      body(PagedRows<E>{addresses, 0});
    }
  }

  // Addresses of the stored rows of `count` keys from `key`, whatever their type.
  PagedRows<Int8> find_bytes(const Side& side, int64_t key, int64_t count,
                             const Int8** rows) const {
    const auto bytes = static_cast<int64_t>(dtype_bytes(side.dtype));
    const Operand x{side.stored.data, side.stored.stride_batch * bytes,
                    side.stored.stride_seq * bytes, side.stored.stride_head * bytes};
    find_stored(x, key, count, rows);
    return {rows, 0};
  }
  static int64_t bytes_of(const Side& side) {
    return stored_size(side.dtype, side.dim) * static_cast<int64_t>(dtype_bytes(side.dtype));
  }

  // Panels of K and V for many rows.
  [[gnu::noinline]] void pack(float* memory, float* k, float* v) const {
    with_rows<false>(k_side(), memory, [&](auto rows) {
      pack_keys<Isa>(rows, num_keys, p.head_dim, k, scratch.k_panel);
    });
    with_rows<false>(v_side(), memory, [&](auto rows) {
      pack_values<typename Isa::FloatIsa>(rows, num_keys, p.head_dim_v, v, scratch.v_panel);
    });
  }
};

}  // namespace headrace::cpu::flash
