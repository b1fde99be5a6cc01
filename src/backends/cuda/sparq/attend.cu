// Steps 2 and 3 of SparQ attention: a CTA per sequence and KV head selects the keys, attends to
// them and adds the mean value.
#include <algorithm>

#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sparq/select.cuh"

namespace headrace::cuda::sparq {
namespace {

constexpr int kColumns = kWarp * kKeysOfThread;  // of V, of a warp at a time

// What an out is made of: alpha and the sum of the weights.
struct HeadResult {
  float lse, maximum, sum, alpha;
};

struct Shared {
  SelectShared select;
  union {
    alignas(16) float q[kAttendHeads][kMaxSparqDim];
    float values[kAttendWarps][kColumns];
  };
};

struct Unit {
  std::int64_t batch_idx, kv_head, seqlen_k;
};

__device__ inline std::int64_t head_row(const SparqArgs& a, const Unit& unit, std::int64_t h) {
  return unit.batch_idx * a.num_heads + unit.kv_head * group_size(a) + h;
}

// The logarithm of the sum of exponentials of all chunks of a head; a warp per head.
__device__ inline void merge_partials(const Params& p, const Unit& unit, HeadResult* results) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t num_chunks = (unit.seqlen_k + kChunkKeys - 1) / kChunkKeys;
  for (std::int64_t h = warp; h < group_size(p.args); h += kAttendWarps) {
    const ChunkSum* partials = p.memory.partials + head_row(p.args, unit, h) * p.memory.num_chunks;
    float most = -HUGE_VALF, sum = 0.0f;
    for (std::int64_t i = lane; i < num_chunks; i += kWarp) most = fmaxf(most, partials[i].maximum);
    most = warp_max(most);
    for (std::int64_t i = lane; i < num_chunks; i += kWarp)
      if (partials[i].maximum != -HUGE_VALF)
        sum += partials[i].sum * expf(partials[i].maximum - most);
    sum = warp_sum(sum);
    if (lane == 0) results[h].lse = most + logf(sum);
  }
  __syncthreads();
}

// A key that is not there has the score -inf.
__device__ __forceinline__ float share_of(float score, float lse) {
  return score == -HUGE_VALF ? 0.0f : expf(score - lse);
}

// `most`: the largest ranks of a thread's sums of keys [0, size), at each place of four; 0 of none.
__device__ inline void sum_over_group(const Params& p, const Unit& unit, const HeadResult* results,
                                      std::int64_t size, float* sums,
                                      std::uint32_t (&most)[kKeysOfThread]) {
  const std::int64_t num_heads = group_size(p.args);
  const float* scores = p.memory.scores + head_row(p.args, unit, 0) * p.memory.key_stride;
  for (std::int64_t j = std::int64_t{threadIdx.x} * kKeysOfThread; j < unit.seqlen_k;
       j += kAttendThreads * kKeysOfThread) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (std::int64_t head = 0; head < num_heads; head += kAttendHeads) {
      float4 x[kAttendHeads];  // loads in flight
#pragma unroll
      for (int h = 0; h < kAttendHeads; ++h)
        x[h] = *reinterpret_cast<const float4*>(
            scores + min(head + h, num_heads - 1) * p.memory.key_stride + j);
#pragma unroll
      for (int h = 0; h < kAttendHeads; ++h) {
        if (head + h >= num_heads) continue;
        const float lse = results[head + h].lse;
        sum.x += share_of(x[h].x, lse), sum.y += share_of(x[h].y, lse);
        sum.z += share_of(x[h].z, lse), sum.w += share_of(x[h].w, lse);
      }
    }
    *reinterpret_cast<float4*>(sums + j) = sum;
    const float of_key[] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int c = 0; c < kKeysOfThread; ++c)
      if (j + c < size) most[c] = max(most[c], rank_of(of_key[c]));
  }
  __syncthreads();
}

// Writes the keys of step 2, ascending, and returns their number.
__device__ inline std::int64_t choose_keys(const Params& p, const Unit& unit, HeadResult* results,
                                           std::int32_t* keys, Shared& smem) {
  const SparqArgs& a = p.args;
  const std::int64_t n = unit.seqlen_k, thread = threadIdx.x;
  const bool is_dense = n <= a.num_keys;
  const std::int64_t num_keys = is_dense ? n : a.num_keys;
  const std::int64_t num_local = is_dense ? n : a.local_window;
  if (!is_dense) {
    float* sums =
        p.memory.p + (unit.batch_idx * a.num_kv_heads + unit.kv_head) * p.memory.key_stride;
    merge_partials(p, unit, results);
    std::uint32_t most[kKeysOfThread] = {};
    sum_over_group(p, unit, results, n - num_local, sums, most);
    if (num_keys > num_local)
      select_largest(sums, n - num_local, num_keys - num_local, most, keys, smem.select);
  }
  for (std::int64_t i = thread; i < num_local; i += kAttendThreads)
    keys[num_keys - num_local + i] = static_cast<std::int32_t>(n - num_local + i);
  __syncthreads();
  if (a.indices != nullptr) {
    std::int32_t* to =
        a.indices + unit.batch_idx * a.indices_stride_batch + unit.kv_head * a.indices_stride_head;
    for (std::int64_t i = thread; i < a.num_indices; i += kAttendThreads)
      to[i * a.indices_stride_key] = i < num_keys ? keys[i] : -1;
  }
  return num_keys;
}

// K or V of a key, elements E in memory; not there: its page is not.
template <class E>
class PlainRow {
 public:
  __device__ PlainRow(const Params& p, const Unit& unit, std::int64_t key, bool is_of_k)
      : has_vectors_(is_of_k ? p.vectors.k : p.vectors.v) {
    const Operand& x = is_of_k ? p.args.k : p.args.v;
    const std::int64_t page = valid_page(p, unit.batch_idx, key);
    if (page >= 0)
      data_ =
          static_cast<const E*>(x.data) + row_offset(x, page, slot_in_page(p, key), unit.kv_head);
  }
  __device__ bool exists() const { return data_ != nullptr; }
  // Elements [c, min(c + 4, dim)), then zeros.
  __device__ void load(std::int64_t c, std::int64_t dim, float (&to)[kKeysOfThread]) const {
    load4(data_ + c, dim - c, has_vectors_, to);
  }

 private:
  const E* data_ = nullptr;
  const bool has_vectors_;
};

// The same of a call with codes.
template <class E>
class CodeRow {
 public:
  __device__ CodeRow(const Params& p, const Unit& unit, std::int64_t key, bool is_of_k) {
    const Sequence sequence{.seqlen_q = 1, .seqlen_k = unit.seqlen_k};
    exists_ = has_page_of_row(p.args.problem, p.args.dense, sequence, unit.batch_idx,
                              unit.seqlen_k - 1, key);
    if (exists_)
      row_ = code_row(p.args, unit.batch_idx, unit.seqlen_k, unit.kv_head, key, is_of_k);
    else
      report_length_error(p.error_word, LengthError::block_table, unit.batch_idx);
  }
  __device__ bool exists() const { return exists_; }
  __device__ void load(std::int64_t c, std::int64_t dim, float (&to)[kKeysOfThread]) const {
#pragma unroll
    for (int i = 0; i < kKeysOfThread; ++i)
      to[i] = c + i < dim ? load_element<E>(row_, c + i) : 0.0f;
  }

 private:
  KeyRow row_;
  bool exists_;
};

// Exact scores of heads [head, head + kAttendHeads); a warp per key.
template <class E, class Row>
__device__ void score_keys(const Params& p, const Unit& unit, std::int64_t head,
                           const std::int32_t* keys, std::int64_t num_keys, Shared& smem) {
  const SparqArgs& a = p.args;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t g = group_size(a);
  for (int i = static_cast<int>(threadIdx.x); i < kAttendHeads * kMaxSparqDim;
       i += kAttendThreads) {
    const int h = i / kMaxSparqDim, c = i % kMaxSparqDim;
    const E* q = static_cast<const E*>(a.q.data) + unit.batch_idx * a.q.stride_batch +
                 (unit.kv_head * g + head + h) * a.q.stride_head;
    smem.q[h][c] = head + h < g && c < a.head_dim ? load_real(q, c) * a.softmax_scale : 0.0f;
  }
  __syncthreads();
  for (std::int64_t i = warp; i < num_keys; i += kAttendWarps) {
    const Row k(p, unit, keys[i], true);
    float sums[kAttendHeads] = {};
    if (k.exists()) {
      for (std::int64_t c = lane * kKeysOfThread; c < a.head_dim; c += kColumns) {
        float x[kKeysOfThread];
        k.load(c, a.head_dim, x);
#pragma unroll
        for (int h = 0; h < kAttendHeads; ++h) {
          const float4 q = *reinterpret_cast<const float4*>(smem.q[h] + c);
          sums[h] = fmaf(x[0], q.x, fmaf(x[1], q.y, fmaf(x[2], q.z, fmaf(x[3], q.w, sums[h]))));
        }
      }
    }
#pragma unroll
    for (int h = 0; h < kAttendHeads; ++h) {
      const float sum = warp_sum(sums[h]);
      if (lane == h && head + h < g)
        p.memory.weights[head_row(a, unit, head + h) * a.num_keys + i] =
            k.exists() ? sum : -HUGE_VALF;
    }
  }
  __syncthreads();
}

// Scores -> exponentials, their sum, alpha; a warp per head.
__device__ inline void finish_weights(const Params& p, const Unit& unit, std::int64_t head,
                                      const std::int32_t* keys, std::int64_t num_keys,
                                      HeadResult* results) {
  const SparqArgs& a = p.args;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t h = head + warp;
  if (warp < kAttendHeads && h < group_size(a)) {
    float* weights = p.memory.weights + head_row(a, unit, h) * a.num_keys;
    const float* scores = p.memory.scores + head_row(a, unit, h) * p.memory.key_stride;
    float most = -HUGE_VALF, sum = 0.0f, alpha = 0.0f;
    for (std::int64_t i = lane; i < num_keys; i += kWarp) most = fmaxf(most, weights[i]);
    most = warp_max(most);
    for (std::int64_t i = lane; i < num_keys; i += kWarp) {
      const float weight = share_of(weights[i], most);
      weights[i] = weight;
      sum += weight;
      if (num_keys < unit.seqlen_k) alpha += share_of(scores[keys[i]], results[h].lse);
    }
    sum = warp_sum(sum);
    alpha = num_keys < unit.seqlen_k ? warp_sum(alpha) : 1.0f;
    alpha = alpha > 1.0f ? 1.0f : alpha;  // NaN stays
    if (lane == 0) {
      results[h].sum = sum;
      results[h].alpha = alpha;
      if (a.alpha != nullptr)
        a.alpha[unit.batch_idx * a.alpha_stride_batch +
                (unit.kv_head * group_size(a) + h) * a.alpha_stride_head] = alpha;
    }
  }
  __syncthreads();
}

// The sum of a column over the warps, as an out.
template <class E>
__device__ void write_out(const Params& p, const Unit& unit, std::int64_t h, std::int64_t column,
                          const HeadResult& result, bool is_dense, const Shared& smem) {
  const SparqArgs& a = p.args;
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kColumns || column + i >= a.head_dim_v) return;
  float y = 0.0f;
#pragma unroll
  for (int w = 0; w < kAttendWarps; ++w) y += smem.values[w][i];
  y = result.sum == 0.0f ? 0.0f : y / result.sum;
  if (a.v_sum.data != nullptr && !is_dense) {
    const float sum =
        static_cast<const float*>(a.v_sum.data)[unit.batch_idx * a.v_sum.stride_batch +
                                                unit.kv_head * a.v_sum.stride_head + column + i];
    y = result.alpha * y + (1.0f - result.alpha) * (sum / static_cast<float>(unit.seqlen_k));
  }
  store_real(static_cast<E*>(a.out.data) + unit.batch_idx * a.out.stride_batch +
                 (unit.kv_head * group_size(a) + h) * a.out.stride_head,
             column + i, y);
}

// Sums of values of heads [head, head + kAttendHeads): a warp sums some keys, four columns per
// lane.
template <class E, class Row>
__device__ void sum_values(const Params& p, const Unit& unit, std::int64_t head,
                           const std::int32_t* keys, std::int64_t num_keys,
                           const HeadResult* results, Shared& smem) {
  const SparqArgs& a = p.args;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t num_heads = min(group_size(a) - head, std::int64_t{kAttendHeads});
  const float* weights = p.memory.weights + head_row(a, unit, head) * a.num_keys;
  for (std::int64_t column = 0; column < a.head_dim_v; column += kColumns) {
    const std::int64_t at = column + lane * kKeysOfThread;
    float sums[kAttendHeads][kKeysOfThread] = {};
    for (std::int64_t i = warp; i < num_keys; i += kAttendWarps) {
      const Row v(p, unit, keys[i], false);
      if (!v.exists()) continue;
      float x[kKeysOfThread];
      v.load(at, a.head_dim_v, x);
#pragma unroll
      for (int h = 0; h < kAttendHeads; ++h) {
        const float weight = h < num_heads ? weights[h * a.num_keys + i] : 0.0f;
#pragma unroll
        for (int c = 0; c < kKeysOfThread; ++c) sums[h][c] = fmaf(weight, x[c], sums[h][c]);
      }
    }
#pragma unroll
    for (int h = 0; h < kAttendHeads; ++h) {
      if (h >= num_heads) continue;
      __syncthreads();  // the sums of the previous head have been read
#pragma unroll
      for (int c = 0; c < kKeysOfThread; ++c)
        smem.values[warp][lane * kKeysOfThread + c] = sums[h][c];
      __syncthreads();
      write_out<E>(p, unit, head + h, column, results[head + h], num_keys == unit.seqlen_k, smem);
    }
  }
  __syncthreads();
}

template <class E, class Row>
__global__ void __launch_bounds__(kAttendThreads, 2)
    attend_kernel(const __grid_constant__ Params p) {
  __shared__ Shared smem;
  extern __shared__ HeadResult results[];  // [g]
  const SparqArgs& a = p.args;
  const std::int64_t num_units = a.batch * a.num_kv_heads;
  for (std::int64_t i = blockIdx.x; i < num_units; i += gridDim.x) {
    Unit unit{i / a.num_kv_heads, i % a.num_kv_heads, 0};
    unit.seqlen_k = num_keys_of(p, unit.batch_idx, threadIdx.x == 0 && unit.kv_head == 0);
    std::int32_t* keys = p.memory.keys + i * a.num_keys;
    const std::int64_t num_keys = choose_keys(p, unit, results, keys, smem);
    for (std::int64_t head = 0; head < group_size(a); head += kAttendHeads) {
      score_keys<E, Row>(p, unit, head, keys, num_keys, smem);
      finish_weights(p, unit, head, keys, num_keys, results);
      sum_values<E, Row>(p, unit, head, keys, num_keys, results, smem);
    }
  }
}

}  // namespace

Status launch_attend(const Params& params, Stream stream) {
  const SparqArgs& a = params.args;
  const LaunchShape shape{
      .name = "sparq_attend",
      .grid = dim3(static_cast<unsigned>(std::min(a.batch * a.num_kv_heads, kMaxGridX))),
      .block = dim3(kAttendThreads),
      .smem_bytes =
          static_cast<unsigned>(group_size(a) * static_cast<std::int64_t>(sizeof(HeadResult)))};
  return with_elements(a.dtype, [&]<class E>() {
    return headrace::cuda::launch(
        shape, static_cast<cudaStream_t>(stream),
        a.has_codes ? attend_kernel<E, CodeRow<E>> : attend_kernel<E, PlainRow<E>>, params);
  });
}

}  // namespace headrace::cuda::sparq
