// Reference counts of pages, and the list of those that are free.
#pragma once

#include <cstdint>
#include <vector>

namespace headrace {

// All pages are created at once and are free. The free list is intrusive and doubly linked: any
// page leaves it in O(1). Pages are taken from its front and, if their contents are worth keeping,
// returned to its back, so that it is also the queue of the least recently used.
class PageAllocator {
 public:
  // Where a page goes that nothing refers to any longer.
  enum class Reuse { last, first };

  explicit PageAllocator(std::int32_t num_pages);

  std::int32_t num_pages() const { return none_; }
  std::int32_t num_free() const { return num_free_; }
  std::int32_t num_shared() const { return num_shared_; }  // pages with more than one reference
  std::int32_t num_refs(std::int32_t page) const { return at(page).num_refs; }
  // All pages are free again.
  void clear() noexcept;
  // The free pages in the order in which take() returns them.
  std::vector<std::int32_t> free_pages() const;

  // The front of the free list, with one reference. Requires num_free() > 0.
  std::int32_t take();
  // Adds a reference. A free page leaves the free list.
  void share(std::int32_t page);
  // Drops a reference. A page without references enters the free list.
  void release(std::int32_t page, Reuse reuse = Reuse::last);

 private:
  struct Page {
    std::int32_t num_refs, prev, next;  // prev and next count only while the page is free
  };

  Page& at(std::int32_t page) { return pages_[static_cast<std::size_t>(page)]; }
  const Page& at(std::int32_t page) const { return pages_[static_cast<std::size_t>(page)]; }
  void link_before(std::int32_t page, std::int32_t next);
  void unlink(std::int32_t page);

  std::int32_t none_;        // the sentinel that closes the ring; equals num_pages
  std::vector<Page> pages_;  // [num_pages + 1]
  std::int32_t num_free_ = 0;
  std::int32_t num_shared_ = 0;
};

}  // namespace headrace
