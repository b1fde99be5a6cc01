// Step 1 of SparQ attention: a CTA chooses the components of a sequence and KV head, and writes the
// estimated scores of some chunks of its keys, with the maximum and the sum of exponentials of
// each.
#include <algorithm>

#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sparq/common.cuh"

namespace headrace::cuda::sparq {
namespace {

constexpr int kWarps = kScoreThreads / kWarp;

struct Shared {
  float magnitudes[kMaxSparqDim];
  std::int32_t components[kMaxSparqDim];  // chosen, ascending
  bool is_chosen[kMaxSparqDim];
  std::int64_t offsets[kMaxSparqDim];         // of the chosen components
  alignas(16) float q[kMaxSparqDim][kHeads];  // of the chosen components, scaled
  float partials[kWarps][kHeads];
};

struct Chunk {
  std::int64_t batch_idx, kv_head, first, seqlen_k;
};

// The components with the largest sums of |q| over the group, among equals the lowest.
template <class E>
__device__ void choose_components(const SparqArgs& a, const Chunk& chunk, Shared& smem) {
  const int dim = static_cast<int>(a.head_dim), thread = static_cast<int>(threadIdx.x);
  const std::int64_t g = group_size(a);
  const E* q = static_cast<const E*>(a.q.data) + chunk.batch_idx * a.q.stride_batch +
               chunk.kv_head * g * a.q.stride_head;
  for (int c = thread; c < dim; c += kScoreThreads) {
    float sum = 0.0f;
    for (std::int64_t h = 0; h < g; ++h) sum += fabsf(load_real(q + h * a.q.stride_head, c));
    smem.magnitudes[c] = sum;
  }
  __syncthreads();
  // A warp per component counts those before it.
  const int warp = thread / kWarp, lane = thread % kWarp;
  for (int c = warp; c < dim; c += kWarps) {
    const std::uint32_t mine = rank_of(smem.magnitudes[c]);
    int num_before = 0;
    for (int i = lane; i < dim; i += kWarp) {
      const std::uint32_t other = rank_of(smem.magnitudes[i]);
      num_before += other > mine || (other == mine && i < c);
    }
    num_before = __reduce_add_sync(~0u, num_before);
    if (lane == 0) smem.is_chosen[c] = num_before < a.num_components;
  }
  __syncthreads();
  int num_chosen = 0;
  for (int first = 0; first < dim && warp == 0; first += kWarp) {
    const int c = first + lane;
    const bool is_chosen = c < dim && smem.is_chosen[c];
    const unsigned chosen = __ballot_sync(~0u, is_chosen);
    const int at = num_chosen + __popc(chosen & ((1u << lane) - 1));
    if (is_chosen) {
      smem.components[at] = c;
      smem.offsets[at] = c * a.components.stride_component;
    }
    num_chosen += __popc(chosen);
  }
  __syncthreads();
}

// The queries of heads [head, head + kN) of the group; those behind the last are 0. A warp per
// head.
template <class E, int kN>
__device__ void load_queries(const SparqArgs& a, const Chunk& chunk, std::int64_t head,
                             Shared& smem) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t g = group_size(a);
  static_assert(kN <= kWarps && kN <= kHeads);
  if (warp >= kN) return;
  const bool is_head = head + warp < g;
  const E* q = static_cast<const E*>(a.q.data) + chunk.batch_idx * a.q.stride_batch +
               (chunk.kv_head * g + (is_head ? head + warp : 0)) * a.q.stride_head;
  float of_all = 0.0f, of_chosen = 0.0f;
  for (std::int64_t c = lane; c < a.head_dim; c += kWarp) of_all += fabsf(load_real(q, c));
  for (std::int64_t i = lane; i < a.num_components; i += kWarp)
    of_chosen += fabsf(load_real(q, smem.components[i]));
  of_all = warp_sum(of_all);
  of_chosen = warp_sum(of_chosen);
  const float share = of_chosen == 0.0f ? 1.0f : of_chosen / of_all;
  const float scale = is_head ? a.softmax_scale / sqrtf(share) : 0.0f;
  for (std::int64_t i = lane; i < a.num_components; i += kWarp)
    smem.q[i][warp] = is_head ? load_real(q, smem.components[i]) * scale : 0.0f;
}

// scores[h][i] of four adjacent keys; keys that are not there have -inf. Every load has a valid
// address, so that none is behind a branch and kBatch of them are in flight. kVec: the four keys
// are in one page and read at once.
template <class E, int kN, bool kVec>
__device__ void score_keys(const Params& p, const Chunk& chunk, std::int64_t key,
                           const Shared& smem, float (&scores)[kN][kKeysOfThread]) {
  constexpr int kBatch = 8, kRows = kVec ? 1 : kKeysOfThread;
  const SparqArgs& a = p.args;
  const E* row[kRows];  // of component 0
  bool is_there[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const std::int64_t page =
        key + i < chunk.seqlen_k ? valid_page(p, chunk.batch_idx, key + i) : -1;
    is_there[i] = page >= 0;
    row[i] = static_cast<const E*>(a.components.data) + chunk.kv_head * a.components.stride_head +
             (is_there[i] ? page * a.components.stride_page + slot_in_page(p, key + i) : 0);
  }
#pragma unroll
  for (int h = 0; h < kN; ++h)
#pragma unroll
    for (int i = 0; i < kKeysOfThread; ++i) scores[h][i] = 0.0f;
  const auto load = [&](int c, float(&x)[kKeysOfThread]) {
    const std::int64_t at = smem.offsets[c];
    if constexpr (kVec) {
      const Pack<E> pack = *reinterpret_cast<const Pack<E>*>(row[0] + at);
#pragma unroll
      for (int i = 0; i < kKeysOfThread; ++i) x[i] = load_real(pack.e, i);
    } else {
#pragma unroll
      for (int i = 0; i < kKeysOfThread; ++i) x[i] = load_real(row[i], at);
    }
  };
  const auto add = [&](int c, const float(&x)[kKeysOfThread]) {
#pragma unroll
    for (int h = 0; h < kN; h += 4) {
      const float4 q = *reinterpret_cast<const float4*>(smem.q[c] + h);
#pragma unroll
      for (int i = 0; i < kKeysOfThread; ++i) {
        scores[h][i] = fmaf(x[i], q.x, scores[h][i]);
        scores[h + 1][i] = fmaf(x[i], q.y, scores[h + 1][i]);
        scores[h + 2][i] = fmaf(x[i], q.z, scores[h + 2][i]);
        scores[h + 3][i] = fmaf(x[i], q.w, scores[h + 3][i]);
      }
    }
  };
  const int r = static_cast<int>(a.num_components);
  int c = 0;
  for (; c + kBatch <= r; c += kBatch) {
    float x[kBatch][kKeysOfThread];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) load(c + u, x[u]);
#pragma unroll
    for (int u = 0; u < kBatch; ++u) add(c + u, x[u]);
  }
  for (; c < r; ++c) {
    float x[kKeysOfThread];
    load(c, x);
    add(c, x);
  }
#pragma unroll
  for (int i = 0; i < kKeysOfThread; ++i) {
    const bool is_key = is_there[kVec ? 0 : i] && key + i < chunk.seqlen_k;
#pragma unroll
    for (int h = 0; h < kN; ++h)
      if (!is_key) scores[h][i] = -HUGE_VALF;
  }
}

// The maximum and the sum of exponentials of the chunk, by head.
template <int kN>
__device__ void write_partials(const Params& p, const Chunk& chunk, std::int64_t head,
                               const float (&scores)[kN][kKeysOfThread], Shared& smem) {
  const SparqArgs& a = p.args;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  float maximum[kN];
#pragma unroll
  for (int h = 0; h < kN; ++h) {
    float most = -HUGE_VALF;
#pragma unroll
    for (int i = 0; i < kKeysOfThread; ++i) most = fmaxf(most, scores[h][i]);
    most = warp_max(most);
    if (lane == 0) smem.partials[warp][h] = most;
  }
  __syncthreads();
#pragma unroll
  for (int h = 0; h < kN; ++h) {
    maximum[h] = smem.partials[0][h];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) maximum[h] = fmaxf(maximum[h], smem.partials[w][h]);
  }
  __syncthreads();
#pragma unroll
  for (int h = 0; h < kN; ++h) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kKeysOfThread; ++i)
      sum += scores[h][i] == -HUGE_VALF ? 0.0f : expf(scores[h][i] - maximum[h]);
    sum = warp_sum(sum);
    if (lane == 0) smem.partials[warp][h] = sum;
  }
  __syncthreads();
  const std::int64_t g = group_size(a);
#pragma unroll
  for (int h = 0; h < kN; ++h) {
    if (static_cast<int>(threadIdx.x) != h || head + h >= g) continue;
    float sum = 0.0f;
    for (int w = 0; w < kWarps; ++w) sum += smem.partials[w][h];
    const std::int64_t row = chunk.batch_idx * a.num_heads + chunk.kv_head * g + head + h;
    p.memory.partials[row * p.memory.num_chunks + chunk.first / kChunkKeys] = {maximum[h], sum};
  }
  __syncthreads();
}

// `is_first`: of the CTA's chunks of these queries.
template <class E, int kN, bool kVec>
__device__ void score_chunk(const Params& p, const Chunk& chunk, bool is_first, Shared& smem) {
  const SparqArgs& a = p.args;
  const std::int64_t g = group_size(a);
  const std::int64_t key = chunk.first + std::int64_t{threadIdx.x} * kKeysOfThread;
  for (std::int64_t head = 0; head < g; head += kN) {
    if (is_first || g > kN) {
      load_queries<E, kN>(a, chunk, head, smem);
      __syncthreads();
    }
    float scores[kN][kKeysOfThread];
    score_keys<E, kN, kVec>(p, chunk, key, smem, scores);
#pragma unroll
    for (int h = 0; h < kN; ++h) {
      if (head + h >= g || key >= p.memory.key_stride) continue;
      const std::int64_t row = chunk.batch_idx * a.num_heads + chunk.kv_head * g + head + h;
      *reinterpret_cast<float4*>(p.memory.scores + row * p.memory.key_stride + key) =
          make_float4(scores[h][0], scores[h][1], scores[h][2], scores[h][3]);
    }
    write_partials<kN>(p, chunk, head, scores, smem);
  }
}

template <class E, int kN, bool kVec>
__global__ void __launch_bounds__(kScoreThreads) score_kernel(const __grid_constant__ Params p) {
  __shared__ Shared smem;
  const std::int64_t num_tasks = p.args.batch * p.args.num_kv_heads * p.num_parts;
  for (std::int64_t task = blockIdx.x; task < num_tasks; task += gridDim.x) {
    const std::int64_t unit = task / p.num_parts, first = task % p.num_parts * kChunkKeys;
    Chunk chunk{unit / p.args.num_kv_heads, unit % p.args.num_kv_heads, first, 0};
    chunk.seqlen_k = num_keys_of(p, chunk.batch_idx, false);
    if (chunk.seqlen_k <= p.args.num_keys || first >= chunk.seqlen_k) continue;
    choose_components<E>(p.args, chunk, smem);
    for (; chunk.first < chunk.seqlen_k; chunk.first += p.num_parts * kChunkKeys)
      score_chunk<E, kN, kVec>(p, chunk, chunk.first == first, smem);
  }
}

}  // namespace

Status launch_scores(const Params& params, Stream stream) {
  const std::int64_t num_ctas = params.args.batch * params.args.num_kv_heads * params.num_parts;
  const LaunchShape shape{.name = "sparq_scores",
                          .grid = dim3(static_cast<unsigned>(std::min(num_ctas, kMaxGridX))),
                          .block = dim3(kScoreThreads)};
  const auto run = [&](auto* kernel) {
    return headrace::cuda::launch(shape, static_cast<cudaStream_t>(stream), kernel, params);
  };
  const bool is_small = group_size(params.args) <= 4, has_vectors = params.vectors.components;
  return with_elements(params.args.dtype, [&]<class E>() {
    if (is_small) return run(has_vectors ? score_kernel<E, 4, true> : score_kernel<E, 4, false>);
    return run(has_vectors ? score_kernel<E, 8, true> : score_kernel<E, 8, false>);
  });
}

}  // namespace headrace::cuda::sparq
