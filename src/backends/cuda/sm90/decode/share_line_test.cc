#include "backends/cuda/sm90/decode/share_line.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace headrace::cuda::sm90::decode {
namespace {

// The shares of a line have each group once, in order, and none is empty before the last.
void expect_groups_once(const std::vector<SequenceKeys>& batch, int num_heads, int num_shares) {
  std::vector<int> begins = {0};
  for (const SequenceKeys& keys : batch)
    begins.push_back(begins.back() + share_cost(keys) * num_heads);
  const int total = begins.back();
  const int share = share_size(total, num_shares, ceil_div(total, num_shares),
                               ceil_div(total, kWholeGroupCost * num_shares));
  std::size_t b = 0;  // the next group
  int next_head = 0, next_group = 0, most_segments = 0;
  for (int first = 0; first < total; first += share) {
    int num_groups = 0, num_segments = 0;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const int last = std::min(first + share, total);
      if (first >= begins[i + 1] || last <= begins[i]) continue;
      const GroupRange all = groups_of(batch[i]);
      const auto part = SharePart::of(batch[i], num_heads, first - begins[i], last - begins[i]);
      for (int head = part.from.head; head < part.end_head; ++head, ++num_segments) {
        const GroupRange groups = part.groups(head, all);
        ASSERT_GT(groups.count, 0);
        ASSERT_EQ(b, i);
        ASSERT_EQ(head, next_head);
        ASSERT_EQ(groups.first - all.first, next_group);
        num_groups += groups.count;
        next_group += groups.count;
        if (next_group < all.count) continue;
        next_group = 0;
        if (++next_head == num_heads) next_head = 0, ++b;
      }
    }
    ASSERT_TRUE(num_groups > 0 || b == batch.size());
    most_segments = std::max(most_segments, num_segments);
  }
  ASSERT_EQ(b, batch.size());
  // As many as a plan allows.
  int num_groups = 0;
  for (const SequenceKeys& keys : batch) num_groups += groups_of(keys).count * num_heads;
  if (num_groups <= kMaxShareGroups * num_shares) {
    EXPECT_LE(most_segments, kMaxSegments);
  }
}

TEST(DecodeShares, HaveEachGroupOnce) {
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    const int longest = round % 3 == 0 ? 600 : 9000, num_heads = 1 + round % 8;
    std::vector<SequenceKeys> batch(1 + random() % 40);
    for (SequenceKeys& keys : batch) {
      keys = {0, 0, 0, static_cast<int>(random() % static_cast<unsigned>(longest))};
      if (round % 4 == 1) keys.first_key = keys.end_key / 3;
      if (round % 4 == 2) keys = {0, 0, 0, longest};
    }
    for (const int num_shares : {1, 7, 132}) expect_groups_once(batch, num_heads, num_shares);
  }
}

}  // namespace
}  // namespace headrace::cuda::sm90::decode
