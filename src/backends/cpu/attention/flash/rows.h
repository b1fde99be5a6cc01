// Where the rows of K and V of one KV head lie in memory.
#pragma once

#include <stdint.h>
#include <string.h>

#include "core/args.h"

namespace headrace::cpu::flash {

template <class E>
inline constexpr int64_t kLineElements = 64 / sizeof(E);  // of a cache line

// Addresses of rows are written by eights.
inline constexpr int64_t kAddressGroup = 8;
// Room for those of kCount rows.
template <class E, int64_t kCount>
using Addresses = const E * [kCount + kAddressGroup - 1];

// Rows of a tensor.
template <class E>
struct StridedRows {
  using Element = E;
  const E* first;
  int64_t stride;  // elements

  const E* operator[](int64_t row) const { return first + row * stride; }
  // The row `distance` behind `row`, whose address is known.
  const E* ahead(const E* address, int64_t, int64_t distance) const {
    return address + distance * stride;
  }
  StridedRows from(int64_t row) const { return {first + row * stride, stride}; }
  StridedRows shifted(int64_t elements) const { return {first + elements, stride}; }

  // The lines of `width` elements of rows, in several streams whose rows are `apart` from each
  // other. Behind the last row the addresses are good for prefetches only.
  class Lines {
   public:
    Lines(const StridedRows& rows, int64_t width, int64_t apart)
        : at_(rows.first),
          end_(rows.first + width),
          apart_(apart * rows.stride),
          width_(width),
          skip_(rows.stride - width) {}
    // The current line of a stream.
    const E* operator[](int64_t stream) const { return at_ + stream * apart_; }
    [[gnu::always_inline]] void next() {
      at_ += kLineElements<E>;
      if (at_ < end_) return;
      at_ = end_ + skip_;
      end_ = at_ + width_;
    }

   private:
    const E *at_, *end_;
    int64_t apart_, width_, skip_;
  };
};

// Rows in pages, by the address of each.
template <class E>
struct PagedRows {
  using Element = E;
  const E* const* addresses;
  int64_t offset;  // elements, to a row from its address

  const E* operator[](int64_t row) const { return addresses[row] + offset; }
  const E* ahead(const E*, int64_t row, int64_t distance) const { return (*this)[row + distance]; }
  PagedRows from(int64_t row) const { return {addresses + row, offset}; }
  PagedRows shifted(int64_t elements) const { return {addresses, offset + elements}; }

  // As those of StridedRows, but the last row of each stream repeats: no address follows it.
  class Lines {
   public:
    Lines(const PagedRows& rows, int64_t width, int64_t apart)
        : rows_(rows), width_(width), apart_(apart), rows_left_(apart) {}
    const E* operator[](int64_t stream) const { return rows_[stream * apart_] + column_; }
    [[gnu::always_inline]] void next() {
      column_ += kLineElements<E>;
      if (column_ < width_) return;
      column_ = 0;
      if (--rows_left_ > 0) rows_ = rows_.from(1);
    }

   private:
    PagedRows rows_;
    int64_t width_, apart_, rows_left_;
    int64_t column_ = 0;
  };
};

// to[i] = first + i * stride for `count` rows; writes whole groups of kAddressGroup.
template <class E>
inline void fill_addresses(const E* first, int64_t stride, int64_t count, const E** to) {
  // As vectors: otherwise this is a tenth of a decode from the cache at head_dim 64.
  using Group = intptr_t __attribute__((vector_size(kAddressGroup * sizeof(intptr_t))));
  const auto step = static_cast<intptr_t>(stride * static_cast<int64_t>(sizeof(E)));
  Group group = reinterpret_cast<intptr_t>(first) + step * Group{0, 1, 2, 3, 4, 5, 6, 7};
  for (int64_t i = 0; i < count; i += kAddressGroup, group += kAddressGroup * step)
    memcpy(to + i, &group, sizeof group);
}

// Addresses of the rows of `count` keys from `key` < seqlen_k in a sequence's pages. Behind the
// last key: the last key's. `to` has the room of Addresses<E, count>.
template <class E>
inline void find_addresses(int64_t page_size, const int32_t* pages, const Operand& x,
                           int64_t kv_head, int64_t seqlen_k, int64_t key, int64_t count,
                           const E** to) {
  const int64_t num_keys = count < seqlen_k - key ? count : seqlen_k - key;
  int64_t page_idx = key / page_size, slot = key % page_size;
  for (int64_t i = 0; i < num_keys; ++page_idx, slot = 0) {
    const int64_t left = page_size - slot;
    const int64_t rows = left < num_keys - i ? left : num_keys - i;
    const E* row = static_cast<const E*>(x.data) + row_offset(x, pages[page_idx], slot, kv_head);
    fill_addresses(row, x.stride_seq, rows, to + i);
    i += rows;
  }
  if (num_keys < count) fill_addresses(to[num_keys - 1], 0, count - num_keys, to + num_keys);
}

}  // namespace headrace::cpu::flash
