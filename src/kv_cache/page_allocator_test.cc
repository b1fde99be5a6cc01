#include "kv_cache/page_allocator.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

using Pages = std::vector<std::int32_t>;

TEST(PageAllocator, TakesTheLeastRecentlyReleasedPage) {
  PageAllocator pages(3);
  EXPECT_EQ(pages.free_pages(), (Pages{0, 1, 2}));
  EXPECT_EQ(pages.take(), 0);
  EXPECT_EQ(pages.take(), 1);
  pages.release(1);
  pages.release(0);
  EXPECT_EQ(pages.free_pages(), (Pages{2, 1, 0}));
  EXPECT_EQ(pages.take(), 2);
  pages.release(2, PageAllocator::Reuse::first);
  EXPECT_EQ(pages.free_pages(), (Pages{2, 1, 0}));
}

TEST(PageAllocator, APageIsFreeWhenItsLastReferenceEnds) {
  PageAllocator pages(2);
  const std::int32_t page = pages.take();
  EXPECT_EQ(pages.num_shared(), 0);
  pages.share(page);
  pages.share(page);
  EXPECT_EQ(pages.num_refs(page), 3);
  EXPECT_EQ(pages.num_shared(), 1);
  pages.release(page);
  EXPECT_EQ(pages.num_shared(), 1);
  pages.release(page);
  EXPECT_EQ(pages.num_shared(), 0);
  EXPECT_EQ(pages.num_free(), 1);
  pages.release(page);
  EXPECT_EQ(pages.num_refs(page), 0);
  EXPECT_EQ(pages.free_pages(), (Pages{1, 0}));
}

TEST(PageAllocator, SharingAFreePageTakesItOutOfTheList) {
  for (std::int32_t page = 0; page < 4; ++page) {
    PageAllocator pages(4);
    pages.share(page);
    Pages expected = {0, 1, 2, 3};
    expected.erase(expected.begin() + page);
    EXPECT_EQ(pages.free_pages(), expected);
    EXPECT_EQ(pages.num_free(), 3);
    EXPECT_EQ(pages.num_refs(page), 1);
  }
}

TEST(PageAllocator, MayHaveNoPages) {
  const PageAllocator pages(0);
  EXPECT_EQ(pages.num_free(), 0);
  EXPECT_TRUE(pages.free_pages().empty());
}

}  // namespace
}  // namespace headrace
