// The products of few rows with a tile of codes.
#pragma once

#include "backends/cpu/attention/flash/codes-inl.h"

namespace headrace::cpu::flash {

// Q of products with codes: words, and with zero points rows of floats in the order of the codes.
struct CodeQueries {
  WordRows words;
  float* ordered;  // [rows][words.stride]
};
// From `row` on, before the end of a worker's scratch memory.
inline CodeQueries code_queries_at(const Problem& p, float* scratch_end, int64_t row) {
  float* ordered = scratch_end - ordered_floats(p);
  return {word_rows(ordered - word_floats(p.head_dim), p.head_dim, row),
          ordered + row * word_stride(p.head_dim)};
}
// Loads row r of a head.
template <class Isa>
inline void load_code_queries(const Problem& p, const float* row, const CodeQueries& queries,
                              int64_t r) {
  const WordRows& words = queries.words;
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
        queries.ordered + r * words.stride);
  } else if (dtype == DType::u2x4) {
    order.template operator()<WithZero::template kParts<2>, WithZero::template kGroup<2>>(
        queries.ordered + r * words.stride);
  }
}

// The products of few rows with a tile of codes, which are read as they are, for some KV heads.
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
        next_values_(fetch_of(tile_.v_side(), values_, num_heads)),
        next_keys_(fetch_of(tile_.k_side(), next, num_heads)),
        first_head_(first.kv_head),
        num_heads_(num_heads),
        first_k_scales_(first.find_scales(tile_.k_side(), num_heads, kDirectKeys, scales_[0])),
        first_v_scales_(first.find_scales(tile_.v_side(), num_heads, kDirectKeys, scales_[1])) {}

  // The head of what follows, and its Q.
  void select(int64_t kv_head, const CodeQueries& queries) {
    const int64_t heads = kv_head - tile_.kv_head;
    const auto move = [heads](const auto& side, Rows& rows) {
      rows = rows.shifted(heads * stride_head_of(side));
    };
    move(tile_.k_side(), keys_);
    move(tile_.v_side(), values_);
    tile_.kv_head = kv_head;
    queries_ = queries;
  }

  // For scores and for probabilities; null: none. Integer products multiply those of V themselves.
  const float* k_scales() const { return scales_of_head(first_k_scales_); }
  const float* v_scales() const {
    return has_words(tile_.v_side()) ? nullptr : scales_of_head(first_v_scales_);
  }
  // Rows of V to be prefetched, and of how many scores() leaves lines.
  Fetch<Rows>& next_values() { return next_values_.lines(); }
  int64_t rows_left(Span block) const {
    return has_words(tile_.k_side()) ? 0 : block.end - block.begin;
  }

  // s[num_rows][kDirectKeys]
  [[gnu::noinline]] void scores(const typename Isa::Unit* q, int64_t num_rows, Span block,
                                float* s) {
    const Side side = tile_.k_side();
    next_values_.select(tile_.kv_head - first_head_);
    if constexpr (has_integer_products<Isa, E>) {
      if (has_words(side)) {
        if (side.dtype == DType::i8) return integer_scores<8>(num_rows, block, s);
        if (side.dtype == DType::i4x2) return integer_scores<4>(num_rows, block, s);
        if (side.dtype == DType::u4x2) return zero_point_scores<4>(num_rows, block, s);
        if (side.dtype == DType::u2x4) return zero_point_scores<2>(num_rows, block, s);
      }
    }
    tile_.template with_rows<true>(side, memory_, [&](auto rows) {
      const Operands<decltype(rows)> keys{rows.from(block.begin), block.end - block.begin,
                                          tile_.p.head_dim};
      direct_scores<Isa>(q, tile_.scratch.q_stride, num_rows, keys, next_values_.lines(),
                         s + block.begin);
    });
  }
  // o[num_rows][o_stride] = o * row_scale + P V; each row of P is zero outside its span.
  [[gnu::noinline]] void output(const float* p, int64_t num_rows, Span block, const Span* spans,
                                float* o, const float* row_scale) {
    const Side side = tile_.v_side();
    next_keys_.select(tile_.kv_head - first_head_);
    tile_.fetch_scales(tile_.k_side(), tile_.kv_head - first_head_, num_heads_);
    tile_.fetch_scales(side, tile_.kv_head - first_head_, num_heads_);
    if constexpr (has_integer_products<Isa, E>) {
      if (has_words(side)) {
        if (side.dtype == DType::i8)
          return integer_output<8>(p, num_rows, block, spans, o, row_scale);
        if (side.dtype == DType::i4x2)
          return integer_output<4>(p, num_rows, block, spans, o, row_scale);
        if (side.dtype == DType::u4x2)
          return zero_point_output<4>(p, num_rows, block, spans, o, row_scale);
        if (side.dtype == DType::u2x4)
          return zero_point_output<2>(p, num_rows, block, spans, o, row_scale);
      }
    }
    tile_.template with_rows<true>(side, memory_, [&](auto rows) {
      const Operands<decltype(rows)> values{rows, block.end, tile_.p.head_dim_v};
      direct_output<typename Isa::FloatIsa>(p, num_rows, values, next_keys_.lines(), block.begin, o,
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
  static HeadFetch<Rows> fetch_of(const Side& side, const Rows& rows, int64_t num_heads) {
    return {rows, Tile::bytes_of(side), stride_head_of(side), num_heads, kDirectKeys};
  }
  static int64_t stride_head_of(const Side& side) {
    return side.stored.stride_head * static_cast<int64_t>(dtype_bytes(side.dtype));
  }
  bool has_words(const Side& side) const {
    return has_integer_products<Isa, E> && has_words_ && side.dtype != DType::f8e4m3;
  }
  const float* scales_of_head(const float* first) const {
    return first == nullptr ? nullptr : first + (tile_.kv_head - first_head_) * kDirectKeys;
  }
  static int lines_of(const Side& side) {
    return static_cast<int>(ceil_div<int64_t>(Tile::bytes_of(side), 64));
  }
  // Scores of the keys of `span` in fours; meanwhile prefetches V. Blocks of rows take turns.
  template <class P, int kBits>
  void dot_keys(const Side& side, int64_t num_rows, Span span, float* s) {
    constexpr int kTurn = 16;  // keys
    const int lines = lines_of(side), value_lines = lines_of(tile_.v_side());
    const int step = num_rows <= kBlockRows ? kDirectKeys : kTurn;
    for (int first = span.begin / 4 * 4; first < span.end; first += step) {
      const Span turn{first, std::min(first + step, span.end)};
      for_row_blocks(
          num_rows, [&](int64_t i, auto rows) __attribute__((always_inline)) {
            const ValueFetcher<Rows> fetcher{next_values_.lines(), rows.is_first ? value_lines : 0,
                                             rows.is_first ? lines : 0};
            P::template dot_keys<rows.rows, kBits>(queries_.words, i, keys_, turn, side.dim,
                                                   fetcher, s + i * kDirectKeys);
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

  struct PairOfWords {
    int16_t words[2];
  };
  // Of P, with kGroups factors, offsets and words for a row and key. The words of a pair of keys
  // lie side by side, group by group.
  template <int kGroups>
  struct Weights {
    int16_t words[kDirectRows * kDirectKeys * kGroups + 32];  // a vector behind the last
    float factors[kDirectRows * kGroups];
    int32_t offsets[kDirectRows * kGroups];
    WordRows rows() { return {words, kDirectKeys * kGroups, factors, offsets}; }
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
  template <class P, int kBits, class Values>
  void weigh(const Side& side, const Values& values, const WordRows& weights, int64_t num_rows,
             Span block, int64_t c, float* o, const float* row_scale) {
    const int lines = lines_of(tile_.k_side());
    const int64_t stride = tile_.scratch.o_stride;
    for_row_blocks(
        num_rows, [&](int64_t r, auto rows) __attribute__((always_inline)) {
          const Fetcher<Rows> fetcher{next_keys_.lines(), rows.is_first && c == 0 ? lines : 0};
          P::template weigh<rows.rows, kBits>(weights, r, values, block, c, side.dim, fetcher,
                                              o + r * stride, stride, row_scale + r);
        });
  }

  template <int kBits>
  void integer_output(const float* p, int64_t num_rows, Span block, const Span* spans, float* o,
                      const float* row_scale) {
    const Side side = tile_.v_side();
    const float* const scales = scales_of_head(first_v_scales_);
    Weights<1> weights;
    for (int64_t r = 0; r < num_rows; ++r) {
      // The scale of a key that a row does not see may be NaN.
      const uint32_t sum =
          load_weight_words<Isa>(p + r * kDirectKeys, scales, spans[r], weights.rows(), r);
      weights.offsets[r] = code_offset<kBits>(sum);
    }
    with_values<Products, kBits>(side, num_rows, block, [&](const auto& values) {
      for (int64_t c = 0; c < side.dim; c += Products::template kColumns<kBits>)
        weigh<Products, kBits>(side, values, weights.rows(), num_rows, block, c, o, row_scale);
    });
  }

  // Calls body(values). Rows of whole lines, each of which is loaded once or twice, stay where they
  // are.
  template <class P, int kBits, class Body>
  void with_values(const Side& side, int64_t num_rows, Span block, Body body) const {
    if constexpr (P::template kLoadsLines<kBits>) {
      if (num_rows <= kBlockRows && Tile::bytes_of(side) % kValueBytes == 0) return body(values_);
    }
    body(copy_values(side, block));
  }

  // A group of channels of a value has a scale and a zero point: the sum of p v is that of
  // (p scale) (code - middle) plus that of p (zero + scale middle).
  template <int kBits>
  void zero_point_output(const float* p, int64_t num_rows, Span block, const Span* spans, float* o,
                         const float* row_scale) {
    const Side side = tile_.v_side();
    with_values<ZeroPointProducts<Isa>, kBits>(side, num_rows, block, [&](const auto& values) {
      weigh_zero_points<kBits>(side, values, p, num_rows, block, spans, o, row_scale);
    });
  }

  // words[num_groups][kDirectKeys]: scales and zero points of the values of `block`.
  [[gnu::noinline]] void load_value_scales(Span block, int64_t num_groups, uint32_t* words) const {
    if (block.begin > 0 || block.end < kDirectKeys)
      memset(words, 0, static_cast<size_t>(num_groups * kDirectKeys) * sizeof *words);
    tile_.for_scales(tile_.args.v_scale, tile_.first_key + block.begin, block.end - block.begin,
                     [&](int64_t first, const float* from, int64_t stride, int64_t count) {
                       const auto* keys = reinterpret_cast<const uint32_t*>(from);
                       uint32_t* const to = words + block.begin + first;
                       int64_t i = 0;
                       for (; num_groups % 4 == 0 && i + 4 <= count; i += 4)
                         for (int64_t g = 0; g < num_groups; g += 4)
                           transpose_fours(keys + i * stride + g, stride, to + g * kDirectKeys + i,
                                           kDirectKeys);
                       for (; i < count; ++i)
                         for (int64_t g = 0; g < num_groups; ++g)
                           to[g * kDirectKeys + i] = keys[i * stride + g];
                     });
  }

  template <int kBits, class Values>
  [[gnu::noinline]] void weigh_zero_points(const Side& side, const Values& values, const float* p,
                                           int64_t num_rows, Span block, const Span* spans,
                                           float* o, const float* row_scale) {
    using P = ZeroPointProducts<Isa>;
    constexpr int64_t kGroup = kZeroPointGroup, kColumns = P::template kColumns<kBits>;
    constexpr int kGroups = kColumns / kGroup;
    static_assert(kGroups == 1 || kGroups == 4);
    // Behind the rows of copied values.
    auto* const words = reinterpret_cast<uint32_t*>(
        memory_ + kDirectKeys * round_up(Tile::bytes_of(side), kValueBytes) / 4);
    load_value_scales(block, ceil_div(side.dim, kGroup), words);
    Weights<kGroups> weights;
    for (int64_t c = 0; c < side.dim; c += kColumns) {
      const int64_t end = std::min(side.dim, c + kColumns);
      float scale[kGroups][kDirectKeys], middle[kGroups][kDirectKeys];
      for (int64_t d = c; d < end; d += kGroup)
        unpack_scales<Isa>(words + d / kGroup * kDirectKeys, kDirectKeys, kMiddle<kBits>,
                           scale[(d - c) / kGroup], middle[(d - c) / kGroup]);
      float base[kDirectRows * kGroups];
      const int64_t num_groups = ceil_div(end - c, kGroup);
      for (int64_t r = 0; r < num_rows; ++r) {
        const float* const row = p + r * kDirectKeys;
        const Span span = spans[r];
        load_group_weights<kBits>(row, scale, num_groups, span, weights, r);
        for (int64_t g = 0; g < num_groups; ++g)
          base[r * kGroups + g] =
              dot<Vec>(row + span.begin, middle[g] + span.begin, span.end - span.begin);
      }
      weigh<P, kBits>(side, values, weights.rows(), num_rows, block, c, o, row_scale);
      for (int64_t r = 0; r < num_rows; ++r)
        for (int64_t d = c; d < end; d += kGroup)
          add_to_columns<Vec>(o + r * tile_.scratch.o_stride + d,
                              base[r * kGroups + (d - c) / kGroup],
                              {0, static_cast<int>(std::min(kGroup, end - d))});
    }
  }

  // Words of p times the scales of each group, as those of row r.
  template <int kBits, int kGroups>
  static void load_group_weights(const float* p, const float (*scale)[kDirectKeys],
                                 int64_t num_groups, Span span, Weights<kGroups>& weights,
                                 int64_t r) {
    int16_t* const to = weights.words + r * kDirectKeys * kGroups;
    int16_t apart[kGroups * kDirectKeys];
    const WordRows rows{kGroups == 1 ? to : apart, kDirectKeys, weights.factors + r * kGroups,
                        weights.offsets + r * kGroups};
    for (int64_t g = 0; g < num_groups; ++g)
      rows.offsets[g] = code_offset<kBits>(load_weight_words<Isa>(p, scale[g], span, rows, g));
    if constexpr (kGroups == 4) {
      const auto* const pairs = reinterpret_cast<const PairOfWords*>(apart);
      for (int64_t i = 0; i < kDirectKeys / 2; i += 4)
        transpose_fours(pairs + i, kDirectKeys / 2, reinterpret_cast<PairOfWords*>(to) + 4 * i, 4);
    }
  }

  Tile tile_;      // of the selected head
  float* memory_;  // for floats, or for copies of V
  bool has_words_;
  RowAddresses key_rows_, value_rows_;  // of the first head
  Rows keys_, values_;                  // of the selected head
  CodeQueries queries_{};
  HeadFetch<Rows> next_values_, next_keys_;
  int64_t first_head_, num_heads_;
  // Of all heads, which have a row each at least.
  alignas(64) float scales_[2][kSweepRows * kDirectKeys];
  const float *first_k_scales_, *first_v_scales_;
};

}  // namespace headrace::cpu::flash
