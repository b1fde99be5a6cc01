// The append of SparQ attention: a warp per token and KV head copies a key, a thread per column of
// a row of v_sum adds its values in order.
#include <algorithm>

#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sparq/common.cuh"

namespace headrace::cuda::sparq {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;

struct AppendParams {
  SparqAppendArgs args;
  std::uint32_t* error_word;
};

// One of num_slots; negative: its token is left out.
__device__ __forceinline__ std::int64_t valid_slot(const AppendParams& p, std::int64_t slot,
                                                   std::int64_t num_slots, std::int64_t token) {
  if (slot < num_slots) return slot;
  report_length_error(p.error_word, LengthError::slot_mapping, token);
  return -1;
}
__device__ __forceinline__ std::int64_t slot_of(const AppendParams& p, std::int64_t token) {
  const SparqAppendArgs& a = p.args;
  return valid_slot(p, a.slot_mapping[token * a.slot_stride], a.num_pages * a.page_size, token);
}
// In k.
__device__ __forceinline__ std::int64_t k_slot_of(const AppendParams& p, std::int64_t token) {
  const SparqAppendArgs& a = p.args;
  if (a.k_slots == nullptr) return slot_of(p, token);
  return valid_slot(p, a.k_slots[token * a.k_slot_stride], a.k_num_pages * a.k_page_size, token);
}

template <class E>
__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ AppendParams p) {
  const SparqAppendArgs& a = p.args;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t num_rows = a.num_tokens * a.num_kv_heads;
  const std::int64_t first = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  for (std::int64_t row = first; row < num_rows; row += std::int64_t{gridDim.x} * kWarps) {
    const std::int64_t token = row / a.num_kv_heads, kv_head = row % a.num_kv_heads;
    const std::int64_t slot = slot_of(p, token), k_slot = k_slot_of(p, token);
    if (slot < 0 || k_slot < 0) continue;
    const std::int64_t page = slot / a.page_size, at = slot % a.page_size;
    const E* k = static_cast<const E*>(a.k.data) +
                 row_offset(a.k, k_slot / a.k_page_size, k_slot % a.k_page_size, kv_head);
    E* to = static_cast<E*>(a.components.data) + page * a.components.stride_page +
            kv_head * a.components.stride_head + at;
    for (std::int64_t c = lane; c < a.head_dim; c += kWarp)
      to[c * a.components.stride_component] = k[c];
  }
}

template <class E>
__global__ void __launch_bounds__(kThreads) sum_kernel(const __grid_constant__ AppendParams p) {
  const SparqAppendArgs& a = p.args;
  const std::int64_t num_units = a.batch * a.num_kv_heads;
  for (std::int64_t unit = blockIdx.x; unit < num_units; unit += gridDim.x) {
    const std::int64_t row = unit / a.num_kv_heads, kv_head = unit % a.num_kv_heads;
    TokenRange tokens = tokens_of_row(a, row);
    if (tokens.first < 0 || tokens.last < tokens.first || tokens.last > a.num_tokens) {
      if (threadIdx.x == 0) report_length_error(p.error_word, LengthError::cu_seqlens_q, row);
      continue;
    }
    for (std::int64_t c = threadIdx.x; c < a.head_dim_v; c += kThreads) {
      float* sum = static_cast<float*>(a.v_sum.data) + row * a.v_sum.stride_batch +
                   kv_head * a.v_sum.stride_head + c;
      float y = *sum;
      for (std::int64_t token = tokens.first; token < tokens.last; ++token) {
        const std::int64_t slot = slot_of(p, token);
        if (slot < 0) continue;
        y += load_element<E>(value_row(a, slot, kv_head), c);
      }
      *sum = y;
    }
  }
}

}  // namespace

Status launch_append(const SparqAppendArgs& args, std::uint32_t* error_word, Stream stream) {
  const AppendParams params{args, error_word};
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  const auto shape = [](const char* name, std::int64_t num_ctas) {
    return LaunchShape{.name = name,
                       .grid = dim3(static_cast<unsigned>(std::min(num_ctas, kMaxGridX))),
                       .block = dim3(kThreads)};
  };
  return with_elements(args.dtype, [&]<class E>() -> Status {
    HEADRACE_TRY(headrace::cuda::launch(
        shape("sparq_append keys",
              ceil_div<std::int64_t>(args.num_tokens * args.num_kv_heads, kWarps)),
        cuda_stream, copy_kernel<E>, params));
    if (args.v_sum.data == nullptr || args.batch == 0) return std::nullopt;
    return headrace::cuda::launch(shape("sparq_append values", args.batch * args.num_kv_heads),
                                  cuda_stream, sum_kernel<E>, params);
  });
}

}  // namespace headrace::cuda::sparq
