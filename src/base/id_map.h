// A map from ids that are given one after the other, such as those of sequences. An id is found in
// one or two cache lines, where std::unordered_map reads a bucket, the node before and the node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

namespace headrace {

// Open addressing with linear probing: the place of an id is its lowest bits, so that ids of about
// one age are side by side. At most half of the places are in use. Values move; pointers to them
// are valid until the next set() or erase().
template <class T>
class IdMap {
 public:
  struct Entry {
    std::int64_t id = 0;  // 0: free
    T value = {};
  };

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // Null: not in the map.
  const T* find(std::int64_t id) const {
    if (places_.empty()) return nullptr;
    const Entry& entry = places_[place_of(id)];
    return entry.id == 0 ? nullptr : &entry.value;
  }
  T* find(std::int64_t id) { return const_cast<T*>(std::as_const(*this).find(id)); }
  // Throws std::out_of_range: not in the map.
  const T& at(std::int64_t id) const {
    const T* const found = find(id);
    if (found == nullptr) throw std::out_of_range("IdMap::at");
    return *found;
  }
  T& at(std::int64_t id) { return const_cast<T&>(std::as_const(*this).at(id)); }

  // In place of the value that the id may have. id: above 0. Without effect if memory is missing.
  T& set(std::int64_t id, T value) {
    if (2 * (size_ + 1) > places_.size()) grow();
    Entry& entry = places_[place_of(id)];
    size_ += entry.id == 0;
    entry.id = id;
    entry.value = std::move(value);
    return entry.value;
  }

  // No effect if the id is not in the map.
  void erase(std::int64_t id) noexcept {
    if (find(id) == nullptr) return;
    // Entries behind it that probing would no longer reach move up.
    std::size_t hole = place_of(id);
    for (std::size_t i = next(hole); places_[i].id != 0; i = next(i)) {
      if (distance(home_of(places_[i].id), i) < distance(hole, i)) continue;
      places_[hole] = std::move(places_[i]);
      hole = i;
    }
    places_[hole] = {};
    --size_;
  }

  void clear() noexcept {
    places_.clear();
    size_ = 0;
  }

  // Calls body(id, value) for each, in no order.
  template <class Body>
  void for_each(Body body) const {
    for (const Entry& entry : places_)
      if (entry.id != 0) body(entry.id, entry.value);
  }

 private:
  std::size_t home_of(std::int64_t id) const {
    return static_cast<std::size_t>(id) & (places_.size() - 1);
  }
  std::size_t next(std::size_t i) const { return (i + 1) & (places_.size() - 1); }
  std::size_t distance(std::size_t from, std::size_t to) const {
    return (to - from) & (places_.size() - 1);
  }
  // Of the id, or a free one where it would be.
  std::size_t place_of(std::int64_t id) const {
    std::size_t i = home_of(id);
    while (places_[i].id != 0 && places_[i].id != id) i = next(i);
    return i;
  }
  void grow() {
    std::vector<Entry> before(places_.empty() ? 16 : 2 * places_.size());
    before.swap(places_);
    for (Entry& entry : before)
      if (entry.id != 0) places_[place_of(entry.id)] = std::move(entry);
  }

  std::vector<Entry> places_;  // empty, or a power of two
  std::size_t size_ = 0;
};

}  // namespace headrace
