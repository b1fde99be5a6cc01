// Memory for test tensors between two inaccessible pages, filled with a chosen byte. An access past
// an end crashes; a read inside the memory but outside of the view returns NaNs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "headrace/tensor.hpp"

namespace headrace::testing {

// Which end of the memory is adjacent to its guard page. The other end has a guard page too, but up
// to a page of padding before it.
enum class Guard { after, before };

inline constexpr unsigned char kNanByte = 0xFF;  // a NaN in f16, bf16, f32, f64; -1 as an integer
// Outputs: a NaN in f16, -1.7e38 in bf16 and f32. No test has such a result.
inline constexpr unsigned char kSentinelByte = 0xFE;

class GuardedBuffer {
 public:
  GuardedBuffer() = default;
  GuardedBuffer(std::size_t bytes, Guard guard, unsigned char fill);
  GuardedBuffer(GuardedBuffer&& other) noexcept { swap(other); }
  GuardedBuffer& operator=(GuardedBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~GuardedBuffer();

  // The requested bytes. Never null: without bytes it is the address of a guard page.
  unsigned char* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  void fill(unsigned char byte);
  void make_read_only();
  void make_writable();
  // All bytes between the guard pages.
  unsigned char* inner() const;
  std::size_t inner_bytes() const { return inner_bytes_; }
  // The first byte between the guard pages that differs from `byte`, or -1.
  std::ptrdiff_t find_other_than(unsigned char byte) const;

 private:
  void swap(GuardedBuffer& other) {
    std::swap(map_, other.map_);
    std::swap(inner_bytes_, other.inner_bytes_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  unsigned char* map_ = nullptr;  // guard page, inner bytes, guard page
  std::size_t inner_bytes_ = 0;
  unsigned char* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// The bytes between the guard pages of the live buffer that contains the address; empty for other
// memory and for empty buffers.
std::span<unsigned char> guarded_bytes_around(const void* address);

// Calls visit(element_index) for each element of a view in row-major order; the index counts
// elements from view.data and may be negative.
template <class Visit>
void for_each_element(const headrace_tensor& view, Visit visit) {
  std::int64_t count = 1;
  for (int i = 0; i < view.rank; ++i) count *= view.shape[i];
  std::int64_t index[HEADRACE_MAX_RANK] = {};
  std::int64_t offset = 0;
  for (std::int64_t n = 0; n < count; ++n) {
    visit(offset);
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      offset += view.strides[axis];
      if (++index[axis] < view.shape[axis]) break;
      offset -= view.strides[axis] * view.shape[axis];
      index[axis] = 0;
    }
  }
}

// The elements of an output view in row-major order, as raw bytes. Reading them resets them to the
// sentinel, so that find_other_than(kSentinelByte) then only checks the gaps.
struct Written {
  std::vector<unsigned char> bytes;
  std::int64_t untouched = 0;  // elements that were not written
};
Written take_written(const headrace_tensor& view);

}  // namespace headrace::testing
