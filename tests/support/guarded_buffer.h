// Memory for the tensors of a test: between two pages that nobody may touch, filled with a byte of
// the test's choice. An access past an end crashes at once; an access inside, but outside of the
// view, meets NaNs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "headrace/tensor.hpp"

namespace headrace::testing {

// Which end of the memory touches its guard page; there is a page at the other end too, but up to a
// page of filling lies before it.
enum class Guard { after, before };

inline constexpr unsigned char kNanByte = 0xFF;  // a NaN in f16, bf16, f32, f64; -1 as an integer
// Outputs: a NaN in f16, -1.7e38 in bf16 and f32. No result of a test is that.
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

  // The asked-for bytes. Never null, also when there are none: the address then is that of a guard
  // page.
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

// The bytes between the guard pages of the living buffer that holds this address; empty for other
// memory. Addresses of buffers without bytes belong to none.
std::span<unsigned char> guarded_bytes_around(const void* address);

// The elements of a view, addressed by index: `visit(element_index)` for each one in row-major
// order, where the index counts elements from view.data (and may be negative).
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

// What a kernel wrote: the elements of the view in row-major order, as raw bytes. Resets them to
// the sentinel, so that find_other_than(kSentinelByte) then looks at the gaps alone.
struct Written {
  std::vector<unsigned char> bytes;
  std::int64_t untouched = 0;  // elements that still held the sentinel
};
Written take_written(const headrace_tensor& view);

}  // namespace headrace::testing
