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

// scale[num] of words of scales and zero points, and middle[num], what the code `middle_code`
// stands for.
template <class Isa>
inline void unpack_scales(const uint32_t* words, int64_t num, float middle_code, float* scale,
                          float* middle) {
  using Vec = typename Isa::Vec;
  int64_t i = 0;
  for (; i + Vec::kWidth <= num; i += Vec::kWidth) {
    typename Vec::F x, y;
    Words<Isa>::unpack_halves(words + i, x, y);
    Vec::store(scale + i, x);
    Vec::store(middle + i, Vec::fma(x, Vec::set1(middle_code), y));
  }
  for (; i < num; ++i) {
    const ScaleAndZero both = unpack_scale(words[i]);
    scale[i] = both.scale;
    middle[i] = both.zero + both.scale * middle_code;
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
  // Scales and zero points of a stored key.
  const uint32_t* words_of(const Side& side, int64_t key) const {
    return scale_words(p, args, batch_idx, key, kv_head, side.is_of_k).words;
  }
  // The scales of the keys, for scores and probabilities, of `num_heads` KV heads from this one on,
  // `apart` floats from each other; null if there are none in this form. Prefetches those of the
  // next tile.
  const float* find_scales(const Side& side, int64_t num_heads, int64_t apart, float* to) const {
    const ScaleOperand& scale = side.is_of_k ? args.k_scale : args.v_scale;
    if (scale.data == nullptr || form == KeyForm::recent || has_zero_points(side.dtype))
      return nullptr;
    for_scales(scale, first_key, num_keys,
               [&](int64_t first, const float* from, int64_t stride, int64_t count) {
                 for (int64_t i = 0; i < count; ++i, from += stride)
                   for (int64_t head = 0; head < num_heads; ++head)
                     to[head * apart + first + i] = from[head * scale.stride_head];
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

// Q of products with codes: words, and with zero points rows of floats in the order of the codes.
struct CodeQueries {
  WordRows words;
  const float* ordered;
};
// Loads row r of a head.
template <class Isa>
inline void load_code_queries(const Problem& p, const float* row, const WordRows& words,
                              float* ordered, int64_t r) {
  using Products = IntegerProducts<Isa>;
  using WithZero = ZeroPointProducts<Isa>;
  const DType dtype = k_dtype_of(p);
  float parts[word_stride(kMaxIntegerDim)];
  const auto order = [&]<int kParts, int kGroup>(float* to) {
    order_parts<Isa, kParts, kGroup>(row, p.head_dim, to, words.stride);
  };
  words.offsets[r] = 0;
  if (dtype == DType::i8) {
    order.template operator()<1, 1>(parts);
    load_words<Isa, false>(parts, nullptr, words, r);
  } else if (dtype == DType::i4x2) {
    order.template operator()<4, Products::kGroup>(parts);
    words.offsets[r] = code_offset<4>(load_words<Isa, false>(parts, nullptr, words, r));
  } else if (dtype == DType::u4x2) {
    order.template operator()<WithZero::template kParts<4>, WithZero::template kGroup<4>>(
        ordered + r * words.stride);
  } else if (dtype == DType::u2x4) {
    order.template operator()<WithZero::template kParts<2>, WithZero::template kGroup<2>>(
        ordered + r * words.stride);
  }
}

// The products of few rows with a tile of codes, which are read as they are, for some KV heads that
// are adjacent in memory.
template <class Isa, class E>
class DirectCodes {
  using Tile = CodeTile<Isa, E>;
  using Rows = PagedRows<Int8>;

 public:
  // `next`: rows of the next keys, of the first head, to be prefetched.
  DirectCodes(const Tile& first, int64_t num_heads, bool multiplies_integers, const Rows& next,
              float* scratch)
      : tile_(first),
        memory_(scratch),
        has_words_(multiplies_integers && first.form == KeyForm::stored),
        keys_(find_rows(tile_.k_side(), key_rows_)),
        values_(find_rows(tile_.v_side(), value_rows_)),
        next_values_(values_, num_heads * Tile::bytes_of(tile_.v_side()), kDirectKeys),
        next_keys_(next, num_heads * Tile::bytes_of(tile_.k_side()), kDirectKeys) {}

  // The head of what follows, and its Q.
  void select(int64_t kv_head, const CodeQueries& queries) {
    const int64_t heads = kv_head - tile_.kv_head;
    const auto move = [heads](const auto& side, Rows& rows) {
      rows = rows.shifted(heads * side.stored.stride_head *
                          static_cast<int64_t>(dtype_bytes(side.dtype)));
    };
    move(tile_.k_side(), keys_);
    move(tile_.v_side(), values_);
    tile_.kv_head = kv_head;
    queries_ = queries;
  }

  // Rows of V to be prefetched.
  Fetch<Rows>& next_values() { return next_values_; }

  // s[num_rows][kDirectKeys]
  [[gnu::noinline]] void scores(const typename Isa::Unit* q, int64_t num_rows, Span block,
                                float* s) {
    const Side side = tile_.k_side();
    if constexpr (has_integer_products<Isa, E>) {
      if (has_words_) {
        if (side.dtype == DType::i8) return integer_scores<8>(num_rows, block, s);
        if (side.dtype == DType::i4x2) return integer_scores<4>(num_rows, block, s);
        if (side.dtype == DType::u4x2) return zero_point_scores<4>(num_rows, block, s);
        if (side.dtype == DType::u2x4) return zero_point_scores<2>(num_rows, block, s);
      }
    }
    tile_.template with_rows<true>(side, memory_, [&](auto rows) {
      const Operands<decltype(rows)> keys{rows.from(block.begin), block.end - block.begin,
                                          tile_.p.head_dim};
      direct_scores<Isa>(q, tile_.scratch.q_stride, num_rows, keys, next_values_, s + block.begin);
    });
  }
  // o[num_rows][o_stride] = o * row_scale + P V; each row of P is zero outside its span.
  [[gnu::noinline]] void output(const float* p, int64_t num_rows, Span block, const Span* spans,
                                float* o, const float* row_scale) {
    const Side side = tile_.v_side();
    if constexpr (has_integer_products<Isa, E>) {
      if (has_words_) {
        if (side.dtype == DType::i8) return integer_output<8>(p, num_rows, block, o, row_scale);
        if (side.dtype == DType::i4x2) return integer_output<4>(p, num_rows, block, o, row_scale);
        if (side.dtype == DType::u4x2)
          return zero_point_output<4>(p, num_rows, block, spans, o, row_scale);
        if (side.dtype == DType::u2x4)
          return zero_point_output<2>(p, num_rows, block, spans, o, row_scale);
      }
    }
    tile_.template with_rows<true>(side, memory_, [&](auto rows) {
      const Operands<decltype(rows)> values{rows, block.end, tile_.p.head_dim_v};
      direct_output<typename Isa::FloatIsa>(p, num_rows, values, next_keys_, block.begin, o,
                                            tile_.scratch.o_stride, row_scale);
    });
  }

 private:
  using Side = typename Tile::Side;
  using Vec = typename Isa::Vec;
  using Products = IntegerProducts<Isa>;
  using RowAddresses = Addresses<Int8, kDirectAddresses<Int8>>;

  Rows find_rows(const Side& side, RowAddresses& rows) const {
    return tile_.find_bytes(side, tile_.first_key, kDirectAddresses<Int8>, rows);
  }
  static int lines_of(const Side& side) {
    return static_cast<int>(ceil_div<int64_t>(Tile::bytes_of(side), 64));
  }
  // Scores of the keys [begin, end) in fours; meanwhile prefetches V.
  template <class P, int kBits>
  void dot_keys(const Side& side, int64_t num_rows, Span span, float* s) {
    const int lines = lines_of(side), value_lines = lines_of(tile_.v_side());
    for (int key = span.begin / 4 * 4; key < span.end; key += 4) {
      for (int i = 1; i < value_lines; ++i) next_values_.template lines<4>();
      for (int k = 0; k < 4; ++k)
        for (int i = 0; i < lines; ++i)
          __builtin_prefetch(keys_[key + k + kNearRows<Int8>] + 64 * i, 0, 3);
      for_row_blocks(
          num_rows, [&](int64_t i, auto rows) __attribute__((always_inline)) {
            P::template dot_keys<rows.rows, kBits>(queries_.words, i, keys_.from(key), side.dim,
                                                   s + i * kDirectKeys + key);
          });
    }
  }

  template <int kBits>
  void integer_scores(int64_t num_rows, Span block, float* s) {
    dot_keys<Products, kBits>(tile_.k_side(), num_rows, block, s);
  }

  // Keys of a group share scales and zero points by channel: q k is the sum of
  // (q scale) (code - middle), plus that of q (zero + scale middle), once for the group.
  template <int kBits>
  void zero_point_scores(int64_t num_rows, Span block, float* s) {
    using P = ZeroPointProducts<Isa>;
    constexpr int kGroup = static_cast<int>(kZeroPointGroup);
    static_assert(kDirectKeys % kGroup == 0);  // tiles hold whole groups
    const Side side = tile_.k_side();
    const WordRows& words = queries_.words;
    uint32_t ordered[word_stride(kMaxIntegerDim)];
    float scale[word_stride(kMaxIntegerDim)], middle[word_stride(kMaxIntegerDim)];
    for (int first = block.begin / kGroup * kGroup; first < block.end; first += kGroup) {
      const Span span{std::max(first, block.begin), std::min(first + kGroup, block.end)};
      order_parts<Isa, P::template kParts<kBits>, P::template kGroup<kBits>>(
          tile_.words_of(side, tile_.first_key + span.begin), side.dim, ordered, words.stride);
      unpack_scales<Isa>(ordered, words.stride, kMiddle<kBits>, scale, middle);
      float base[kDirectRows];
      for (int64_t r = 0; r < num_rows; ++r) {
        const float* row = queries_.ordered + r * words.stride;
        words.offsets[r] = code_offset<kBits>(load_words<Isa, true>(row, scale, words, r));
        base[r] = dot<Vec>(row, middle, words.stride);
      }
      dot_keys<P, kBits>(side, num_rows, span, s);
      for (int64_t r = 0; r < num_rows; ++r)
        add_to_columns<Vec>(s + r * kDirectKeys, base[r], span);
    }
  }

  struct Weights {
    int16_t words[kDirectRows * kDirectKeys];
    float factors[kDirectRows];
    int32_t offsets[kDirectRows];
    WordRows rows() { return {words, kDirectKeys, factors, offsets}; }
  };

  // V of the keys of `block` in whole pairs, row behind row. Products read each line several times,
  // and rows that are a multiple of 1 KiB apart share so few sets of the L1 cache that lines were
  // lost in between.
  StridedRows<Int8> copy_values(const Side& side, Span block) const {
    const int64_t bytes = Tile::bytes_of(side), stride = round_up(bytes, kValueBytes);
    auto* const to = reinterpret_cast<Int8*>(memory_);
    for (int key = block.begin / 2 * 2; key < block.end + block.end % 2; ++key) {
      const Int8* const from = values_[key];
      const Int8* const near = values_[key + kNearRows<Int8>];
      Int8* const row = to + key * stride;
      int64_t i = 0;
      for (; i + kValueBytes <= bytes; i += kValueBytes) {
        __builtin_prefetch(near + i, 0, 3);
        memcpy(row + i, from + i, kValueBytes);
      }
      if (i == bytes) continue;
      __builtin_prefetch(near + i, 0, 3);
      memcpy(row + i, from + i, static_cast<size_t>(bytes - i));
      memset(row + bytes, 0, static_cast<size_t>(stride - bytes));
    }
    return {to, stride};
  }

  // Columns [c, c + kColumns) of O, over the keys of `block`; meanwhile prefetches the next keys.
  template <class P, int kBits>
  void weigh(const Side& side, const StridedRows<Int8>& values, const WordRows& weights,
             int64_t num_rows, Span block, int64_t c, float* o, const float* row_scale) {
    const int lines = lines_of(tile_.k_side());
    const int64_t stride = tile_.scratch.o_stride;
    for_row_blocks(
        num_rows, [&](int64_t r, auto rows) __attribute__((always_inline)) {
          const Fetcher<Rows> fetcher{next_keys_, rows.is_first && c == 0 ? lines : 0};
          P::template weigh<rows.rows, kBits>(weights, r, values, block, c, side.dim, fetcher,
                                              o + r * stride, stride, row_scale + r);
        });
  }

  template <int kBits>
  void integer_output(const float* p, int64_t num_rows, Span block, float* o,
                      const float* row_scale) {
    const Side side = tile_.v_side();
    const StridedRows<Int8> values = copy_values(side, block);
    Weights weights;
    for (int64_t r = 0; r < num_rows; ++r) {
      const uint32_t sum =
          load_weight_words<Isa>(p + r * kDirectKeys, nullptr, block, weights.rows(), r);
      weights.offsets[r] = code_offset<kBits>(sum);
    }
    for (int64_t c = 0; c < side.dim; c += Products::template kColumns<kBits>)
      weigh<Products, kBits>(side, values, weights.rows(), num_rows, block, c, o, row_scale);
  }

  // A group of channels of a value has a scale and a zero point: the sum of p v is that of
  // (p scale) (code - middle) plus that of p (zero + scale middle).
  template <int kBits>
  void zero_point_output(const float* p, int64_t num_rows, Span block, const Span* spans, float* o,
                         const float* row_scale) {
    using P = ZeroPointProducts<Isa>;
    constexpr int64_t kGroup = kZeroPointGroup;
    static_assert(P::template kColumns<kBits> == kGroup);
    const Side side = tile_.v_side();
    const StridedRows<Int8> values = copy_values(side, block);
    const int64_t num_groups = ceil_div(side.dim, kGroup);
    // [num_groups][kDirectKeys], behind the copied rows.
    uint32_t* words = reinterpret_cast<uint32_t*>(memory_) + kDirectKeys * values.stride / 4;
    if (block.begin > 0 || block.end < kDirectKeys)
      memset(words, 0, static_cast<size_t>(num_groups * kDirectKeys) * sizeof *words);
    tile_.for_scales(tile_.args.v_scale, tile_.first_key + block.begin, block.end - block.begin,
                     [&](int64_t first, const float* from, int64_t stride, int64_t count) {
                       const auto* key = reinterpret_cast<const uint32_t*>(from);
                       for (int64_t i = block.begin + first; i < block.begin + first + count;
                            ++i, key += stride)
                         for (int64_t g = 0; g < num_groups; ++g)
                           words[g * kDirectKeys + i] = key[g];
                     });
    Weights weights;
    for (int64_t c = 0; c < side.dim; c += kGroup) {
      float scale[kDirectKeys], middle[kDirectKeys], base[kDirectRows];
      unpack_scales<Isa>(words + c / kGroup * kDirectKeys, kDirectKeys, kMiddle<kBits>, scale,
                         middle);
      for (int64_t r = 0; r < num_rows; ++r) {
        const float* row = p + r * kDirectKeys;
        const Span span = spans[r];  // the scale of a key that a row does not see may be NaN
        weights.offsets[r] =
            code_offset<kBits>(load_weight_words<Isa>(row, scale, span, weights.rows(), r));
        base[r] = dot<Vec>(row + span.begin, middle + span.begin, span.end - span.begin);
      }
      weigh<P, kBits>(side, values, weights.rows(), num_rows, block, c, o, row_scale);
      const Span columns{0, static_cast<int>(std::min(kGroup, side.dim - c))};
      for (int64_t r = 0; r < num_rows; ++r)
        add_to_columns<Vec>(o + r * tile_.scratch.o_stride + c, base[r], columns);
    }
  }

  Tile tile_;      // of the selected head
  float* memory_;  // for floats, or for copies of V
  bool has_words_;
  RowAddresses key_rows_, value_rows_;  // of the first head
  Rows keys_, values_;                  // of the selected head
  CodeQueries queries_{};
  Fetch<Rows> next_values_, next_keys_;
};

}  // namespace headrace::cpu::flash
