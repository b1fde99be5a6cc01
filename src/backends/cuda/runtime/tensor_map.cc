#include "backends/cuda/runtime/tensor_map.cuh"

#include <cuda.h>

#include "backends/cuda/runtime/driver.cuh"

namespace headrace::cuda {
namespace {

static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) >= 64);

CUtensorMap* as_driver(TensorMap& map) { return reinterpret_cast<CUtensorMap*>(&map); }

CUtensorMapDataType type_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::bf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::f64:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT64;
    default:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  }
}

Failure no_tensor_maps() {
  return {ErrorCode::device_error,
          "the driver has no tensor maps (cuTensorMapEncodeTiled of CUDA 12); install a newer one"};
}

Failure driver_failure(CUresult result, const char* doing, const TensorMapSpec& spec,
                       const void* data) {
  return {
      ErrorCode::device_error,
      format_text("error {} of the driver while {} a tensor map of rank {} ({}) at {}, sizes {} "
                  "{} {} {} {}, box {} {} {} {} {}",
                  static_cast<int>(result), doing, spec.rank, dtype_name(spec.dtype), data,
                  spec.sizes[0], spec.sizes[1], spec.sizes[2], spec.sizes[3], spec.sizes[4],
                  spec.box[0], spec.box[1], spec.box[2], spec.box[3], spec.box[4])};
}

}  // namespace

std::string tensor_map_refusal(const TensorMapSpec& spec, const void* data,
                               const std::int64_t* strides) {
  constexpr std::int64_t kMaxSize = std::int64_t{1} << 32, kMaxStride = std::int64_t{1} << 40;
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(spec.dtype));
  if (reinterpret_cast<std::uintptr_t>(data) % 16 != 0)
    return format_text("address {} is no multiple of 16", data);
  for (int i = 0; i < spec.rank; ++i) {
    if (spec.sizes[i] < 1 || spec.sizes[i] > kMaxSize)
      return format_text("size {} of axis {} is not 1 to 2^32", spec.sizes[i], i);
    if (i == 0) continue;
    const std::int64_t stride = strides[i] * bytes;
    if (stride < 0 || stride >= kMaxStride || stride % 16 != 0)
      return format_text("stride {} of axis {}, {} bytes, is no multiple of 16 from 0 to 2^40",
                         strides[i], i, stride);
  }
  return {};
}

Status encode_tensor_map(const TensorMapSpec& spec, const void* data, const std::int64_t* strides,
                         TensorMap& map) {
  Result<const Driver*> found = driver();
  if (!found.ok()) return std::move(found.failure());
  const auto encode = found.value()->tensor_map_encode_tiled;
  if (encode == nullptr) return no_tensor_maps();
  cuuint64_t sizes[5] = {}, byte_strides[4] = {};
  cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  for (int i = 0; i < spec.rank; ++i) {
    sizes[i] = static_cast<cuuint64_t>(spec.sizes[i]);
    if (i > 0) byte_strides[i - 1] = static_cast<cuuint64_t>(strides[i]) * dtype_bytes(spec.dtype);
  }
  const CUresult result = encode(
      as_driver(map), type_of(spec.dtype), static_cast<cuuint32_t>(spec.rank),
      const_cast<void*>(data), sizes, byte_strides, spec.box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      spec.is_swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
      spec.l2_promotion == L2Promotion::bytes_128 ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B
                                                  : CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return std::nullopt;
  return driver_failure(result, "encoding", spec, data);
}

Status move_tensor_map(TensorMap& map, const void* data) {
  Result<const Driver*> found = driver();
  if (!found.ok()) return std::move(found.failure());
  const auto replace = found.value()->tensor_map_replace_address;
  if (replace == nullptr) return no_tensor_maps();
  const CUresult result = replace(as_driver(map), const_cast<void*>(data));
  if (result == CUDA_SUCCESS) return std::nullopt;
  return Failure{ErrorCode::device_error,
                 format_text("error {} of the driver while moving a tensor map to {}",
                             static_cast<int>(result), data)};
}

}  // namespace headrace::cuda
