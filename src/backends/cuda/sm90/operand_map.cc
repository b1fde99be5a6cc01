#include "backends/cuda/sm90/operand_map.h"

#include "backends/cuda/common/constants.h"
#include "backends/cuda/runtime/tensor_map.cuh"

namespace headrace::cuda::sm90 {

Status encode_operand(const Problem& p, const Operand& x, const OperandShape& shape,
                      TensorMap& map) {
  const bool has_pack = shape.pack > 0;
  const std::int64_t pack = has_pack ? shape.pack : 1;
  TensorMapSpec spec{
      .dtype = dtype_of(p),
      .rank = 0,
      .l2_promotion = shape.is_streamed ? L2Promotion::bytes_128 : L2Promotion::bytes_256};
  std::int64_t strides[5] = {1};
  const auto add = [&](std::int64_t size, std::int64_t stride, int box_size) {
    spec.sizes[spec.rank] = size;
    spec.box[spec.rank] = static_cast<std::uint32_t>(box_size);
    // The stride of an axis with one element is not used, but TMA requires a multiple of 16 bytes.
    strides[spec.rank] = size > 1 ? stride : 8;
    ++spec.rank;
  };
  add(shape.columns, 1, kSwizzleAtomCols);
  if (has_pack) add(pack, x.stride_head, shape.pack);
  add(shape.rows, x.stride_seq, shape.box_rows);
  add(shape.heads / pack, x.stride_head * pack, 1);
  add(shape.batch, x.stride_batch, 1);
  if (std::string reason = tensor_map_refusal(spec, x.data, strides); !reason.empty())
    return unsupported(
        "a tensor of the call does not suit TMA: {}; make the plan with "
        "problem.alignment={} for another kernel",
        reason, dtype_bytes(dtype_of(p)));
  return encode_tensor_map(spec, x.data, strides, map);
}

std::string refused_device(const Problem& p, const DeviceInfo& device) {
  constexpr int kHopper = 90;
  if (device.sm != kHopper)
    return format_text("needs a GPU of sm{} (Hopper), not sm{}", kHopper, device.sm);
  if (dtype_of(p) != DType::bf16 && dtype_of(p) != DType::f16)
    return format_text("takes bf16 and f16, not {}", dtype_name(dtype_of(p)));
  return {};
}

std::string refused_operands(const Problem& p, bool has_tile) {
  if (p.head_dim % 8 != 0 || p.head_dim_v % 8 != 0)
    return format_text("head_dim {} and head_dim_v {} must be multiples of 8", p.head_dim,
                       p.head_dim_v);
  if (!has_tile)
    return format_text("head_dim {} with head_dim_v {}: takes up to 256", p.head_dim, p.head_dim_v);
  if (p.alignment < kWholeAlignment)
    return format_text("addresses and strides are multiples of {} bytes, TMA needs {}", p.alignment,
                       kWholeAlignment);
  if (p.has_negative_strides) return "TMA takes no negative strides";
  return {};
}

}  // namespace headrace::cuda::sm90
