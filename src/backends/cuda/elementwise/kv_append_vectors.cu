// The append kernel for the common case: operands of one 16-bit format in whole vectors, no norms,
// whole heads that rotate by tables of floats. A thread has 16 elements of a head: eight pairs. Its
// code is small, because between other kernels of a decoder it comes from memory each time.
#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/elementwise/heads.cuh"
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
  const HeadKind kind = row < p.num_heads                    ? HeadKind::q
                        : row < p.num_heads + p.num_kv_heads ? HeadKind::k
                                                             : HeadKind::v;
  const int head = row - (kind == HeadKind::q   ? 0
                          : kind == HeadKind::k ? p.num_heads
                                                : p.num_heads + p.num_kv_heads);
  // Table rows and slots are read beside the elements.
  const TokenPlace place = place_of(p, kind, token);
  const bool is_in_halves = p.is_halves || kind == HeadKind::v;
  const int low_at = (is_in_halves ? 8 : 16) * chunk;
  const int high_at = low_at + (is_in_halves ? 8 * p.num_chunks : 8);
  const HeadRowsOf from = kind == HeadKind::q ? p.q : kind == HeadKind::k ? p.k : p.v;
  const auto* x =
      static_cast<const Stored*>(from.data) + token * from.stride_token + head * from.stride_head;
  sm90::Chunk low = *reinterpret_cast<const sm90::Chunk*>(x + low_at);
  sm90::Chunk high = *reinterpret_cast<const sm90::Chunk*>(x + high_at);
  if (!is_stored(p, kind, token, place)) return;
  if (kind != HeadKind::v)
    rotate<Element>(p.cos + place.position * p.cos_stride + 8 * chunk,
                    p.sin + place.position * p.sin_stride + 8 * chunk, p.is_halves, low, high);
  auto* to = head_of<Stored>(p, kind, token, head, place.slot);
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
