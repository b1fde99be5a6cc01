// Where the rows of K and V of one KV head lie in memory.
#pragma once

#include <stdint.h>

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

}  // namespace headrace::cpu::flash
