#include "kv_cache/kv_pages.h"

#include "base/math.h"

namespace headrace {
namespace {

// Each plane of a layer begins at a multiple of this, so that vector loads and TMA can read it.
constexpr std::int64_t kAlignment = 256;

// Of codes only.
constexpr bool has_scale(const KvShape& kv, DType dtype) { return dtype != kv.dtype; }

constexpr DType scale_dtype(DType codes) {
  return has_zero_points(codes) ? DType::u32 : DType::f32;
}

// Elements of the dtype that one head has of a row, which is `tokens` tokens; 0 elements: the plane
// does not exist.
struct RowFormat {
  DType dtype;
  std::int64_t elements;
  std::int64_t tokens = 1;
};
RowFormat row_format(const KvPageShape& shape, int plane) {
  const KvShape& kv = shape.kv;
  switch (plane) {
    case 0:
      return {kv.k_dtype, stored_size(kv.k_dtype, kv.head_dim)};
    case 1:
      return {kv.v_dtype, stored_size(kv.v_dtype, kv.head_dim_v)};
    case 2:
      return {scale_dtype(kv.k_dtype),
              has_scale(kv, kv.k_dtype) ? scales_of_key(kv.k_dtype, kv.head_dim) : 0,
              has_zero_points(kv.k_dtype) ? kZeroPointGroup : 1};
    case 3:
      return {scale_dtype(kv.v_dtype),
              has_scale(kv, kv.v_dtype) ? scales_of_value(kv.v_dtype, kv.head_dim_v) : 0};
    case 4:  // as many elements as the keys have
      return {kv.dtype, kv.has_components ? kv.head_dim : 0};
    default:
      return {DType::f32, kv.has_value_sums ? kv.head_dim_v : 0, shape.page_size};
  }
}

// A plane of one layer; INT64_MAX on overflow.
std::int64_t plane_bytes(const KvPageShape& shape, int plane) {
  const RowFormat row = row_format(shape, plane);
  const std::int64_t bytes =
      saturating_product({shape.num_pages, shape.page_size / row.tokens, shape.kv.num_kv_heads,
                          row.elements, static_cast<std::int64_t>(dtype_bytes(row.dtype))});
  return bytes > INT64_MAX - kAlignment ? INT64_MAX : round_up(bytes, kAlignment);
}

// The planes before this one.
std::int64_t bytes_before(const KvPageShape& shape, int plane) {
  std::int64_t sum = 0;
  for (int i = 0; i < plane; ++i) {
    const std::int64_t bytes = plane_bytes(shape, i);
    sum = sum > INT64_MAX - bytes ? INT64_MAX : sum + bytes;
  }
  return sum;
}

}  // namespace

std::int64_t KvPages::num_bytes(const KvPageShape& shape) {
  return saturating_product({shape.kv.num_layers, bytes_before(shape, kNumPlanes)});
}

KvPages::KvPages(const KvPageShape& shape, const DeviceInfo& info, Buffer memory)
    : shape_(shape),
      device_type_(info.device_type),
      device_id_(info.device_id),
      memory_(std::move(memory)) {}

KvPages::Plane KvPages::plane(std::int64_t layer, int index) const {
  const RowFormat row = row_format(shape_, index);
  return {memory_.data() + layer * bytes_before(shape_, kNumPlanes) + bytes_before(shape_, index),
          row.dtype, row.elements, shape_.page_size / row.tokens};
}

std::size_t KvPages::num_planes() const {
  std::size_t count = 0;
  for (int i = 0; i < kNumPlanes; ++i) count += row_format(shape_, i).elements > 0 ? 1 : 0;
  return count;
}

template <class Body>
void KvPages::for_planes(Body body) const {
  for (std::int64_t layer = 0; layer < shape_.kv.num_layers; ++layer)
    for (int i = 0; i < kNumPlanes; ++i)
      if (row_format(shape_, i).elements > 0) body(layer, i);
}

TensorView KvPages::view(const Plane& plane) const {
  const std::int64_t num_rows = plane.page_rows, num_heads = shape_.kv.num_kv_heads;
  const std::int64_t dim = plane.row_elements;
  const bool is_nhd = shape_.layout == KvLayout::nhd;
  TensorView view(plane.data, plane.dtype, {shape_.num_pages, num_rows, num_heads, dim});
  view.device_type = device_type_;
  view.device_id = device_id_;
  view.strides[1] = is_nhd ? num_heads * dim : dim;
  view.strides[2] = is_nhd ? dim : num_rows * dim;
  return view;
}

TensorView KvPages::k(std::int64_t layer) const { return view(plane(layer, kKeys)); }
TensorView KvPages::v(std::int64_t layer) const { return view(plane(layer, kValues)); }

TensorView KvPages::scale_view(const Plane& scales) const {
  if (scales.row_elements == 0) return {};
  return scales.dtype == DType::u32 ? view(scales) : *view(scales).select(3, 0);
}
TensorView KvPages::k_scale(std::int64_t layer) const {
  return scale_view(plane(layer, kKeyScales));
}
TensorView KvPages::v_scale(std::int64_t layer) const {
  return scale_view(plane(layer, kValueScales));
}

KeyComponents KvPages::components() const {
  if (!shape_.kv.has_components) return {};
  const std::int64_t of_head = shape_.kv.head_dim * shape_.page_size;
  return {.data = plane(0, kComponents).data,
          .stride_page = shape_.kv.num_kv_heads * of_head,
          .stride_head = of_head,
          .stride_component = shape_.page_size};
}

SparqRows KvPages::value_sums() const {
  if (!shape_.kv.has_value_sums) return {};
  return {.data = plane(0, kValueSums).data,
          .stride_batch = shape_.kv.num_kv_heads * shape_.kv.head_dim_v,
          .stride_head = shape_.kv.head_dim_v};
}

KvView KvPages::kv_view() const {
  const auto operand = [](const TensorView& pages) {
    return Operand{.data = pages.data,
                   .stride_batch = pages.strides[0],
                   .stride_seq = pages.strides[1],
                   .stride_head = pages.strides[2]};
  };
  const auto scale = [](const TensorView& pages) {
    return ScaleOperand{.data = pages.data,
                        .stride_batch = pages.strides[0],
                        .stride_seq = pages.strides[1],
                        .stride_head = pages.strides[2]};
  };
  return {.shape = shape_.kv,
          .page_size = shape_.page_size,
          .num_pages = shape_.num_pages,
          .k = operand(k(0)),
          .v = operand(v(0)),
          .layer_bytes = bytes_before(shape_, kNumPlanes),
          .k_scale = scale(k_scale(0)),
          .v_scale = scale(v_scale(0)),
          .components = components(),
          .value_sums = value_sums()};
}

void KvPages::add_page_copies(std::int32_t from_page, const KvPages& to, std::int32_t to_page,
                              std::vector<ByteCopy>& copies) const {
  for_planes([&](std::int64_t layer, int i) {
    const Plane from_plane = plane(layer, i), to_plane = to.plane(layer, i);
    const std::int64_t bytes =
        from_plane.page_rows * shape_.kv.num_kv_heads * from_plane.row_bytes();
    copies.push_back({from_plane.data + from_page * bytes, to_plane.data + to_page * bytes,
                      static_cast<std::size_t>(bytes)});
  });
}

void KvPages::add_slot_copies(std::int64_t from_slot, std::int64_t to_slot,
                              std::vector<ByteCopy>& copies) const {
  for_planes([&](std::int64_t layer, int i) {
    const Plane of_layer = plane(layer, i);
    if (of_layer.page_rows == shape_.page_size)
      add_slot_copies(of_layer, from_slot, to_slot, copies);
  });
}

void KvPages::add_slot_copies(const Plane& plane, std::int64_t from_slot, std::int64_t to_slot,
                              std::vector<ByteCopy>& copies) const {
  const std::int64_t page_size = shape_.page_size, num_heads = shape_.kv.num_kv_heads;
  const std::int64_t row_bytes = plane.row_bytes();
  if (shape_.layout == KvLayout::nhd) {  // the heads of a token are contiguous
    const std::int64_t bytes = num_heads * row_bytes;
    copies.push_back({plane.data + from_slot * bytes, plane.data + to_slot * bytes,
                      static_cast<std::size_t>(bytes)});
    return;
  }
  const auto row = [&](std::int64_t slot, std::int64_t head) {
    const std::int64_t page = slot / page_size, idx = slot % page_size;
    return plane.data + ((page * num_heads + head) * page_size + idx) * row_bytes;
  };
  for (std::int64_t head = 0; head < num_heads; ++head)
    copies.push_back(
        {row(from_slot, head), row(to_slot, head), static_cast<std::size_t>(row_bytes)});
}

std::size_t KvPages::copies_per_slot() const {
  const bool is_nhd = shape_.layout == KvLayout::nhd;
  return copies_per_page() * (is_nhd ? 1 : static_cast<std::size_t>(shape_.kv.num_kv_heads));
}

}  // namespace headrace
