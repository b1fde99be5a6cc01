#include "base/id_map.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "tests/support/random.h"

namespace headrace {
namespace {

TEST(IdMap, FindsNothingWhereNothingIs) {
  IdMap<int> map;
  EXPECT_EQ(map.find(1), nullptr);
  map.erase(1);
  EXPECT_TRUE(map.empty());
  map.set(17, 5);
  EXPECT_EQ(map.find(1), nullptr) << "of the same place";
  EXPECT_THROW(map.at(1), std::out_of_range);
  EXPECT_EQ(map.at(17), 5);
  map.erase(1);
  EXPECT_EQ(*map.find(17), 5);
  map.set(17, 6);
  EXPECT_EQ(map.at(17), 6);
  EXPECT_EQ(map.size(), 1u);
}

// Ids in order, some of which live long, so that others come around to their places.
TEST(IdMap, IsAMap) {
  testing::Random random(5);
  for (const std::int64_t most : {1, 7, 40, 300}) {
    IdMap<std::unique_ptr<std::int64_t>> map;
    std::map<std::int64_t, std::int64_t> naive;
    std::int64_t last = 0;
    for (int i = 0; i < 20000; ++i) {
      if (std::ssize(naive) < random.between(0, most)) {
        last += random.between(1, 3);
        naive[last] = i;
        EXPECT_EQ(*map.set(last, std::make_unique<std::int64_t>(i)), i);
      } else if (!naive.empty()) {
        // Mostly one of the newest.
        auto old = naive.begin();
        std::advance(old, random.between(0, std::ssize(naive) - 1));
        if (random.between(0, 3) > 0) old = std::prev(naive.end());
        map.erase(old->first);
        naive.erase(old);
      }
      const std::int64_t any = random.between(1, last + 1);
      const auto found = naive.find(any);
      const auto* const value = map.find(any);
      ASSERT_EQ(value != nullptr, found != naive.end()) << any;
      if (value != nullptr) {
        ASSERT_EQ(**value, found->second);
      }
      ASSERT_EQ(map.size(), naive.size());
    }
    for (const auto& [id, value] : naive) EXPECT_EQ(**map.find(id), value);
    std::map<std::int64_t, std::int64_t> visited;
    map.for_each([&](std::int64_t id, const auto& value) { visited[id] = *value; });
    EXPECT_EQ(visited, naive);
    map.clear();
    EXPECT_TRUE(map.empty());
    EXPECT_EQ(map.find(last), nullptr);
  }
}

}  // namespace
}  // namespace headrace
