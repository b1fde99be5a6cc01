// Quantised K and V. The products take codes as numbers, converted in registers, and their scales
// multiply scores and probabilities: a score is (q . code) * scale, a row of O the sum of
// (p * scale) * code. So a code costs no more than a 16-bit element, and no product is rounded.
#pragma once

#include "backends/cpu/attention/flash/direct-inl.h"
#include "backends/cpu/attention/flash/softmax-inl.h"

namespace headrace::cpu::flash {

// Vectors of floats. Scalar code for codes would be a tenth of the library, for CPUs without AVX2.
template <class Isa>
inline constexpr bool kTakesCodes = Isa::kPair == 1 && Isa::Vec::kWidth > 1;

// s[span] *= scales[span]. Columns outside may hold anything, NaN included.
template <class Isa>
inline void scale_columns(float* s, const float* scales, Span span) {
  for (int j = span.begin; j < span.end; ++j) s[j] *= scales[j];
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
  };
  Side k_side() const { return {args.k, args.recent.k, k_dtype_of(p), p.head_dim}; }
  Side v_side() const { return {args.v, args.recent.v, v_dtype_of(p), p.head_dim_v}; }

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

  // The scales of the keys; null if there are none in this form.
  const float* find_scales(const ScaleOperand& scale, float* to) const {
    if (scale.data == nullptr || form == KeyForm::recent) return nullptr;
    Addresses<float, kMaxTileKeys> addresses;
    const Operand x{const_cast<float*>(scale.data) + batch_idx * scale.stride_sequence,
                    scale.stride_batch, scale.stride_seq, scale.stride_head};
    find_stored(x, first_key, num_keys, addresses);
    for (int i = 0; i < num_keys; ++i) to[i] = *addresses[i];
    return to;
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
    const int64_t width = side.dtype == DType::i4x2 ? side.dim / 2 : side.dim * bytes;
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

  DirectCodes(const CodeTile<Isa, E>& codes, float* scratch)
      : tile(codes),
        memory(scratch),
        next_values(codes.fetch(codes.v_side(), codes.first_key, value_rows)),
        next_keys(codes.fetch(codes.k_side(), codes.first_key + kDirectKeys, key_rows)) {}

  // s[num_rows][kDirectKeys]
  [[gnu::noinline]] void scores(const typename Isa::Unit* q, int64_t num_rows, Span block,
                                float* s) {
    tile.template with_rows<true>(tile.k_side(), memory, [&](auto rows) {
      const Operands<decltype(rows)> keys{rows.from(block.begin), block.end - block.begin,
                                          tile.p.head_dim};
      direct_scores<Isa>(q, tile.scratch.q_stride, num_rows, keys, next_values, s + block.begin);
    });
  }
  // o[num_rows][o_stride] = o * row_scale + P V
  [[gnu::noinline]] void output(const float* p, int64_t num_rows, Span block, float* o,
                                const float* row_scale) {
    tile.template with_rows<true>(tile.v_side(), memory, [&](auto rows) {
      const Operands<decltype(rows)> values{rows, block.end, tile.p.head_dim_v};
      direct_output<typename Isa::FloatIsa>(p, num_rows, values, next_keys, block.begin, o,
                                            tile.scratch.o_stride, row_scale);
    });
  }
};

}  // namespace headrace::cpu::flash
