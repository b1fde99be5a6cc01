// The append kernel for the common case: operands of one 16-bit format in whole vectors, no norms,
// whole heads that rotate by tables of floats. A thread has 16 elements of a head: eight pairs. Its
// code is small, because between other kernels of a decoder it comes from memory each time.
#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/elementwise/kv_append.h"
#include "backends/cuda/elementwise/rotate.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/element.cuh"

namespace headrace::cuda::append {
namespace {

constexpr int kThreads = 128;

// The eight pairs of two chunks.
template <class Element>
__device__ __forceinline__ void rotate(const float* cos, const float* sin, bool is_halves,
                                       sm90::Chunk& low, sm90::Chunk& high) {
  float c[8], s[8];
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    *reinterpret_cast<float4*>(c + i) = *reinterpret_cast<const float4*>(cos + i);
    *reinterpret_cast<float4*>(s + i) = *reinterpret_cast<const float4*>(sin + i);
  }
  // Pair i is (low[i], high[i]), or elements 2 i and 2 i + 1 of both chunks.
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float2 x = Element::unpack(low.words[i]), y = Element::unpack(high.words[i]);
    if (is_halves) {
      rotate_pair(x.x, y.x, c[2 * i], s[2 * i]);
      rotate_pair(x.y, y.y, c[2 * i + 1], s[2 * i + 1]);
    } else {
      rotate_pair(x.x, x.y, c[i], s[i]);
      rotate_pair(y.x, y.y, c[4 + i], s[4 + i]);
    }
    low.words[i] = Element::pack(x.x, x.y);
    high.words[i] = Element::pack(y.x, y.y);
  }
}

template <class Element>
__global__ void __launch_bounds__(kThreads) append_vectors(const __grid_constant__ VectorParams p) {
  using Stored = typename Element::Stored;
  griddep_launch_dependents();
  griddep_wait();
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int all_rows = p.by_chunks.divide(i), token = p.by_rows.divide(all_rows);
  if (token >= p.num_tokens) return;
  const int chunk = i - all_rows * p.num_chunks, row = all_rows - token * p.num_rows;
  const bool is_q = row < p.num_heads, is_k = !is_q && row < p.num_heads + p.num_kv_heads;
  const int head = row - (is_q ? 0 : is_k ? p.num_heads : p.num_heads + p.num_kv_heads);
  // Table rows and slots are read beside the elements.
  const int position = p.positions[token * p.position_stride];
  const std::int64_t slot = is_q ? -1 : p.slot_mapping[token * p.slot_stride];
  const bool is_rotated = is_q || is_k;
  const int low_at = p.is_halves || !is_rotated ? 8 * chunk : 16 * chunk;
  const int high_at = low_at + (p.is_halves || !is_rotated ? 8 * p.num_chunks : 8);
  const HeadRowsOf from = is_q ? p.q : is_k ? p.k : p.v;
  const auto* x =
      static_cast<const Stored*>(from.data) + token * from.stride_token + head * from.stride_head;
  sm90::Chunk low = *reinterpret_cast<const sm90::Chunk*>(x + low_at);
  sm90::Chunk high = *reinterpret_cast<const sm90::Chunk*>(x + high_at);
  if (position < 0 || position >= p.max_positions) {
    report_length_error(p.error_word, LengthError::positions, token);
    return;
  }
  if (slot >= p.num_slots) {
    report_length_error(p.error_word, LengthError::slot_mapping, token);
    return;
  }
  if (!is_q && slot < 0) return;
  if (is_rotated)
    rotate<Element>(p.cos + position * p.cos_stride + 8 * chunk,
                    p.sin + position * p.sin_stride + 8 * chunk, p.is_halves, low, high);
  Stored* to;
  if (is_q) {
    to = static_cast<Stored*>(p.q_out.data) + token * p.q_out.stride_token +
         head * p.q_out.stride_head;
  } else {
    const PageRowsOf pages = is_k ? p.k_pages : p.v_pages;
    const int page = p.by_page_size.divide(static_cast<int>(slot)),
              in_page = static_cast<int>(slot) - page * p.page_size;
    to = static_cast<Stored*>(pages.data) + page * pages.stride_page + in_page * pages.stride_slot +
         head * pages.stride_head;
  }
  *reinterpret_cast<sm90::Chunk*>(to + low_at) = low;
  *reinterpret_cast<sm90::Chunk*>(to + high_at) = high;
}

}  // namespace

Status launch_vectors(const VectorParams& params, DType dtype, Stream stream) {
  const std::int64_t num_threads =
      std::int64_t{params.num_tokens} * params.num_rows * params.num_chunks;
  const LaunchShape shape{
      .name = dtype == DType::bf16 ? "kv_append<bf16>" : "kv_append<f16>",
      .grid = dim3(static_cast<unsigned>(ceil_div<std::int64_t>(num_threads, kThreads))),
      .block = dim3(kThreads),
      .use_pdl = true};
  return headrace::cuda::launch(
      shape, static_cast<cudaStream_t>(stream),
      dtype == DType::bf16 ? append_vectors<sm90::Bf16Element> : append_vectors<sm90::F16Element>,
      params);
}

}  // namespace headrace::cuda::append
