// Whether two strided views share a byte. Exact for layouts from slices, permutations and packed
// buffers; a layout that a bounded search cannot decide counts as overlapping.
#pragma once

#include <cstdint>

#include "headrace/tensor.hpp"

namespace headrace {

// Bytes [begin, end) from the lowest to the highest element; empty views: begin == end. The view's
// offsets must not overflow.
struct AddressRange {
  std::uintptr_t begin = 0, end = 0;
};
AddressRange address_range(const headrace_tensor& tensor);

enum class Overlap { none, certain, undecided };

// Whether any elements of the two views share a byte. Either view may be empty.
Overlap overlap_between(const headrace_tensor& a, const AddressRange& range_a,
                        const headrace_tensor& b, const AddressRange& range_b);

// Whether two indices of one view map to the same element.
Overlap overlap_within(const headrace_tensor& tensor);

}  // namespace headrace
