#include "kv_cache/page_allocator.h"

namespace headrace {

PageAllocator::PageAllocator(std::int32_t num_pages)
    : none_(num_pages), pages_(static_cast<std::size_t>(num_pages) + 1, Page{0, 0, 0}) {
  clear();
}

void PageAllocator::clear() noexcept {
  num_free_ = num_shared_ = 0;
  at(none_) = {0, none_, none_};
  for (std::int32_t page = 0; page < none_; ++page) {
    at(page).num_refs = 0;
    link_before(page, none_);
  }
}

std::vector<std::int32_t> PageAllocator::free_pages() const {
  std::vector<std::int32_t> pages;
  for (std::int32_t page = at(none_).next; page != none_; page = at(page).next)
    pages.push_back(page);
  return pages;
}

std::int32_t PageAllocator::take() {
  const std::int32_t page = at(none_).next;
  share(page);
  return page;
}

void PageAllocator::share(std::int32_t page) {
  const std::int32_t num_refs = ++at(page).num_refs;
  if (num_refs == 1) unlink(page);
  if (num_refs == 2) ++num_shared_;
}

void PageAllocator::release(std::int32_t page, Reuse reuse) {
  const std::int32_t num_refs = --at(page).num_refs;
  if (num_refs == 1) --num_shared_;
  if (num_refs == 0) link_before(page, reuse == Reuse::first ? at(none_).next : none_);
}

void PageAllocator::link_before(std::int32_t page, std::int32_t next) {
  const std::int32_t prev = at(next).prev;
  at(page).prev = prev;
  at(page).next = next;
  at(prev).next = page;
  at(next).prev = page;
  ++num_free_;
}

void PageAllocator::unlink(std::int32_t page) {
  at(at(page).prev).next = at(page).next;
  at(at(page).next).prev = at(page).prev;
  --num_free_;
}

}  // namespace headrace
