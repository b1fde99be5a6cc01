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

// One allocation: [layer][K, V, for codes their scales, for SparQ attention K by component and sums
// of V][page]. A page number is the same page in every layer. The pages of a layer are neighbours
// because attention reads one layer at a time.
class KvPages {
 public:
  // Of the allocation; INT64_MAX if that overflows.
  static std::int64_t num_bytes(const KvPageShape& shape);

  // `memory` has num_bytes(shape) bytes on the device that `info` describes.
  KvPages(const KvPageShape& shape, const DeviceInfo& info, Buffer memory);

  // Views [num_pages, page_size, num_kv_heads, head_dim or head_dim_v] with the strides of the
  // layout. Of packed codes the last axis counts bytes.
  TensorView k(std::int64_t layer) const;
  TensorView v(std::int64_t layer) const;
  // f32 [num_pages, page_size, num_kv_heads]; with zero points u32, as headrace_quantised_kv has
  // them; without codes not given.
  TensorView k_scale(std::int64_t layer) const;
  TensorView v_scale(std::int64_t layer) const;
  // The same of all layers as plain values, for a step.
  KvView kv_view() const;

  // Appends the copies of a page of all layers to a page of `to`, which has the same shape but for
  // num_pages.
  void add_page_copies(std::int32_t from_page, const KvPages& to, std::int32_t to_page,
                       std::vector<ByteCopy>& copies) const;
  // The same for one token; a slot is page * page_size + index in the page. Scales of groups of
  // tokens are not copied, and pages with components have no such copies.
  void add_slot_copies(std::int64_t from_slot, std::int64_t to_slot,
                       std::vector<ByteCopy>& copies) const;
  // The numbers of copies that one call of these two appends.
  std::size_t copies_per_page() const { return num_planes() * num_layers(); }
  std::size_t copies_per_slot() const;

 private:
  // K, V, the scales of one of them, K by component, or the sum of V in the pages of a sequence
  // before this one, in one layer.
  struct Plane {
    std::byte* data;
    DType dtype;
    std::int64_t row_elements;  // of one row and head
    std::int64_t page_rows;     // of a page: a row for each token, or each group of tokens, or one
    std::int64_t row_bytes() const {
      return row_elements * static_cast<std::int64_t>(dtype_bytes(dtype));
    }
  };
  enum PlaneIndex { kKeys, kValues, kKeyScales, kValueScales, kComponents, kValueSums, kNumPlanes };
  Plane plane(std::int64_t layer, int index) const;
  // The planes that exist.
  std::size_t num_planes() const;
  template <class Body>
  void for_planes(Body body) const;
  TensorView view(const Plane& plane) const;
  TensorView scale_view(const Plane& scales) const;
  // Of the first layer; null without.
  KeyComponents components() const;
  SparqRows value_sums() const;
  void add_slot_copies(const Plane& plane, std::int64_t from_slot, std::int64_t to_slot,
                       std::vector<ByteCopy>& copies) const;
  std::size_t num_layers() const { return static_cast<std::size_t>(shape_.kv.num_layers); }

  KvPageShape shape_;
  std::int32_t device_type_, device_id_;
  Buffer memory_;
};

}  // namespace headrace
