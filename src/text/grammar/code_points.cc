#include "text/grammar/code_points.h"

#include <algorithm>

namespace headrace::text {

CodePoints normalise(CodePoints set) {
  CodePoints parts;
  for (const CodePointRange& range : set) {
    if (range.first < kFirstSurrogate)
      parts.push_back({range.first, std::min<char32_t>(range.last, kFirstSurrogate - 1)});
    if (range.last > kLastSurrogate)
      parts.push_back({std::max<char32_t>(range.first, kLastSurrogate + 1),
                       std::min(range.last, kMaxCodePoint)});
  }
  std::erase_if(parts, [](const CodePointRange& range) { return range.first > range.last; });
  std::ranges::sort(parts, {}, &CodePointRange::first);
  CodePoints merged;
  for (const CodePointRange& range : parts) {
    if (!merged.empty() && range.first <= merged.back().last + 1)
      merged.back().last = std::max(merged.back().last, range.last);
    else
      merged.push_back(range);
  }
  return merged;
}

CodePoints complement(CodePoints set) {
  CodePoints rest;
  char32_t next = 0;
  for (const CodePointRange& range : normalise(std::move(set))) {
    if (range.first > next) rest.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kMaxCodePoint) rest.push_back({next, kMaxCodePoint});
  return normalise(std::move(rest));
}

CodePoints intersect(const CodePoints& set, const CodePoints& other) {
  CodePoints common;
  for (const CodePointRange& a : set)
    for (const CodePointRange& b : other)
      if (a.first <= b.last && b.first <= a.last)
        common.push_back({std::max(a.first, b.first), std::min(a.last, b.last)});
  return normalise(std::move(common));
}

}  // namespace headrace::text
