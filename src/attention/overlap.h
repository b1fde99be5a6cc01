// Do two strided views share a byte? Exact for the layouts that slices, permutations and packed
// buffers make; a layout too tangled to decide within a fixed effort counts as overlapping.
#pragma once

#include <cstdint>

#include "headrace/tensor.hpp"

namespace headrace {

// The bytes [begin, end) from the lowest to the highest element; empty views: begin == end. The
// view's offsets were checked not to overflow.
struct AddressRange {
  std::uintptr_t begin = 0, end = 0;
};
AddressRange address_range(const headrace_tensor& tensor);

enum class Overlap { none, certain, undecided };

// Whether any element of one lies on any byte of the other. Both non-empty or not.
Overlap overlap_between(const headrace_tensor& a, const AddressRange& range_a,
                        const headrace_tensor& b, const AddressRange& range_b);

// Whether two different indices of one view lie on the same element.
Overlap overlap_within(const headrace_tensor& tensor);

}  // namespace headrace
