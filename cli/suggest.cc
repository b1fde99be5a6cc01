#include "suggest.h"

#include <algorithm>

namespace headrace::cli {
namespace {

// Optimal string alignment distance: replacements, insertions, deletions and swaps of neighbours.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      const std::size_t replaced = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string closest_name(const std::string& mistyped, const std::vector<std::string>& names) {
  constexpr std::size_t kLongest = 64;  // no option is longer; bounds the work
  constexpr std::size_t kMinBeginning = 3;
  if (mistyped.size() > kLongest) return {};
  std::string closest;
  std::size_t least = kLongest;
  for (const std::string& name : names) {
    const bool is_beginning = mistyped.size() >= kMinBeginning && name.starts_with(mistyped);
    const std::size_t distance = is_beginning ? 0 : edit_distance(mistyped, name);
    if (distance > name.size() / 3 || distance >= least) continue;
    least = distance;
    closest = name;
  }
  return closest;
}

}  // namespace headrace::cli
