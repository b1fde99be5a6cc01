// The line of all groups of a call, in splits: what shares of it have of each sequence. Plain
// values, tested on the host.
#pragma once

#include "backends/cuda/sm90/decode/config.h"

namespace headrace::cuda::sm90::decode {

// Of a head, where only its last group has fewer splits.
constexpr int share_cost(const SequenceKeys& s) {
  const int last_split = std::max(s.end_key - 1, s.first_key) % kGroupKeys / kSplitKeys;
  return groups_of(s).count * kWholeGroupCost - (kGroupSplits - 1 - last_split);
}
// What a share costs, at most: an equal part, or whole groups where that adds at most an
// eighteenth, since shares then begin with heads: 8 x 8192 has 7.8 groups for each of 132
// multiprocessors. Never less than a group, so that one begins in each share. Both are rounded up.
constexpr int share_size(int total, int num_shares, int equal, int whole_groups) {
  const int whole = kWholeGroupCost * whole_groups;
  if (whole * num_shares <= total + total / 18) return whole;
  return equal > kWholeGroupCost ? equal : kWholeGroupCost;  // std::max() would take its address
}

// The first group, counted from the head's first, that begins at `x` of the line of a sequence's
// heads or behind it: group 0 of the next head where there is none.
struct LinePlace {
  int head, group;
};
constexpr LinePlace place_in_line(const SequenceKeys& s, int x) {
  const int cost = share_cost(s), head = x / cost;
  const int group = ceil_div(x - head * cost, kWholeGroupCost);
  return group < groups_of(s).count ? LinePlace{head, group} : LinePlace{head + 1, 0};
}
// What a share has of a sequence: the groups that begin in [first, last) of the sequence's line.
struct SharePart {
  LinePlace from, to;
  int end_head;

  static constexpr SharePart of(const SequenceKeys& s, int num_heads, int first, int last) {
    SharePart x{};
    x.from = place_in_line(s, std::max(first, 0));
    x.to = last < num_heads * share_cost(s) ? place_in_line(s, last) : LinePlace{num_heads, 0};
    x.end_head = x.to.group == 0 ? x.to.head : x.to.head + 1;
    return x;
  }
  constexpr GroupRange groups(int head, const GroupRange& all) const {
    const int first = head == from.head ? from.group : 0;
    return {all.first + first, (head == to.head ? to.group : all.count) - first};
  }
  // Whether a head that began before the sequence's part ends in it.
  constexpr bool ends_cut_head() const { return from.group > 0 && from.head < to.head; }
};

}  // namespace headrace::cuda::sm90::decode
