// Matmuls for a few rows: K and V are read once, in order and in place (decode is bound by that
// read).
#pragma once

#include <string.h>

#include <algorithm>
#include <type_traits>

#include "backends/cpu/attention/flash/config.h"
#include "backends/cpu/attention/flash/gemm-inl.h"

namespace headrace::cpu::flash {

// Prefetches elements of a row into the L1 cache for upcoming products. They are in the L2 cache by
// then (see Fetch), but prefetches from memory occupy most of the miss buffers of the L1 cache, and
// products that wait for a buffer stall the prefetches after them.
template <int64_t kElements, class E>
inline void fetch_near(const E* row) {
#pragma GCC unroll 4
  for (int64_t i = 0; i < kElements; i += 64 / static_cast<int64_t>(sizeof(E)))
    __builtin_prefetch(row + i, 0, 3);
}
// Number of rows to prefetch ahead: 2 KiB for head_dim 128.
template <class E>
inline constexpr int64_t kNearRows = 16 / sizeof(E);
// Addresses of a tile's rows that the products and prefetches use.
template <class E>
inline constexpr int64_t kDirectAddresses = kDirectKeys + kNearRows<E>;

// Software prefetch of rows while others are being computed: V of a tile during its scores and
// softmax, the next rows of K during its output.
// - In software, because in [batch, seqlen, heads, dim] the rows of a head are in different pages,
//   which hardware prefetchers do not cross.
// - Evenly, some lines per some products: a burst would fill the core's miss buffers and stall it.
// - In memory order, which hardware prefetchers do follow: see HeadFetch.
// - In four streams, each through a quarter of the rows: a core keeps more lines in flight for more
//   than one stream (64 rows of 256 bytes are four pages, and a prefetcher works on each).
template <class Rows>
class Fetch {
 public:
  // `count` rows of `width` elements.
  Fetch(const Rows& rows, int64_t width, int64_t count) : lines_(rows, width, count / kStreams) {}

  template <int kLines>  // equal in all calls; a call would spill the sums of the loop around it
  [[gnu::always_inline]] void lines() {
    static_assert(kStreams % kLines == 0);
    const int64_t first = kLines < kStreams ? stream_ : 0;
#pragma GCC unroll 4
    for (int i = 0; i < kLines; ++i)
      __builtin_prefetch(lines_[first + i], 0, 2);  // into the L2 cache
    if constexpr (kLines < kStreams) {
      stream_ = (stream_ + kLines) & (kStreams - 1);
      if (stream_ != 0) return;
    }
    lines_.next();
  }

 private:
  static constexpr int kStreams = 4;
  typename Rows::Lines lines_;
  int64_t stream_ = 0;  // next stream
};

// A Fetch of the rows of some KV heads: of all at once if they lie side by side in memory, else of
// one head after the other.
template <class Rows>
class HeadFetch {
 public:
  // `rows`: `count` rows of `dim` elements of the first head.
  HeadFetch(const Rows& rows, int64_t dim, int64_t stride_head, int64_t num_heads, int64_t count)
      : rows_(rows),
        dim_(dim),
        stride_head_(stride_head),
        count_(count),
        lines_(rows, stride_head == dim ? num_heads * dim : dim, count) {}

  // Before the products of head `head` of them.
  void select(int64_t head) {
    if (stride_head_ != dim_) lines_ = {rows_.shifted(head * stride_head_), dim_, count_};
  }
  Fetch<Rows>& lines() { return lines_; }

 private:
  Rows rows_;
  int64_t dim_, stride_head_, count_;
  Fetch<Rows> lines_;
};

// The rows of K or of V in a product.
template <class Rows>
struct Operands {
  Rows rows;
  int64_t count;
  int64_t dim;  // elements per row
};

// A row of Q in units; whole lines are in the order of load_block() for K.
template <class Isa, class E>
inline void order_units(const E* row, int64_t dim, typename Isa::Unit* units) {
  constexpr int kBlock = Isa::template kBlock<E>;
  constexpr int64_t kW = Isa::Vec::kWidth, kLine = 64 / sizeof(E);
  if constexpr (kBlock > 1) {
    for (int64_t d = 0; d < dim / kLine * kLine; d += kW * kBlock) {
      typename Isa::Vec::F x[kBlock];
      Isa::load_block(row + d, x);
      for (int i = 0; i < kBlock; ++i) Isa::Vec::store(units + d + i * kW, x[i]);
    }
  }
}

// s[kRows][kKeys] = horizontal sums of acc[kRows * kKeys], eight at a time as far as possible.
template <class Vec, int kRows, int kKeys>
inline void store_sums(const typename Vec::F* acc, float* s) {
  constexpr int kEights = kRows * kKeys / 8 * 8;
#pragma GCC unroll 4
  for (int first = 0; first < kEights; first += 8) {
    float sums[8];  // whole rows of kKeys
    Vec::sums(acc + first, sums);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += kKeys)
      memcpy(s + (first + i) / kKeys * kDirectKeys, sums + i, sizeof(float[kKeys]));
  }
#pragma GCC unroll 8
  for (int i = kEights; i < kRows * kKeys; ++i)
    s[i / kKeys * kDirectKeys + i % kKeys] = Vec::sum(acc[i]);
}

// s[kRows][kKeys] = Q K^T for rows of Q (units in the order of order_units(), zero padded to whole
// vectors) and kKeys rows of K from `key`. With kFetch, prefetches as many lines of `next` except
// one per row, which is left to fetch_rest().
template <class Isa, int kRows, int kKeys, bool kFetch, class Rows, class Next>
[[gnu::always_inline]] inline void dot_keys(const typename Isa::Unit* q, int64_t q_stride,
                                            const Operands<Rows>& keys, Fetch<Next>& next,
                                            int64_t key, float* s) {
  using Vec = typename Isa::Vec;
  using E = typename Rows::Element;
  constexpr int64_t kStep = Vec::kWidth * Isa::kPair, kLine = 64 / sizeof(E);
  typename Vec::F acc[kRows * kKeys];  // [row][key]
  const typename Isa::Unit* q_row[kRows];
  const E* row[kKeys];
#pragma GCC unroll 4
  for (int k = 0; k < kKeys; ++k) row[k] = keys.rows[key + k];
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
    q_row[i] = q + i * q_stride;
#pragma GCC unroll 4
    for (int k = 0; k < kKeys; ++k) acc[i * kKeys + k] = Vec::zero();
  }
  const auto multiply = [&](int64_t d, auto n, auto load) __attribute__((always_inline)) {
    constexpr int kN = decltype(n)::value;
    typename Vec::F x[kKeys][kN];
#pragma GCC unroll 4
    for (int k = 0; k < kKeys; ++k) load(row[k] + d, x[k]);
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kN; ++v) {
        const auto qv = Isa::load_units(q_row[i] + d / Isa::kPair + v * Vec::kWidth);
#pragma GCC unroll 4
        for (int k = 0; k < kKeys; ++k) {
          auto& sum = acc[i * kKeys + k];
          sum = Isa::madd(qv, x[k][v], sum);
        }
      }
    }
  };
  constexpr auto one = std::integral_constant<int, 1>{};
  constexpr auto block = std::integral_constant<int, Isa::template kBlock<E>>{};
  const auto load_block = [](const E* at, auto& x) __attribute__((always_inline)) {
    Isa::load_block(at, x);
  };
  int64_t d = 0;
  for (; d + kLine <= keys.dim; d += kLine) {
    if (kFetch && d > 0) next.template lines<kKeys>();
    if constexpr (kFetch) {
#pragma GCC unroll 4
      for (int k = 0; k < kKeys; ++k)
        fetch_near<kLine>(keys.rows.ahead(row[k], key + k, kNearRows<E>) + d);
    }
#pragma GCC unroll 16
    for (int64_t i = 0; i < kLine; i += kStep * block) multiply(d + i, block, load_block);
  }
  for (; d + kStep <= keys.dim; d += kStep)
    multiply(d, one, [](const E* at, auto& x) { x[0] = Isa::load_row(at); });
  if (d < keys.dim) {
    const int rest = static_cast<int>(keys.dim - d);
    multiply(d, one, [rest](const E* at, auto& x) { x[0] = Isa::load_row_partial(at, rest); });
  }
  store_sums<Vec, kRows, kKeys>(acc, s + key);
}

// dot_keys() of the keys [begin, end), kKeys at a time. A function of its own: in one function the
// sums of several blocks of rows spill each other's registers.
template <class Isa, int kRows, int kKeys, bool kFetch, class Rows, class Next>
[[gnu::noinline]] inline void dot_rows(const typename Isa::Unit* q, int64_t q_stride,
                                       const Operands<Rows>& keys, Fetch<Next>& next, int64_t begin,
                                       int64_t end, float* s) {
  Fetch<Next> fetch = next;  // a copy stays in registers; `next` is stored after each line
  for (int64_t key = begin; key < end; key += kKeys)
    dot_keys<Isa, kRows, kKeys, kFetch>(q, q_stride, keys, fetch, key, s);
  if constexpr (kFetch) next = fetch;
}

// Loads kVectors vectors of a row, each block in the order of load_block().
template <class Isa, int kVectors, class E>
inline void load_blocks(const E* at, typename Isa::Vec::F (&row)[kVectors]) {
  constexpr int kBlock = Isa::template kBlock<E>;
  static_assert(kVectors % kBlock == 0);
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; v += kBlock) {
    typename Isa::Vec::F x[kBlock];
    Isa::load_block(at + v * Isa::Vec::kWidth, x);
#pragma GCC unroll 2
    for (int i = 0; i < kBlock; ++i) row[v + i] = x[i];
  }
}

template <class Vec, int kRows, int kVectors>
inline void set_zero(typename Vec::F (&acc)[kRows][kVectors]) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) acc[i][v] = Vec::zero();
  }
}

// o[kRows][kVectors vectors] = o * row_scale + acc
template <class Vec, int kRows, int kVectors>
[[gnu::always_inline]] inline void add_to_rows(const typename Vec::F (&acc)[kRows][kVectors],
                                               float* o, int64_t o_stride, const float* row_scale) {
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* out = o + i * o_stride + v * Vec::kWidth;
      Vec::store(out, Vec::fma(Vec::load(out), Vec::set1(row_scale[i]), acc[i][v]));
    }
  }
}

// Columns [c, c + kVectors vectors) of o[kRows][head_dim_v] = o * row_scale + P V over values
// [begin, count). With kFetch, prefetches as many lines of `next`.
template <class Isa, int kRows, int kVectors, bool kFetch, class Rows, class Next>
[[gnu::noinline]] inline void weigh_columns(const float* p, const Operands<Rows>& values,
                                            Fetch<Next>& next, int64_t begin, int64_t c, float* o,
                                            int64_t o_stride, const float* row_scale) {
  using Vec = typename Isa::Vec;
  using E = typename Rows::Element;
  constexpr int64_t kW = Vec::kWidth, kLine = 64 / sizeof(E), kKeys = Isa::kKeysAtOnce;
  typename Vec::F acc[kRows][kVectors];
  set_zero<Vec>(acc);
  // A copy as in dot_rows() where lines() chooses a stream. Elsewhere (AVX-512) it is not faster.
  std::conditional_t<(kKeys < 4), Fetch<Next>, Fetch<Next>&> fetch = next;
  const auto add = [&](auto load) __attribute__((always_inline)) {
    const bool is_new_line = kVectors * kW % kLine == 0 || c % kLine == 0;
    const auto add_key = [&](int64_t key) __attribute__((always_inline)) {
      const E* at = values.rows[key];
      if (kFetch && is_new_line)
        fetch_near<kVectors * kW>(values.rows.ahead(at, key, kNearRows<E>) + c);
      typename Vec::F row[kVectors];
      load(at + c, row);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        const auto weight = Vec::set1(p[i * kDirectKeys + key]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) acc[i][v] = Vec::fma(weight, row[v], acc[i][v]);
      }
    };
    int64_t key = begin;
    for (; key + kKeys <= values.count; key += kKeys) {
      if (kFetch && is_new_line) {
#pragma GCC unroll 4
        for (int64_t line = 0; line < kVectors * kW; line += kLine) fetch.template lines<kKeys>();
      }
#pragma GCC unroll 4
      for (int k = 0; k < kKeys; ++k) add_key(key + k);
    }
    for (; key < values.count; ++key) add_key(key);
  };
  const int64_t left = values.dim - c;
  if (kVectors != Isa::kNv || left >= kVectors * kW) {  // only the last columns may be fewer
    add([](const E* at, auto& row)
            __attribute__((always_inline)) { load_blocks<Isa, kVectors>(at, row); });
    if constexpr (Isa::template kBlock<E> == 2) {
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v += 2) Vec::interleave(acc[i][v], acc[i][v + 1]);
      }
    }
  } else {
    add([left](const E* at, auto& row) {
      for (int v = 0; v < kVectors; ++v) row[v] = load_columns<Vec>(at + v * kW, left - v * kW);
    });
  }
  add_to_rows<Vec>(acc, o + c, o_stride, row_scale);
  if constexpr (kFetch) next = fetch;
}

// All columns: as many at once as registers allow, the last ones in blocks of kNv vectors.
template <class Isa, int kRows, bool kFetch, class Rows, class Next>
inline void weigh_values(const float* p, const Operands<Rows>& values, Fetch<Next>& next,
                         int64_t begin, float* o, int64_t o_stride, const float* row_scale) {
  constexpr int kMost = Isa::kValueVectors;
  int64_t c = 0;
  for (; c + kMost * Isa::Vec::kWidth <= values.dim; c += kMost * Isa::Vec::kWidth)
    weigh_columns<Isa, kRows, kMost, kFetch>(p, values, next, begin, c, o, o_stride, row_scale);
  for (; c < values.dim; c += kNr<Isa>)
    weigh_columns<Isa, kRows, Isa::kNv, kFetch>(p, values, next, begin, c, o, o_stride, row_scale);
}

template <int kRows, bool kIsFirst>
struct RowBlock {
  static constexpr int rows = kRows;
  static constexpr bool is_first = kIsFirst;
};
inline constexpr int64_t kBlockRows = 4;
// Keys after which the next block of rows takes its turn. Of all 64 keys of a tile the first block
// would prefetch in bursts: f32 keys from memory 8 % slower. A call for each kKeys keys: 4 to 7 %.
template <class E>
inline constexpr int64_t kTurnKeys = 32 / sizeof(E);
// Calls body(first_row, RowBlock) for blocks of rows: the first of 1 to 4, the others of 4.
template <class Body>
inline void for_row_blocks(int64_t rows, Body body) {
  int64_t i = 1 + (rows - 1) % kBlockRows;
  switch (i) {
    case 1:
      body(0, RowBlock<1, true>{});
      break;
    case 2:
      body(0, RowBlock<2, true>{});
      break;
    case 3:
      body(0, RowBlock<3, true>{});
      break;
    default:
      body(0, RowBlock<4, true>{});
      break;
  }
  for (; i < rows; i += kBlockRows) body(i, RowBlock<4, false>{});
}

// s[rows][keys.count] = Q K^T; meanwhile prefetches as many lines of `next`, except those left to
// fetch_rest().
template <class Isa, class Rows, class Next>
inline void direct_scores(const typename Isa::Unit* q, int64_t q_stride, int64_t rows,
                          const Operands<Rows>& keys, Fetch<Next>& next, float* s) {
  constexpr int kKeys = Isa::kKeysAtOnce;
  static_assert(kTurnKeys<typename Rows::Element> % kKeys == 0);
  const int64_t whole = keys.count / kKeys * kKeys;
  const int64_t step = rows <= kBlockRows ? kDirectKeys : kTurnKeys<typename Rows::Element>;
  for (int64_t key = 0; key < whole; key += step) {
    const int64_t end = std::min(key + step, whole);
    for_row_blocks(
        rows, [&](int64_t i, auto block) __attribute__((always_inline)) {
          dot_rows<Isa, block.rows, kKeys, block.is_first>(q + i * q_stride, q_stride, keys, next,
                                                           key, end, s + i * kDirectKeys);
        });
  }
  for (int64_t i = 0; whole < keys.count && i < rows; ++i)
    dot_rows<Isa, 1, 1, false>(q + i * q_stride, q_stride, keys, next, whole, keys.count,
                               s + i * kDirectKeys);
}

// Prefetches the lines of `next` that direct_scores() of `num_keys` keys left, a fraction for each
// of `rows` rows. Call it before the softmax of each row, to keep memory busy.
template <class Isa, class Rows>
inline void fetch_rest(int64_t num_keys, int64_t rows, Fetch<Rows>& next) {
  for (int64_t i = 0; i < num_keys; i += Isa::kKeysAtOnce * rows)
    next.template lines<Isa::kKeysAtOnce>();
}

// o[rows][head_dim_v] = o * row_scale + P V over values [begin, count); meanwhile prefetches as
// many lines of `next`.
template <class Isa, class Rows, class Next>
inline void direct_output(const float* p, int64_t rows, const Operands<Rows>& values,
                          Fetch<Next>& next, int64_t begin, float* o, int64_t o_stride,
                          const float* row_scale) {
  for_row_blocks(
      rows, [&](int64_t i, auto block) __attribute__((always_inline)) {
        weigh_values<Isa, block.rows, block.is_first>(p + i * kDirectKeys, values, next, begin,
                                                      o + i * o_stride, o_stride, row_scale + i);
      });
}

}  // namespace headrace::cpu::flash
