// FlashAttention (Dao, Fu, Ermon, Rudra, Re 2022) without any optimisation: a CTA takes a tile of
// queries, one per thread, and loops over tiles of keys. K, V and the scores of a tile are in
// shared memory; neither S nor P is written to global memory. The softmax is online: when a tile
// has a larger score, the sums so far are rescaled.
#include "backends/cuda/common/element.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "lab/launch.h"

namespace headrace::lab {
namespace {

using namespace cuda;

constexpr int kQueries = 128;  // of a tile, one per thread
constexpr int kKeys = 32;      // of a tile
constexpr int kMaxDim = kTeachingDim;

template <class T>
__global__ void __launch_bounds__(kQueries)
    teaching_forward(const __grid_constant__ Problem p,
                     const __grid_constant__ AttentionArgs args) {
  __shared__ float k_tile[kKeys][kMaxDim], v_tile[kKeys][kMaxDim];
  __shared__ float score_tile[kQueries][kKeys + 1];  // + 1: the threads access different banks
  float* scores = score_tile[threadIdx.x];           // [kKeys]
  const std::int64_t q_idx = std::int64_t{kQueries} * blockIdx.x + threadIdx.x;
  const std::int64_t head = blockIdx.y, batch_idx = blockIdx.z;
  const bool is_row = q_idx < p.seqlen_q;  // the last tile may be partial
  const std::int64_t from_q = row_offset(args.q, batch_idx, q_idx, head);

  float q[kMaxDim], out[kMaxDim] = {}, top = -HUGE_VALF, sum = 0;
#pragma unroll
  for (int d = 0; d < kMaxDim; ++d)
    q[d] = is_row && d < p.head_dim ? load_real(static_cast<const T*>(args.q.data), from_q + d) *
                                          static_cast<float>(p.softmax_scale)
                                    : 0.f;
  // End of the visible keys: the causal mask.
  const std::int64_t end = visible_keys(p, q_idx, p.seqlen_q, p.seqlen_k).end;

  for (std::int64_t first = 0; first < p.seqlen_k; first += kKeys) {
    __syncthreads();  // the previous tile has been read
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * kMaxDim; i += kQueries) {
      const int j = i / kMaxDim, d = i % kMaxDim;
      const bool is_key = first + j < p.seqlen_k && d < p.head_dim;
      const std::int64_t from_k = row_offset(args.k, batch_idx, first + j, head / group_size(p));
      const std::int64_t from_v = row_offset(args.v, batch_idx, first + j, head / group_size(p));
      k_tile[j][d] = is_key ? load_real(static_cast<const T*>(args.k.data), from_k + d) : 0.f;
      v_tile[j][d] = is_key ? load_real(static_cast<const T*>(args.v.data), from_v + d) : 0.f;
    }
    __syncthreads();

    float tile_top = top, tile_sum = 0, tile_out[kMaxDim] = {};
    for (int j = 0; j < kKeys; ++j) {
      float s = 0;
#pragma unroll
      for (int d = 0; d < kMaxDim; ++d) s += q[d] * k_tile[j][d];
      scores[j] = first + j < end ? s : -HUGE_VALF;
      tile_top = fmaxf(tile_top, scores[j]);
    }
    if (tile_top == -HUGE_VALF)
      continue;  // no key of this tile is visible (all threads still sync)
    for (int j = 0; j < kKeys; ++j) {
      const float weight = expf(scores[j] - tile_top);
      tile_sum += weight;
#pragma unroll
      for (int d = 0; d < kMaxDim; ++d) tile_out[d] += weight * v_tile[j][d];
    }
    const float rescale = expf(top - tile_top);
    top = tile_top;
    sum = sum * rescale + tile_sum;
#pragma unroll
    for (int d = 0; d < kMaxDim; ++d) out[d] = out[d] * rescale + tile_out[d];
  }

  if (!is_row) return;
  const std::int64_t to = row_offset(args.out, batch_idx, q_idx, head);
#pragma unroll
  for (int d = 0; d < kMaxDim; ++d)
    if (d < p.head_dim)
      store_real(static_cast<T*>(args.out.data), to + d, sum > 0 ? out[d] / sum : 0.f);
  if (args.lse.data != nullptr)
    static_cast<float*>(args.lse.data)[batch_idx * args.lse.stride_batch +
                                       head * args.lse.stride_head + q_idx * args.lse.stride_q] =
        top + logf(sum);  // of an empty row: -inf
}

}  // namespace

Status launch_teaching(const Problem& p, const AttentionArgs& args, Stream stream) {
  const LaunchShape shape{
      .name = "cuda_teaching",
      .grid = dim3(static_cast<unsigned>((p.seqlen_q + kQueries - 1) / kQueries),
                   static_cast<unsigned>(p.num_heads), static_cast<unsigned>(p.batch)),
      .block = dim3(kQueries)};
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  if (dtype_of(p) == DType::f16)
    return launch(shape, cuda_stream, teaching_forward<__half>, p, args);
  if (dtype_of(p) == DType::bf16)
    return launch(shape, cuda_stream, teaching_forward<__nv_bfloat16>, p, args);
  return launch(shape, cuda_stream, teaching_forward<float>, p, args);
}

}  // namespace headrace::lab
