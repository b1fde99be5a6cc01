// Uninitialized fixed-size memory, aligned to a cache line.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "base/math.h"

namespace headrace {

template <class T>
class Aligned {
 public:
  static constexpr std::size_t kAlignment = 64;

  Aligned() = default;
  // get() is null if the allocation failed.
  explicit Aligned(std::size_t count)
      : memory_(static_cast<T*>(
            std::aligned_alloc(kAlignment, round_up((count + 1) * sizeof(T), kAlignment)))) {}

  T* get() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  std::unique_ptr<T, Free> memory_;
};

}  // namespace headrace
