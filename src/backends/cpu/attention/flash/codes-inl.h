// Quantised K and V. The products take codes as numbers, converted in registers, and their scales
// multiply scores and probabilities: a score is (q . code) * scale, a row of O the sum of
// (p * scale) * code. So a code costs no more than a 16-bit element, and no product is rounded.
// Codes with zero points become floats first.
#pragma once

#include "backends/cpu/attention/flash/integer_products-inl.h"
#include "backends/cpu/attention/flash/softmax-inl.h"
#include "core/quantise.h"

namespace headrace::cpu::flash {

// Vectors of floats. Scalar code for codes would be a tenth of the library, for CPUs without AVX2.
template <class Isa>
inline constexpr bool kTakesCodes = Isa::kPair == 1 && Isa::Vec::kWidth > 1;

// s[span] *= scales[span]. Columns outside may hold anything, NaN included.
template <class Isa>
inline void scale_columns(float* s, const float* scales, Span span) {
  using Vec = typename Isa::Vec;
  int j = span.begin;
  for (; j + Vec::kWidth <= span.end; j += Vec::kWidth)
    Vec::store(s + j, Vec::mul(Vec::load(s + j), Vec::load(scales + j)));
  for (; j < span.end; ++j) s[j] *= scales[j];
}

// A row of pairs of 4-bit codes -> 8-bit codes.
template <class Isa>
inline void unpack_codes(const Int8* from, int64_t dim, Int8* to) {
  const auto* pairs = reinterpret_cast<const uint8_t*>(from);
  auto* codes = reinterpret_cast<int8_t*>(to);
  for (int64_t i = 0; i < dim / 2; ++i) {
    codes[2 * i] = static_cast<int8_t>((pairs[i] & 15) - 8);
    codes[2 * i + 1] = static_cast<int8_t>((pairs[i] >> 4) - 8);
  }
}

// codes[dim], of a row of codes with zero points.
template <class Isa>
inline void unpack_unsigned(DType format, const uint8_t* bytes, int64_t dim, uint8_t* codes) {
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
  void find_stored(const Operand& x, int64_t key, int64_t count, const C** to) const {
    if (has_pages(p)) {
      const int32_t* pages = args.paged.block_table + batch_idx * args.paged.stride_batch;
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
    const int32_t* pages = args.paged.block_table + batch_idx * args.paged.stride_batch;
    for (int64_t i = 0; i < num;) {
      const int64_t slot = (key + i) % p.page_size;
      const int64_t count = std::min(num - i, p.page_size - slot);
      body(i, data + row_offset(x, pages[(key + i) / p.page_size], slot, kv_head), x.stride_seq,
           count);
      i += count;
    }
  }
  // The scales of the keys, for scores and probabilities; null if there are none in this form.
  // Prefetches those of the next tile.
  const float* find_scales(const Side& side, float* to) const {
    const ScaleOperand& scale = side.is_of_k ? args.k_scale : args.v_scale;
    if (scale.data == nullptr || form == KeyForm::recent || has_zero_points(side.dtype))
      return nullptr;
    for_scales(scale, first_key, num_keys,
               [&](int64_t first, const float* from, int64_t stride, int64_t count) {
                 for (int64_t i = 0; i < count; ++i) to[first + i] = from[i * stride];
               });
    const int64_t next = first_key + num_keys;
    for_scales(scale, next, std::min<int64_t>(num_keys, sequence.seqlen_k - next),
               [&](int64_t, const float* from, int64_t stride, int64_t count) {
                 const int64_t step =
                     std::max<int64_t>(16 / std::max<int64_t>(std::abs(stride), 1), 1);
                 for (int64_t i = 0; i < count; i += step)
                   __builtin_prefetch(from + i * stride, 0, 3);
               });
    return to;
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
      const ScaleWords x = scale_words(p, args, batch_idx, key, kv_head, side.is_of_k);
      for (int64_t d = 0; x.words != previous && d < side.dim; ++d) {
        const ScaleAndZero channel = unpack_scale(x.words[d / x.channels]);
        scale[d] = channel.scale;
        zero[d] = channel.zero;
      }
      previous = x.words;
      const auto* row = static_cast<const uint8_t*>(side.stored.data) +
                        key_offset(p, args.paged, side.stored, sequence, batch_idx, key, kv_head);
      unpack_unsigned<Isa>(side.dtype, row, side.dim, codes);
      for (int64_t d = 0; d < side.dim; ++d) to[d] = zero[d] + scale[d] * codes[d];
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

  // To prefetch the stored rows of kDirectKeys keys from `key`, or of this tile after the last key.
  Fetch<PagedRows<Int8>> fetch(const Side& side, int64_t key, const Int8** rows) const {
    const auto bytes = static_cast<int64_t>(dtype_bytes(side.dtype));
    const Operand x{side.stored.data, side.stored.stride_batch * bytes,
                    side.stored.stride_seq * bytes, side.stored.stride_head * bytes};
    find_stored(x, key < sequence.seqlen_k ? key : first_key, kDirectKeys, rows);
    const int64_t width = stored_size(side.dtype, side.dim) * bytes;
    return {PagedRows<Int8>{rows, 0}, width, kDirectKeys};
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

// The products of few rows with a tile of codes, which are read as they are.
template <class Isa, class E>
struct DirectCodes {
  const CodeTile<Isa, E>& tile;
  float* memory;
  Addresses<Int8, kDirectKeys> value_rows, key_rows;
  Fetch<PagedRows<Int8>> next_values, next_keys;
  WordRows query_words{};  // null: products of floats

  DirectCodes(const CodeTile<Isa, E>& codes, float* scratch)
      : tile(codes),
        memory(scratch),
        next_values(codes.fetch(codes.v_side(), codes.first_key, value_rows)),
        next_keys(codes.fetch(codes.k_side(), codes.first_key + kDirectKeys, key_rows)) {}

  // s[num_rows][kDirectKeys]
  [[gnu::noinline]] void scores(const typename Isa::Unit* q, int64_t num_rows, Span block,
                                float* s) {
    if constexpr (has_integer_products<Isa, E>) {
      if (has_words(tile.k_side()))
        return is_4_bit(tile.k_side()) ? integer_scores<true>(num_rows, block, s)
                                       : integer_scores<false>(num_rows, block, s);
    }
    tile.template with_rows<true>(tile.k_side(), memory, [&](auto rows) {
      const Operands<decltype(rows)> keys{rows.from(block.begin), block.end - block.begin,
                                          tile.p.head_dim};
      direct_scores<Isa>(q, tile.scratch.q_stride, num_rows, keys, next_values, s + block.begin);
    });
  }
  // o[num_rows][o_stride] = o * row_scale + P V
  [[gnu::noinline]] void output(const float* p, int64_t num_rows, Span block, float* o,
                                const float* row_scale) {
    if constexpr (has_integer_products<Isa, E>) {
      if (has_words(tile.v_side()))
        return is_4_bit(tile.v_side()) ? integer_output<true>(p, num_rows, block, o, row_scale)
                                       : integer_output<false>(p, num_rows, block, o, row_scale);
    }
    tile.template with_rows<true>(tile.v_side(), memory, [&](auto rows) {
      const Operands<decltype(rows)> values{rows, block.end, tile.p.head_dim_v};
      direct_output<typename Isa::FloatIsa>(p, num_rows, values, next_keys, block.begin, o,
                                            tile.scratch.o_stride, row_scale);
    });
  }

 private:
  using Side = typename CodeTile<Isa, E>::Side;
  using Products = IntegerProducts<Isa>;
  using Rows = Addresses<Int8, kDirectAddresses<Int8>>;

  static bool is_4_bit(const Side& side) { return side.dtype == DType::i4x2; }
  bool has_words(const Side& side) const {
    return query_words.words != nullptr && tile.form == KeyForm::stored &&
           (side.dtype == DType::i8 || is_4_bit(side));
  }
  static int lines_of(const Side& side) {
    return static_cast<int>(ceil_div<int64_t>(is_4_bit(side) ? side.dim / 2 : side.dim, 64));
  }

  template <bool kIs4>
  void integer_scores(int64_t num_rows, Span block, float* s) {
    const Side side = tile.k_side();
    Rows keys;
    tile.find_stored(side.stored, tile.first_key, kDirectAddresses<Int8>, keys);
    const int lines = lines_of(side), value_lines = lines_of(tile.v_side());
    for (int key = block.begin / 4 * 4; key < block.end; key += 4) {
      for (int i = 1; i < value_lines; ++i) next_values.template lines<4>();
      for (int k = 0; k < 4; ++k)
        for (int i = 0; i < lines; ++i)
          __builtin_prefetch(keys[key + k + kNearRows<Int8>] + 64 * i, 0, 3);
      for_row_blocks(
          num_rows, [&](int64_t i, auto rows) __attribute__((always_inline)) {
            Products::template dot_keys<rows.rows, kIs4>(query_words, i, keys + key, side.dim,
                                                         s + i * kDirectKeys + key);
          });
    }
  }

  template <bool kIs4>
  void integer_output(const float* p, int64_t num_rows, Span block, float* o,
                      const float* row_scale) {
    const Side side = tile.v_side();
    Rows values;
    tile.find_stored(side.stored, tile.first_key, kDirectAddresses<Int8>, values);
    int16_t words[kDirectRows * kDirectKeys];
    float factors[kDirectRows];
    int32_t offsets[kDirectRows];
    const WordRows weights{words, kDirectKeys, factors, offsets};
    for (int64_t r = 0; r < num_rows; ++r)
      Products::template load_weights<kIs4>(p + r * kDirectKeys, block, weights, r);
    const int lines = lines_of(tile.k_side());
    const int64_t stride = tile.scratch.o_stride;
    for_row_blocks(
        num_rows, [&](int64_t r, auto rows) __attribute__((always_inline)) {
          for (int64_t c = 0; c < side.dim; c += kIs4 ? 128 : 64) {
            for (int half = 0; half < (kIs4 ? 2 : 1); ++half) {
              const bool is_near = rows.is_first && half == 0;
              Fetcher<PagedRows<Int8>> fetcher{next_keys, is_near && c == 0 ? lines : 0, is_near};
              Products::template weigh_columns<rows.rows, kIs4>(
                  weights, r, values, block, {c, side.dim, half == 1}, fetcher, o + r * stride,
                  stride, row_scale + r);
            }
          }
        });
  }
};

}  // namespace headrace::cpu::flash
