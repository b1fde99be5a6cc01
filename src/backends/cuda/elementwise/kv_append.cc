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
  const append::Vectors vectors{.q = has_vectors(args.q, args.head_dim),
                                .q_out = has_vectors(args.q_out, args.head_dim),
                                .k = has_vectors(args.k, args.head_dim),
                                .v = has_vectors(args.v, args.head_dim_v),
                                .k_pages = has_vectors(args.k_pages, args.head_dim),
                                .v_pages = has_vectors(args.v_pages, args.head_dim_v)};
  return append::launch(args, config, vectors, word.value(), stream);
}

}  // namespace headrace::cuda
