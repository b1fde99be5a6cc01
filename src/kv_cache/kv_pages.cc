#include "kv_cache/kv_pages.h"

#include "base/math.h"

namespace headrace {
namespace {

// K and V of each layer begin at a multiple of this, so that vector loads and TMA can read them.
constexpr std::int64_t kAlignment = 256;

std::int64_t element_bytes(const KvPageShape& shape) {
  return static_cast<std::int64_t>(dtype_bytes(shape.kv.dtype));
}

// K or V of one layer; INT64_MAX on overflow.
std::int64_t plane_bytes(const KvPageShape& shape, std::int64_t dim) {
  const std::int64_t bytes = saturating_product(
      {shape.num_pages, shape.page_size, shape.kv.num_kv_heads, dim, element_bytes(shape)});
  return bytes > INT64_MAX - kAlignment ? INT64_MAX : round_up(bytes, kAlignment);
}

std::int64_t layer_bytes(const KvPageShape& shape) {
  const std::int64_t k_bytes = plane_bytes(shape, shape.kv.head_dim);
  const std::int64_t v_bytes = plane_bytes(shape, shape.kv.head_dim_v);
  return k_bytes > INT64_MAX - v_bytes ? INT64_MAX : k_bytes + v_bytes;
}

}  // namespace

std::int64_t KvPages::num_bytes(const KvPageShape& shape) {
  return saturating_product({shape.kv.num_layers, layer_bytes(shape)});
}

KvPages::KvPages(const KvPageShape& shape, const DeviceInfo& info, Buffer memory)
    : shape_(shape),
      device_type_(info.device_type),
      device_id_(info.device_id),
      memory_(std::move(memory)) {}

KvPages::Plane KvPages::k_plane(std::int64_t layer) const {
  return {memory_.data() + layer * layer_bytes(shape_), shape_.kv.head_dim * element_bytes(shape_)};
}

KvPages::Plane KvPages::v_plane(std::int64_t layer) const {
  return {k_plane(layer).data + plane_bytes(shape_, shape_.kv.head_dim),
          shape_.kv.head_dim_v * element_bytes(shape_)};
}

TensorView KvPages::view(const Plane& plane, std::int64_t dim) const {
  const std::int64_t page_size = shape_.page_size, num_heads = shape_.kv.num_kv_heads;
  const bool is_nhd = shape_.layout == KvLayout::nhd;
  TensorView view(plane.data, shape_.kv.dtype, {shape_.num_pages, page_size, num_heads, dim});
  view.device_type = device_type_;
  view.device_id = device_id_;
  view.strides[1] = is_nhd ? num_heads * dim : dim;
  view.strides[2] = is_nhd ? dim : page_size * dim;
  return view;
}

TensorView KvPages::k(std::int64_t layer) const { return view(k_plane(layer), shape_.kv.head_dim); }
TensorView KvPages::v(std::int64_t layer) const {
  return view(v_plane(layer), shape_.kv.head_dim_v);
}

KvView KvPages::kv_view() const {
  const auto operand = [](const TensorView& pages) {
    return Operand{.data = pages.data,
                   .stride_batch = pages.strides[0],
                   .stride_seq = pages.strides[1],
                   .stride_head = pages.strides[2]};
  };
  return {.shape = shape_.kv,
          .page_size = shape_.page_size,
          .num_pages = shape_.num_pages,
          .k = operand(k(0)),
          .v = operand(v(0)),
          .stride_layer = layer_bytes(shape_) / element_bytes(shape_)};
}

void KvPages::add_page_copies(std::int32_t from_page, const KvPages& to, std::int32_t to_page,
                              std::vector<ByteCopy>& copies) const {
  const auto add = [&](const Plane& from_plane, const Plane& to_plane) {
    const std::int64_t bytes = shape_.page_size * shape_.kv.num_kv_heads * from_plane.row_bytes;
    copies.push_back({from_plane.data + from_page * bytes, to_plane.data + to_page * bytes,
                      static_cast<std::size_t>(bytes)});
  };
  for (std::int64_t layer = 0; layer < shape_.kv.num_layers; ++layer) {
    add(k_plane(layer), to.k_plane(layer));
    add(v_plane(layer), to.v_plane(layer));
  }
}

void KvPages::add_slot_copies(std::int64_t from_slot, std::int64_t to_slot,
                              std::vector<ByteCopy>& copies) const {
  for (std::int64_t layer = 0; layer < shape_.kv.num_layers; ++layer) {
    add_slot_copies(k_plane(layer), from_slot, to_slot, copies);
    add_slot_copies(v_plane(layer), from_slot, to_slot, copies);
  }
}

void KvPages::add_slot_copies(const Plane& plane, std::int64_t from_slot, std::int64_t to_slot,
                              std::vector<ByteCopy>& copies) const {
  const std::int64_t page_size = shape_.page_size, num_heads = shape_.kv.num_kv_heads;
  if (shape_.layout == KvLayout::nhd) {  // the heads of a token are contiguous
    const std::int64_t bytes = num_heads * plane.row_bytes;
    copies.push_back({plane.data + from_slot * bytes, plane.data + to_slot * bytes,
                      static_cast<std::size_t>(bytes)});
    return;
  }
  const auto row = [&](std::int64_t slot, std::int64_t head) {
    const std::int64_t page = slot / page_size, idx = slot % page_size;
    return plane.data + ((page * num_heads + head) * page_size + idx) * plane.row_bytes;
  };
  for (std::int64_t head = 0; head < num_heads; ++head)
    copies.push_back(
        {row(from_slot, head), row(to_slot, head), static_cast<std::size_t>(plane.row_bytes)});
}

std::size_t KvPages::copies_per_slot() const {
  const bool is_nhd = shape_.layout == KvLayout::nhd;
  return copies_per_page() * (is_nhd ? 1 : static_cast<std::size_t>(shape_.kv.num_kv_heads));
}

}  // namespace headrace
