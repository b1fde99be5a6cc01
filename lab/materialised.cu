// Standard attention: writes the matrix of scores to memory, normalises it there and reads it
// again. FlashAttention saves that time and memory.
#include "backends/cuda/common/element.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "lab/launch.h"

namespace headrace::lab {
namespace {

using namespace cuda;

constexpr int kTile = 16;  // of a matrix product, one element per thread
// Terms per partial sum: a plain sum of 10^4 terms has too many rounding errors.
constexpr std::int64_t kParts = 64;

struct Place {  // (batch entry, head) of a CTA
  std::int64_t batch_idx, head, kv_head, matrix;
};
__device__ inline Place place_of(const Problem& p) {
  const std::int64_t matrix = blockIdx.z;
  const std::int64_t head = matrix % p.num_heads;
  return {matrix / p.num_heads, head, head / group_size(p), matrix};
}

// scores = scale * Q K^T, -inf where the causal mask hides the key.
template <class T>
__global__ void multiply_q_k(const __grid_constant__ Problem p,
                             const __grid_constant__ AttentionArgs args, float* scores) {
  __shared__ float q_tile[kTile][kTile], k_tile[kTile][kTile + 1];
  const Place at = place_of(p);
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const std::int64_t i = std::int64_t{kTile} * blockIdx.y + y;
  const std::int64_t first_j = std::int64_t{kTile} * blockIdx.x, j = first_j + x;
  const std::int64_t from_q = row_offset(args.q, at.batch_idx, i, at.head);
  const std::int64_t from_k = row_offset(args.k, at.batch_idx, first_j + y, at.kv_head);
  float sum = 0;
  for (std::int64_t d = 0; d < p.head_dim; d += kTile) {
    const bool is_column = d + x < p.head_dim;
    q_tile[y][x] = is_column && i < p.seqlen_q
                       ? load_real(static_cast<const T*>(args.q.data), from_q + d + x)
                       : 0.f;
    k_tile[y][x] = is_column && first_j + y < p.seqlen_k
                       ? load_real(static_cast<const T*>(args.k.data), from_k + d + x)
                       : 0.f;
    __syncthreads();
    for (int c = 0; c < kTile; ++c) sum += q_tile[y][c] * k_tile[x][c];
    __syncthreads();
  }
  if (i >= p.seqlen_q || j >= p.seqlen_k) return;
  const bool is_visible = j < visible_keys(p, i, p.seqlen_q, p.seqlen_k).end;
  scores[(at.matrix * p.seqlen_q + i) * p.seqlen_k + j] =
      is_visible ? sum * static_cast<float>(p.softmax_scale) : -HUGE_VALF;
}

// Softmax of each row, in place; one warp per row. A row of -inf becomes zeros.
__global__ void normalise(const __grid_constant__ Problem p,
                          const __grid_constant__ AttentionArgs args, float* scores,
                          std::int64_t num_rows) {
  const int lane = static_cast<int>(threadIdx.x);
  const std::int64_t row_idx = std::int64_t{blockDim.y} * blockIdx.x + threadIdx.y;
  if (row_idx >= num_rows) return;
  float* row = scores + row_idx * p.seqlen_k;
  float top = -HUGE_VALF, sum = 0;
  for (std::int64_t j = lane; j < p.seqlen_k; j += 32) top = fmaxf(top, row[j]);
  for (int step = 16; step > 0; step /= 2)
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
  const bool is_empty = top == -HUGE_VALF;
  for (std::int64_t first = lane; first < p.seqlen_k; first += 32 * kParts) {
    float part = 0;
    for (std::int64_t j = first; j < min(first + 32 * kParts, p.seqlen_k); j += 32)
      part += row[j] = is_empty ? 0.f : expf(row[j] - top);
    sum += part;
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  for (std::int64_t j = lane; j < p.seqlen_k && !is_empty; j += 32) row[j] /= sum;
  if (lane != 0 || args.lse.data == nullptr) return;
  const std::int64_t i = row_idx % p.seqlen_q, matrix = row_idx / p.seqlen_q;
  static_cast<float*>(
      args.lse.data)[matrix / p.num_heads * args.lse.stride_batch +
                     matrix % p.num_heads * args.lse.stride_head + i * args.lse.stride_q] =
      top + logf(sum);
}

template <class T>
__global__ void multiply_p_v(const __grid_constant__ Problem p,
                             const __grid_constant__ AttentionArgs args, const float* probs) {
  __shared__ float p_tile[kTile][kTile], v_tile[kTile][kTile];
  const Place at = place_of(p);
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const std::int64_t i = std::int64_t{kTile} * blockIdx.y + y;
  const std::int64_t d = std::int64_t{kTile} * blockIdx.x + x;
  float sum = 0, part = 0;
  for (std::int64_t j = 0; j < p.seqlen_k; j += kTile) {
    p_tile[y][x] = i < p.seqlen_q && j + x < p.seqlen_k
                       ? probs[(at.matrix * p.seqlen_q + i) * p.seqlen_k + j + x]
                       : 0.f;
    const std::int64_t from_v = row_offset(args.v, at.batch_idx, j + y, at.kv_head);
    v_tile[y][x] = j + y < p.seqlen_k && d < p.head_dim_v
                       ? load_real(static_cast<const T*>(args.v.data), from_v + d)
                       : 0.f;
    __syncthreads();
    for (int c = 0; c < kTile; ++c) part += p_tile[y][c] * v_tile[c][x];
    __syncthreads();
    if (j / kTile % (kParts / kTile) != kParts / kTile - 1) continue;
    sum += part;
    part = 0;
  }
  sum += part;
  if (i < p.seqlen_q && d < p.head_dim_v)
    store_real(static_cast<T*>(args.out.data), row_offset(args.out, at.batch_idx, i, at.head) + d,
               sum);
}

unsigned tiles(std::int64_t size) { return static_cast<unsigned>((size + kTile - 1) / kTile); }

template <class T>
Status launch_three(const Problem& p, const AttentionArgs& args, float* scores,
                    cudaStream_t stream) {
  constexpr unsigned kRows = 4;  // of the softmax, per CTA
  const auto matrices = static_cast<unsigned>(p.batch * p.num_heads);
  const std::int64_t num_rows = p.batch * p.num_heads * p.seqlen_q;
  const LaunchShape scores_shape{.name = "cuda_materialised (scores)",
                                 .grid = dim3(tiles(p.seqlen_k), tiles(p.seqlen_q), matrices),
                                 .block = dim3(kTile, kTile)};
  const LaunchShape softmax_shape{
      .name = "cuda_materialised (softmax)",
      .grid = dim3(static_cast<unsigned>((num_rows + kRows - 1) / kRows)),
      .block = dim3(32, kRows)};
  const LaunchShape out_shape{.name = "cuda_materialised (out)",
                              .grid = dim3(tiles(p.head_dim_v), tiles(p.seqlen_q), matrices),
                              .block = dim3(kTile, kTile)};
  if (p.seqlen_k > 0) HEADRACE_TRY(launch(scores_shape, stream, multiply_q_k<T>, p, args, scores));
  HEADRACE_TRY(launch(softmax_shape, stream, normalise, p, args, scores, num_rows));
  return launch(out_shape, stream, multiply_p_v<T>, p, args, static_cast<const float*>(scores));
}

}  // namespace

Status launch_materialised(const Problem& p, const AttentionArgs& args, float* scores,
                           Stream stream) {
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  if (dtype_of(p) == DType::f16) return launch_three<__half>(p, args, scores, cuda_stream);
  if (dtype_of(p) == DType::bf16) return launch_three<__nv_bfloat16>(p, args, scores, cuda_stream);
  return launch_three<float>(p, args, scores, cuda_stream);
}

}  // namespace headrace::lab
