// Keys and values of one sequence of up to `capacity` tokens in one allocation:
// [layer][K, then V][head][token][dim]. The rows of a head are contiguous, the fastest layout for
// decode. Pages are backed when they are written, so unused capacity costs no memory.
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
