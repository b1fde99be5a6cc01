// Sets of Unicode code points.
#pragma once

#include <cstdint>
#include <vector>

namespace headrace::text {

inline constexpr char32_t kMaxCodePoint = 0x10FFFF;
inline constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

struct CodePointRange {
  char32_t first, last;
};

// Sorted, disjoint, without surrogates, after normalise().
using CodePoints = std::vector<CodePointRange>;

CodePoints normalise(CodePoints set);
CodePoints complement(CodePoints set);
// Code points of `set` that are in `other` too.
CodePoints intersect(const CodePoints& set, const CodePoints& other);

}  // namespace headrace::text
