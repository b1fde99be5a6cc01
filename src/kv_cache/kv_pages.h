// The memory of a paged cache: keys and values of all layers in pages of `page_size` tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "headrace/tensor.hpp"
#include "kv_cache/kv_view.h"
#include "runtime/device.h"

namespace headrace {

// Order of a page's elements: [page_size, num_kv_heads, head_dim] or [num_kv_heads, page_size,
// head_dim].
enum class KvLayout { nhd, hnd };

struct KvPageShape {
  KvShape kv;
  KvLayout layout;
  std::int64_t page_size, num_pages;
};

// One allocation: [layer][K, then V][page]. A page number is the same page in every layer. The
// pages of a layer are neighbours because attention reads one layer at a time.
class KvPages {
 public:
  // Of the allocation; INT64_MAX if that overflows.
  static std::int64_t num_bytes(const KvPageShape& shape);

  // `memory` has num_bytes(shape) bytes on the device that `info` describes.
  KvPages(const KvPageShape& shape, const DeviceInfo& info, Buffer memory);

  // Views [num_pages, page_size, num_kv_heads, head_dim or head_dim_v] with the strides of the
  // layout.
  TensorView k(std::int64_t layer) const;
  TensorView v(std::int64_t layer) const;
  // The same of all layers as plain values, for a step.
  KvView kv_view() const;

  // Appends the copies of a page of all layers to a page of `to`, which has the same shape but for
  // num_pages.
  void add_page_copies(std::int32_t from_page, const KvPages& to, std::int32_t to_page,
                       std::vector<ByteCopy>& copies) const;
  // The same for one token; a slot is page * page_size + index in the page.
  void add_slot_copies(std::int64_t from_slot, std::int64_t to_slot,
                       std::vector<ByteCopy>& copies) const;
  // The numbers of copies that one call of these two appends.
  std::size_t copies_per_page() const { return 2 * num_layers(); }
  std::size_t copies_per_slot() const;

 private:
  // K or V of one layer.
  struct Plane {
    std::byte* data;
    std::int64_t row_bytes;  // of one token and head
  };
  Plane k_plane(std::int64_t layer) const;
  Plane v_plane(std::int64_t layer) const;
  TensorView view(const Plane& plane, std::int64_t dim) const;
  void add_slot_copies(const Plane& plane, std::int64_t from_slot, std::int64_t to_slot,
                       std::vector<ByteCopy>& copies) const;
  std::size_t num_layers() const { return static_cast<std::size_t>(shape_.kv.num_layers); }

  KvPageShape shape_;
  std::int32_t device_type_, device_id_;
  Buffer memory_;
};

}  // namespace headrace
