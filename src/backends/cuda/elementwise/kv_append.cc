// An append on a GPU: checks, and which operands allow wide accesses.
#include "backends/cuda/elementwise/kv_append.h"

#include <initializer_list>

#include "backends/cuda/backend.h"
#include "backends/cuda/runtime/device.cuh"
#include "backends/cuda/runtime/error_word.cuh"
#include "backends/cuda/runtime/operator_device.cuh"
#include "backends/cuda/runtime/pointer.cuh"

namespace headrace::cuda {
namespace {

Status check_pointers(const KvAppendArgs& args, int device_id) {
  const struct {
    const char* name;
    const void* data;
  } pointers[] = {{"q", args.q.data},
                  {"q_out", args.q_out.data},
                  {"k", args.k.data},
                  {"v", args.v.data},
                  {"k_pages", args.k_pages.data},
                  {"v_pages", args.v_pages.data},
                  {"k_scale", args.k_scale.data},
                  {"v_scale", args.v_scale.data},
                  {"k_recent", args.recent.k.data},
                  {"v_recent", args.recent.v.data},
                  {"recent_slots", args.recent.slots},
                  {"slot_mapping", args.slot_mapping},
                  {"positions", args.positions},
                  {"cos", args.tables.cos},
                  {"sin", args.tables.sin},
                  {"q_norm_weight", args.q_norm.data},
                  {"k_norm_weight", args.k_norm.data}};
  for (const auto& [name, data] : pointers) HEADRACE_TRY(check_pointer(name, data, device_id));
  return std::nullopt;
}

bool has_vectors(const void* data, DType dtype, std::int64_t width,
                 std::initializer_list<std::int64_t> strides) {
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(dtype));
  bool is_aligned = reinterpret_cast<std::uintptr_t>(data) % append::kVectorBytes == 0 &&
                    width * bytes % append::kVectorBytes == 0;
  for (const std::int64_t stride : strides)
    is_aligned = is_aligned && stride * bytes % append::kVectorBytes == 0;
  return is_aligned;
}
bool has_vectors(const HeadRows& x, std::int64_t width) {
  return has_vectors(x.data, x.dtype, width, {x.stride_token, x.stride_head});
}
bool has_vectors(const PageRows& x, std::int64_t width) {
  return has_vectors(x.data, x.dtype, width, {x.stride_page, x.stride_slot, x.stride_head});
}

}  // namespace

namespace append {

Vectors vectors_of(const KvAppendArgs& args) {
  return {.q = has_vectors(args.q, args.head_dim),
          .q_out = has_vectors(args.q_out, args.head_dim),
          .k = has_vectors(args.k, args.head_dim),
          .v = has_vectors(args.v, args.head_dim_v),
          .k_pages = has_vectors(args.k_pages, args.head_dim),
          .v_pages = has_vectors(args.v_pages, args.head_dim_v),
          .k_recent = has_vectors(args.recent.k, args.head_dim),
          .v_recent = has_vectors(args.recent.v, args.head_dim_v)};
}

bool takes_vectors(const KvAppendArgs& args, const Vectors& vectors) {
  const DType dtype = args.k.dtype;
  const bool has_q = args.num_heads > 0;
  const bool is_uniform = (dtype == DType::bf16 || dtype == DType::f16) && args.v.dtype == dtype &&
                          args.k_pages.dtype == dtype && args.v_pages.dtype == dtype &&
                          (!has_q || (args.q.dtype == dtype && args.q_out.dtype == dtype));
  const bool has_vectors = vectors.k && vectors.v && vectors.k_pages && vectors.v_pages &&
                           (!has_q || (vectors.q && vectors.q_out));
  // The angles of eight pairs are two vectors of floats.
  const auto has_floats = [](const void* data, DType type, std::int64_t stride) {
    return data != nullptr && type == DType::f32 && stride % 4 == 0 &&
           reinterpret_cast<std::uintptr_t>(data) % kVectorBytes == 0;
  };
  const RopeTables& tables = args.tables;
  const std::int64_t num_rows = args.num_heads + 2 * args.num_kv_heads;
  constexpr std::int64_t kMost = INT32_MAX / 2;
  return args.num_kv_heads > 0 && is_uniform && has_vectors && args.q_norm.data == nullptr &&
         args.k_norm.data == nullptr && args.channel_factors.data == nullptr &&
         args.hadamard_block <= 1 && args.head_dim % 16 == 0 && args.head_dim_v == args.head_dim &&
         args.rot_dim == args.head_dim &&
         has_floats(tables.cos, tables.cos_dtype, tables.cos_stride) &&
         has_floats(tables.sin, tables.sin_dtype, tables.sin_stride) &&
         saturating_product({args.num_tokens, num_rows, args.head_dim}) < kMost &&
         saturating_product({args.num_pages, args.page_size}) < kMost;
}

VectorParams vector_params(const KvAppendArgs& args, std::uint32_t* error_word) {
  const auto heads = [](const HeadRows& x) {
    return HeadRowsOf{x.data, x.stride_token, x.stride_head};
  };
  const auto pages = [](const PageRows& x) {
    return PageRowsOf{x.data, x.stride_page, x.stride_slot, x.stride_head};
  };
  const auto num_rows = static_cast<std::int32_t>(args.num_heads + 2 * args.num_kv_heads);
  const auto num_chunks = static_cast<std::int32_t>(args.head_dim / 16);
  return {.q = heads(args.q),
          .q_out = heads(args.q_out),
          .k = heads(args.k),
          .v = heads(args.v),
          .k_pages = pages(args.k_pages),
          .v_pages = pages(args.v_pages),
          .slot_mapping = args.slot_mapping,
          .slot_stride = args.slot_stride,
          .positions = args.positions,
          .position_stride = args.position_stride,
          .cos = static_cast<const float*>(args.tables.cos),
          .sin = static_cast<const float*>(args.tables.sin),
          .cos_stride = args.tables.cos_stride,
          .sin_stride = args.tables.sin_stride,
          .max_positions = args.tables.max_positions,
          .num_tokens = static_cast<std::int32_t>(args.num_tokens),
          .num_rows = num_rows,
          .num_heads = static_cast<std::int32_t>(args.num_heads),
          .num_kv_heads = static_cast<std::int32_t>(args.num_kv_heads),
          .page_size = static_cast<std::int32_t>(args.page_size),
          .num_slots = static_cast<std::int32_t>(args.num_pages * args.page_size),
          .num_chunks = num_chunks,
          .is_halves = args.layout == RopeLayout::halves,
          .by_chunks = Divisor::of(num_chunks),
          .by_rows = Divisor::of(num_rows),
          .by_page_size = Divisor::of(std::max<std::int64_t>(args.page_size, 1)),
          .error_word = error_word};
}

}  // namespace append

Status kv_append(const KvAppendArgs& args, int device_id, Stream stream) {
  HEADRACE_TRY(check_operator_device("kv_append", device_id));
  const DeviceScope scope(device_id);
  if (scope.status()) return scope.status();
  HEADRACE_TRY(check_pointers(args, device_id));
  Result<DeviceInfo> device = device_info(device_id);
  if (!device.ok()) return std::move(device.failure());
  const append::Config config = append::config_of(args, device.value().num_units);
  if (args.num_tokens == 0 || config.num_rows == 0) return std::nullopt;
  Result<std::uint32_t*> word = error_word(device_id);
  if (!word.ok()) return std::move(word.failure());
  const append::Vectors vectors = append::vectors_of(args);
  if (append::takes_vectors(args, vectors))
    return append::launch_vectors(append::vector_params(args, word.value()), args.k.dtype, stream);
  return append::launch(args, config, vectors, word.value(), stream);
}

}  // namespace headrace::cuda
