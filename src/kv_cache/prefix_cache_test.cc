#include "kv_cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace headrace {
namespace {

using Tokens = std::vector<std::int32_t>;

void insert(PrefixCache& cache, std::int32_t page, const Prefix& before, const Tokens& tokens) {
  std::ranges::copy(tokens, cache.tokens(page).begin());
  cache.insert(page, before);
}

// With 64, 1 and 0 bits of every hash: what is found does not depend on hashes.
class PrefixCaches : public testing::TestWithParam<std::uint64_t> {
 protected:
  PrefixCache cache_{8, 2, GetParam()};
};
INSTANTIATE_TEST_SUITE_P(HashMasks, PrefixCaches, testing::Values(UINT64_MAX, 1, 0));

TEST_P(PrefixCaches, FindsAPageByItsTokensAndWhatIsBefore) {
  const Prefix root = cache_.root(0);
  EXPECT_EQ(cache_.find(root, Tokens{1, 2}), -1);
  insert(cache_, 5, root, {1, 2});
  insert(cache_, 6, cache_.prefix_of(5), {1, 2});
  insert(cache_, 7, cache_.prefix_of(6), {3, 4});
  EXPECT_EQ(cache_.find(root, Tokens{1, 2}), 5);
  EXPECT_EQ(cache_.find(cache_.prefix_of(5), Tokens{1, 2}), 6);
  EXPECT_EQ(cache_.find(cache_.prefix_of(6), Tokens{3, 4}), 7);
  // The same tokens after another prefix are other keys and values.
  EXPECT_EQ(cache_.find(root, Tokens{3, 4}), -1);
  EXPECT_EQ(cache_.find(cache_.prefix_of(5), Tokens{3, 4}), -1);
  EXPECT_EQ(cache_.find(cache_.prefix_of(7), Tokens{3, 4}), -1);
  EXPECT_EQ(cache_.find(root, Tokens{2, 1}), -1);
  EXPECT_EQ(cache_.num_pages(), 3);
}

TEST_P(PrefixCaches, SaltsShareNothing) {
  insert(cache_, 0, cache_.root(1), {1, 2});
  EXPECT_EQ(cache_.find(cache_.root(0), Tokens{1, 2}), -1);
  EXPECT_EQ(cache_.find(cache_.root(2), Tokens{1, 2}), -1);
  EXPECT_EQ(cache_.find(cache_.root(UINT64_MAX), Tokens{1, 2}), -1);
  EXPECT_EQ(cache_.find(cache_.root(1), Tokens{1, 2}), 0);
}

TEST_P(PrefixCaches, EqualContentsHaveOneIdentity) {
  const Prefix root = cache_.root(0);
  insert(cache_, 0, root, {1, 2});
  insert(cache_, 1, root, {1, 2});
  insert(cache_, 2, cache_.prefix_of(1), {3, 4});
  EXPECT_EQ(cache_.find(cache_.prefix_of(0), Tokens{3, 4}), 2);
  cache_.erase(1);
  EXPECT_EQ(cache_.find(root, Tokens{1, 2}), 0);
  EXPECT_EQ(cache_.find(cache_.prefix_of(0), Tokens{3, 4}), 2);
}

// The page that held a prefix is used for another one: what came after the first is not found after
// the second.
TEST_P(PrefixCaches, AReusedPageIsAnotherPrefix) {
  const Prefix root = cache_.root(0);
  insert(cache_, 0, root, {1, 2});
  insert(cache_, 1, cache_.prefix_of(0), {3, 4});
  cache_.erase(0);
  insert(cache_, 0, root, {9, 9});
  EXPECT_EQ(cache_.find(cache_.prefix_of(0), Tokens{3, 4}), -1);
}

TEST_P(PrefixCaches, ErasesTheGivenPageOnly) {
  const Prefix root = cache_.root(0);
  for (std::int32_t page = 0; page < 8; ++page) insert(cache_, page, root, {page, page});
  for (const std::int32_t erased : {3, 0, 7}) {
    cache_.erase(erased);
    EXPECT_FALSE(cache_.contains(erased));
  }
  EXPECT_EQ(cache_.num_pages(), 5);
  for (std::int32_t page = 0; page < 8; ++page) {
    const std::int32_t expected = page == 3 || page == 0 || page == 7 ? -1 : page;
    EXPECT_EQ(cache_.find(root, Tokens{page, page}), expected);
    EXPECT_EQ(cache_.contains(page), expected == page);
  }
}

// A chain of hashes: equal pages after different prefixes have different hashes, or one sequence of
// equal pages would be one bucket.
TEST(PrefixCache, HashesDependOnThePrefix) {
  PrefixCache cache(64, 1);
  Prefix before = cache.root(0);
  std::vector<std::uint64_t> hashes = {before.hash, cache.root(1).hash};
  for (std::int32_t page = 0; page < 64; ++page) {
    insert(cache, page, before, {7});
    before = cache.prefix_of(page);
    hashes.push_back(before.hash);
  }
  std::ranges::sort(hashes);
  EXPECT_EQ(std::ranges::adjacent_find(hashes), hashes.end());
}

}  // namespace
}  // namespace headrace
