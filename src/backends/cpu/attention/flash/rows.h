// Where the rows of K and V of one KV head lie in memory.
#pragma once

#include <stdint.h>

#include "core/args.h"

namespace headrace::cpu::flash {

// Rows of a tensor.
template <class E>
struct StridedRows {
  using Element = E;
  const E* first;
  int64_t stride;  // elements

  const E* operator[](int64_t row) const { return first + row * stride; }
  StridedRows from(int64_t row) const { return {first + row * stride, stride}; }
  StridedRows shifted(int64_t elements) const { return {first + elements, stride}; }
};

// Rows in pages, by the address of each.
template <class E>
struct PagedRows {
  using Element = E;
  const E* const* addresses;
  int64_t offset;  // elements, to a row from its address

  const E* operator[](int64_t row) const { return addresses[row] + offset; }
  PagedRows from(int64_t row) const { return {addresses + row, offset}; }
  PagedRows shifted(int64_t elements) const { return {addresses, offset + elements}; }
};

// Addresses of the rows of `count` keys from `key` < seqlen_k in a sequence's pages. Behind the
// last key: the last key's.
template <class E>
inline void find_addresses(int64_t page_size, const int32_t* pages, const Operand& x,
                           int64_t kv_head, int64_t seqlen_k, int64_t key, int64_t count,
                           const E** addresses) {
  const int64_t num_keys = count < seqlen_k - key ? count : seqlen_k - key;
  int64_t page_idx = key / page_size, slot = key % page_size;
  for (int64_t i = 0; i < num_keys; ++page_idx, slot = 0) {
    const E* row = static_cast<const E*>(x.data) + row_offset(x, pages[page_idx], slot, kv_head);
    for (; slot < page_size && i < num_keys; ++slot, ++i, row += x.stride_seq) addresses[i] = row;
  }
  for (int64_t i = num_keys; i < count; ++i) addresses[i] = addresses[num_keys - 1];
}

}  // namespace headrace::cpu::flash
