// Keys and values of one sequence of up to `capacity` tokens in one block of memory:
// [layer][K, then V][head][token][dim]. The rows of a head are contiguous, which is the fastest
// layout for decode. A large capacity costs memory only where rows are written.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "kv_cache/kv_view.h"
#include "runtime/device.h"

namespace headrace {

class ContiguousCache {
 public:
  // out_of_memory.
  static Result<ContiguousCache> make(Device& device, const KvShape& shape, std::int64_t capacity);

  const KvShape& shape() const { return shape_; }
  KvSequence sequence() const;

 private:
  ContiguousCache(const KvShape& shape, std::int64_t capacity, Buffer memory)
      : shape_(shape), capacity_(capacity), memory_(std::move(memory)) {}

  KvShape shape_;
  std::int64_t capacity_;
  Buffer memory_;
};

}  // namespace headrace
