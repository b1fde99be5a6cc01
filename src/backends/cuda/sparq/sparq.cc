// SparQ attention on a GPU: checks, the workspace, and which operands allow wide accesses.
#include "backends/cuda/sparq/sparq.h"

#include <algorithm>
#include <initializer_list>

#include "backends/cuda/backend.h"
#include "backends/cuda/runtime/device.cuh"
#include "backends/cuda/runtime/error_word.cuh"
#include "backends/cuda/runtime/operator_device.cuh"
#include "backends/cuda/runtime/pointer.cuh"

namespace headrace::cuda {
namespace {

using sparq::Memory;

constexpr std::int64_t kAlignment = 256;

// Returns the bytes; of a null base only they count.
std::int64_t lay_out(const SparqArgs& args, char* base, Memory& m) {
  const std::int64_t keys = args.seqlen_k > args.num_keys ? args.seqlen_k : 0;
  m.key_stride = round_up<std::int64_t>(keys, sparq::kKeysOfThread);
  m.num_chunks = ceil_div<std::int64_t>(keys, sparq::kChunkKeys);
  std::int64_t bytes = 0;
  const auto add = [&]<class T>(T*& part, std::int64_t rows, std::int64_t width) {
    part = base == nullptr ? nullptr : reinterpret_cast<T*>(base + bytes);
    const std::int64_t size =
        saturating_product({args.batch, rows, width, static_cast<std::int64_t>(sizeof(T))});
    bytes += round_up(std::min(size, INT64_MAX / 16), kAlignment);
  };
  add(m.scores, args.num_heads, m.key_stride);
  add(m.p, args.num_kv_heads, m.key_stride);
  add(m.partials, args.num_heads, m.num_chunks);
  add(m.weights, args.num_heads, args.num_keys);
  add(m.keys, args.num_kv_heads, args.num_keys);
  return bytes;
}

Status check_pointers(const SparqArgs& args, int device_id) {
  const struct {
    const char* name;
    const void* data;
  } pointers[] = {{"q", args.q.data},
                  {"k", args.k.data},
                  {"k_components", args.components.data},
                  {"v", args.v.data},
                  {"out", args.out.data},
                  {"v_sum", args.v_sum.data},
                  {"block_table", args.paged.block_table},
                  {"seqused_k", args.paged.seqused_k},
                  {"indices", args.indices},
                  {"alpha", args.alpha},
                  {"k_scale", args.dense.k_scale.data},
                  {"v_scale", args.dense.v_scale.data},
                  {"k_recent", args.dense.recent.k.data},
                  {"v_recent", args.dense.recent.v.data},
                  {"recent_table", args.dense.recent.table}};
  for (const auto& [name, data] : pointers) HEADRACE_TRY(check_pointer(name, data, device_id));
  return std::nullopt;
}

// Whether groups of four elements are aligned.
bool has_vectors(DType dtype, const void* data, std::initializer_list<std::int64_t> counts) {
  const auto bytes = sparq::kKeysOfThread * static_cast<std::int64_t>(dtype_bytes(dtype));
  bool is_aligned =
      reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) == 0;
  for (const std::int64_t count : counts)
    is_aligned = is_aligned && count % sparq::kKeysOfThread == 0;
  return is_aligned;
}

sparq::Vectors vectors_of(const SparqArgs& a) {
  const KeyComponents& c = a.components;
  return {.components = has_vectors(
              a.dtype, c.data, {a.page_size, c.stride_page, c.stride_head, c.stride_component}),
          .k = has_vectors(a.dtype, a.k.data,
                           {a.head_dim, a.k.stride_batch, a.k.stride_seq, a.k.stride_head}),
          .v = has_vectors(a.dtype, a.v.data,
                           {a.head_dim_v, a.v.stride_batch, a.v.stride_seq, a.v.stride_head})};
}

}  // namespace

std::size_t sparq_workspace_bytes(const SparqArgs& args) {
  Memory memory;
  return static_cast<std::size_t>(lay_out(args, nullptr, memory) + kAlignment);
}

Status sparq_attention(const SparqArgs& args, int device_id, void* workspace, Stream stream) {
  HEADRACE_TRY(check_operator_device("sparq_attention", device_id));
  const DeviceScope scope(device_id);
  if (scope.status()) return scope.status();
  HEADRACE_TRY(check_pointers(args, device_id));
  HEADRACE_TRY(check_pointer("workspace", workspace, device_id));
  if (group_size(args) > sparq::kMaxGroup)
    return unsupported(
        "num_heads={} with num_kv_heads={}: at most {} queries share a KV head on CUDA",
        args.num_heads, args.num_kv_heads, sparq::kMaxGroup);
  if (args.batch == 0) return std::nullopt;
  Result<std::uint32_t*> word = error_word(device_id);
  if (!word.ok()) return std::move(word.failure());
  sparq::Params params{.args = args,
                       .memory = {},
                       .vectors = vectors_of(args),
                       .num_parts = 1,
                       .by_page_size = Divisor::of(args.page_size),
                       .error_word = word.value()};
  const auto address = reinterpret_cast<std::uintptr_t>(workspace);
  lay_out(args, static_cast<char*>(workspace) + -address % kAlignment, params.memory);
  params.num_parts = sparq::num_parts_of(args.batch * args.num_kv_heads, params.memory.num_chunks);
  if (params.memory.num_chunks > 0) HEADRACE_TRY(sparq::launch_scores(params, stream));
  return sparq::launch_attend(params, stream);
}

Status sparq_append(const SparqAppendArgs& args, int device_id, Stream stream) {
  HEADRACE_TRY(check_operator_device("sparq_append", device_id));
  const DeviceScope scope(device_id);
  if (scope.status()) return scope.status();
  const struct {
    const char* name;
    const void* data;
  } pointers[] = {{"k", args.k.data},
                  {"v", args.v.data},
                  {"k_components", args.components.data},
                  {"v_sum", args.v_sum.data},
                  {"slot_mapping", args.slot_mapping},
                  {"cu_seqlens", args.cu_seqlens},
                  {"k_slots", args.k_slots},
                  {"v_scale", args.v_scale.data}};
  for (const auto& [name, data] : pointers) HEADRACE_TRY(check_pointer(name, data, device_id));
  if (args.num_tokens == 0 || args.num_kv_heads == 0) return std::nullopt;
  Result<std::uint32_t*> word = error_word(device_id);
  if (!word.ok()) return std::move(word.failure());
  return sparq::launch_append(args, word.value(), stream);
}

}  // namespace headrace::cuda
