// Passes over rows of logits, and draws of tokens from them (ops/device_sampler.h).
#include <climits>

#include "backends/cuda/backend.h"
#include "backends/cuda/runtime/device.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sampling/logit_filters.h"
#include "backends/cuda/sampling/logit_row.cuh"
#include "base/math.h"
#include "core/sampling_args.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kSumLanes = 16;  // that add the weights of a block
constexpr int kSumsOfCta = kThreads / kSumLanes;
static_assert(kLogitBlock == 64 && kWeightBlock == 256);

// Copies rows and forbids what their masks do. A warp per block.
__global__ void __launch_bounds__(kThreads) mask_kernel(const EditLogitsArgs p) {
  const LogitEdits& edits = p.rows[blockIdx.y];
  const std::int64_t block = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (block * kLogitBlock >= p.vocab_size) return;
  const std::uint64_t allowed = word_of(edits.mask, block);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t i = block * kLogitBlock + half * 32 + threadIdx.x % 32;
    if (i < p.vocab_size) edits.to[i] = masked(edits.from[i], allowed, i);
  }
}

// Biases and penalties as ops/sampling.cc has them, operation by operation. A CTA per row; a thread
// per token.
__global__ void __launch_bounds__(kThreads) edit_kernel(const EditLogitsArgs p) {
  const LogitEdits& e = p.rows[blockIdx.x];
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < e.num_biases; i += kThreads) {
    const int token = e.biases[i].token;
    if (i > 0 && e.biases[i - 1].token == token) continue;  // added with the first of the token
    float logit = e.to[token];
    for (int k = i; k < e.num_biases && e.biases[k].token == token; ++k)
      logit = __fadd_rn(logit, e.biases[k].value);
    e.to[token] = logit;
  }
  __syncthreads();
  for (int i = thread; i < e.num_repeated; i += kThreads) {
    float& logit = e.to[e.repeated[i].token];
    const double x = static_cast<double>(logit);
    logit = __double2float_rn(x > 0 ? __ddiv_rn(x, e.repetition_penalty)
                                    : __dmul_rn(x, e.repetition_penalty));
  }
  __syncthreads();
  for (int i = thread; i < e.num_counted; i += kThreads) {
    float& logit = e.to[e.counted[i].token];
    const double count = static_cast<double>(e.counted[i].count);
    const double present = __dsub_rn(static_cast<double>(logit), e.presence_penalty);
    logit = __double2float_rn(__dsub_rn(present, __dmul_rn(e.frequency_penalty, count)));
  }
}

// A warp per block.
__global__ void __launch_bounds__(kThreads) maxima_kernel(const SummariseLogitsArgs p) {
  const std::int64_t num_blocks = (p.vocab_size + kLogitBlock - 1) / kLogitBlock;
  const std::int64_t block = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (block >= num_blocks) return;
  const LogitQuery query = p.queries[blockIdx.y];
  float max = -INFINITY;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t i = block * kLogitBlock + half * 32 + threadIdx.x % 32;
    if (i >= p.vocab_size) continue;
    const float logit = logit_at(query, i);
    max = nan_or_max(max, logit < INFINITY ? logit : NAN);
  }
  max = warp_nan_or_max(max);
  if (threadIdx.x % 32 == 0) p.maxima[blockIdx.y * num_blocks + block] = max;
}

// 16 threads per block of weights.
__global__ void __launch_bounds__(kThreads) sums_kernel(const SummariseLogitsArgs p) {
  const std::int64_t num_maxima = (p.vocab_size + kLogitBlock - 1) / kLogitBlock;
  const std::int64_t num_sums = (p.vocab_size + kWeightBlock - 1) / kWeightBlock;
  const LogitQuery query = p.queries[blockIdx.y];
  if (query.temperature == 0) return;
  const float max = row_max<kThreads>(p.maxima + blockIdx.y * num_maxima, num_maxima);
  const std::int64_t block = std::int64_t{blockIdx.x} * kSumsOfCta + threadIdx.x / kSumLanes;
  double sum = 0;
  if (block < num_sums) {
#pragma unroll 4
    for (std::int64_t i = block * kWeightBlock + threadIdx.x % kSumLanes;
         i < min((block + 1) * kWeightBlock, p.vocab_size); i += kSumLanes)
      sum += mass_of(weight_of(logit_at(query, i), max, query.temperature));
  }
#pragma unroll
  for (int half = kSumLanes / 2; half > 0; half /= 2)
    sum += __shfl_down_sync(kAll, sum, half, kSumLanes);
  if (block < num_sums && threadIdx.x % kSumLanes == 0)
    p.block_sums[blockIdx.y * num_sums + block] = sum;
}

// A CTA per range; a warp per block of logits. Counts first, so that candidates are in order.
__global__ void __launch_bounds__(kThreads) gather_kernel(const GatherLogitsArgs p) {
  extern __shared__ int offsets[];  // [num_blocks + 1]
  const LogitRange range = p.ranges[blockIdx.x];
  const LogitQuery& query = p.queries[range.query];
  const int num_blocks = static_cast<int>((p.vocab_size + kLogitBlock - 1) / kLogitBlock);
  const float* maxima = p.maxima + static_cast<std::int64_t>(range.query) * num_blocks;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto for_each_block = [&](auto&& body) {
    for (int block = warp; block < num_blocks; block += kWarps) {
      if (maxima[block] < range.at_least || maxima[block] == -INFINITY) continue;
      bool is_kept[2];
      float logit[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::int64_t token = block * kLogitBlock + half * 32 + lane;
        logit[half] = token < p.vocab_size ? logit_at(query, token) : -INFINITY;
        is_kept[half] = logit[half] >= range.at_least && logit[half] > -INFINITY;
      }
      body(block, logit, is_kept);
    }
  };
  for (int i = static_cast<int>(threadIdx.x); i <= num_blocks; i += kThreads) offsets[i] = 0;
  __syncthreads();
  for_each_block([&](int block, const float(&)[2], const bool(&is_kept)[2]) {
    const u32 low = __ballot_sync(kAll, is_kept[0]), high = __ballot_sync(kAll, is_kept[1]);
    if (lane == 0) offsets[block + 1] = __popc(low) + __popc(high);
  });
  __syncthreads();
  if (warp == 0) {  // an inclusive scan, 32 at a time
    int before = 0;
    for (int first = 1; first <= num_blocks; first += 32) {
      int sum = first + lane <= num_blocks ? offsets[first + lane] : 0;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(kAll, sum, step);
        if (lane >= step) sum += other;
      }
      sum += before;
      if (first + lane <= num_blocks) offsets[first + lane] = sum;
      before = __shfl_sync(kAll, sum, 31);
    }
  }
  __syncthreads();
  const std::int64_t first = blockIdx.x * p.max_candidates;
  for_each_block([&](int block, const float(&logit)[2], const bool(&is_kept)[2]) {
    std::int64_t at = offsets[block];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const u32 kept = __ballot_sync(kAll, is_kept[half]);
      const std::int64_t mine = at + __popc(kept & ((1u << lane) - 1));
      const int token = block * static_cast<int>(kLogitBlock) + half * 32 + lane;
      if (is_kept[half] && mine < p.max_candidates)
        p.candidates[first + mine] = {logit[half], token};
      at += __popc(kept);
    }
  });
  if (threadIdx.x == 0) p.counts[blockIdx.x] = offsets[num_blocks];
}

// The smallest of the threads' numbers.
__device__ __forceinline__ int cta_min(int x, int* shared) {
  __syncthreads();
  if (threadIdx.x == 0) *shared = INT_MAX;
  __syncthreads();
  atomicMin(shared, x);
  __syncthreads();
  return *shared;
}

// The first index below `count` for which is_there holds; INT_MAX: none.
template <class IsThere>
__device__ __forceinline__ int first_index(int count, int* shared, IsThere is_there) {
  int mine = INT_MAX;
  for (int i = static_cast<int>(threadIdx.x); i < count && mine == INT_MAX; i += kThreads)
    if (is_there(i)) mine = i;
  return cta_min(mine, shared);
}

// sums[i]: of all blocks of weights up to i.
__device__ __forceinline__ void add_up(const DrawTokensArgs& p, int num_sums, double* sums) {
  const double* block_sums = p.block_sums + static_cast<std::int64_t>(blockIdx.x) * num_sums;
  for (int i = static_cast<int>(threadIdx.x); i < num_sums; i += kThreads) sums[i] = block_sums[i];
  __syncthreads();
  if (threadIdx.x < 32) {
    const int segment = (num_sums + 31) / 32, first = static_cast<int>(threadIdx.x) * segment;
    const int last = min(first + segment, num_sums);
    double sum = 0;
    for (int i = first; i < last; ++i) sums[i] = sum += sums[i];
    const double before = warp_scan(sum) - sum;
    for (int i = first; i < last; ++i) sums[i] += before;
  }
  __syncthreads();
}

// LogitFilter::pick() without filters.
__device__ __forceinline__ int draw_weighted(const DrawTokensArgs& p, const LogitQuery& query,
                                             float max, const double* sums, int num_sums,
                                             int* shared) {
  __shared__ double masses[kWeightBlock];
  const double target = sums[num_sums - 1] * query.uniform;
  const int found = first_index(num_sums, shared, [&](int i) { return sums[i] > target; });
  const int block = min(found, num_sums - 1);
  const std::int64_t first = block * kWeightBlock;
  const int count = static_cast<int>(min(kWeightBlock, p.vocab_size - first));
  const int i = static_cast<int>(threadIdx.x);
  masses[i] =
      i < count ? mass_of(weight_of(logit_at(query, first + i), max, query.temperature)) : 0;
  __syncthreads();
  if (i == 0) {
    double reached = block > 0 ? sums[block - 1] : 0;
    *shared = 0;
    for (int k = 0; k < count && !(reached > target); ++k) {
      if (masses[k] == 0) continue;
      *shared = k;
      reached += masses[k];
    }
  }
  __syncthreads();
  return static_cast<int>(first) + *shared;
}

__device__ __forceinline__ int first_largest(const DrawTokensArgs& p, const LogitQuery& query,
                                             float max, int* shared) {
  const int num_maxima = static_cast<int>((p.vocab_size + kLogitBlock - 1) / kLogitBlock);
  const float* maxima = p.maxima + static_cast<std::int64_t>(blockIdx.x) * num_maxima;
  const int block = first_index(num_maxima, shared, [&](int i) { return maxima[i] == max; });
  const int first = block * static_cast<int>(kLogitBlock);
  const int count = min(static_cast<int>(kLogitBlock), static_cast<int>(p.vocab_size) - first);
  return first +
         first_index(count, shared, [&](int i) { return logit_at(query, first + i) == max; });
}

// A CTA per query.
__global__ void __launch_bounds__(kThreads) draw_kernel(const DrawTokensArgs p) {
  static_assert(kThreads == kWeightBlock);
  extern __shared__ double sums[];  // [num_sums]
  __shared__ int shared;
  const LogitQuery& query = p.queries[blockIdx.x];
  const std::int64_t num_maxima = (p.vocab_size + kLogitBlock - 1) / kLogitBlock;
  const float max = row_max<kThreads>(p.maxima + blockIdx.x * num_maxima, num_maxima);
  if (query.is_filtered && isfinite(max)) return;  // draw_filtered() draws it
  const int num_sums = static_cast<int>((p.vocab_size + kWeightBlock - 1) / kWeightBlock);
  const bool has_weights = query.temperature != 0 && isfinite(max);
  if (has_weights) add_up(p, num_sums, sums);
  int token = -1;
  if (isnan(max)) {
    const int vocab_size = static_cast<int>(p.vocab_size);
    const auto is_bad = [](float logit) { return !(logit < INFINITY); };
    int bad = first_index(vocab_size, &shared, [&](int i) { return is_bad(query.model_row[i]); });
    if (bad == INT_MAX)
      bad = first_index(vocab_size, &shared, [&](int i) { return is_bad(logit_at(query, i)); });
    token = -1 - bad;
  } else if (max != -INFINITY) {
    token = query.uniform < 0 ? first_largest(p, query, max, &shared)
                              : draw_weighted(p, query, max, sums, num_sums, &shared);
  }
  if (threadIdx.x > 0) return;
  const int shown = token < 0 ? -1 - token : token;
  p.drawn[blockIdx.x] = {.token = token,
                         .logit = logit_at(query, shown),
                         .model_logit = query.model_row[shown],
                         .max = max,
                         .sum = has_weights ? sums[num_sums - 1] : 0,
                         .bound = {}};
  p.tokens[blockIdx.x] = token < 0 ? 0 : token;
}

}  // namespace

Status edit_logits(const EditLogitsArgs& call, int device_id, Stream stream) {
  const DeviceScope scope(device_id);
  if (scope.status()) return scope.status();
  const auto on = static_cast<cudaStream_t>(stream);
  const auto rows = static_cast<unsigned>(call.num_rows);
  const auto num_ctas =
      static_cast<unsigned>(ceil_div<std::int64_t>(ceil_div(call.vocab_size, kLogitBlock), kWarps));
  HEADRACE_TRY(launch({.name = "logit_mask", .grid = dim3(num_ctas, rows), .block = dim3(kThreads)},
                      on, mask_kernel, call));
  return launch({.name = "logit_edits", .grid = dim3(rows), .block = dim3(kThreads)}, on,
                edit_kernel, call);
}

Status summarise_logits(const SummariseLogitsArgs& call, int device_id, Stream stream) {
  if (call.num_queries > kMaxLogitQueries)
    return unsupported("{} rows of logits at once, at most {}", call.num_queries, kMaxLogitQueries);
  const DeviceScope scope(device_id);
  if (scope.status()) return scope.status();
  const auto on = static_cast<cudaStream_t>(stream);
  const auto rows = static_cast<unsigned>(call.num_queries);
  const auto num_ctas = [&](std::int64_t block, int blocks_of_cta) {
    return static_cast<unsigned>(
        ceil_div<std::int64_t>(ceil_div(call.vocab_size, block), blocks_of_cta));
  };
  HEADRACE_TRY(launch({.name = "logit_maxima",
                       .grid = dim3(num_ctas(kLogitBlock, kWarps), rows),
                       .block = dim3(kThreads)},
                      on, maxima_kernel, call));
  if (!call.has_weights) return std::nullopt;
  return launch({.name = "logit_sums",
                 .grid = dim3(num_ctas(kWeightBlock, kSumsOfCta), rows),
                 .block = dim3(kThreads)},
                on, sums_kernel, call);
}

Status gather_logits(const GatherLogitsArgs& call, int device_id, Stream stream) {
  const DeviceScope scope(device_id);
  if (scope.status()) return scope.status();
  const std::int64_t bytes = (ceil_div(call.vocab_size, kLogitBlock) + 1) * 4;
  if (call.vocab_size > kMaxDeviceLogits)
    return unsupported("a vocabulary of {} tokens, at most {}", call.vocab_size, kMaxDeviceLogits);
  return launch({.name = "logit_gather",
                 .grid = dim3(static_cast<unsigned>(call.num_ranges)),
                 .block = dim3(kThreads),
                 .smem_bytes = static_cast<unsigned>(bytes)},
                static_cast<cudaStream_t>(stream), gather_kernel, call);
}

Status draw_tokens(const DrawTokensArgs& call, int device_id, Stream stream) {
  const DeviceScope scope(device_id);
  if (scope.status()) return scope.status();
  if (call.vocab_size > kMaxDeviceLogits)
    return unsupported("a vocabulary of {} tokens, at most {}", call.vocab_size, kMaxDeviceLogits);
  const std::int64_t bytes = ceil_div(call.vocab_size, kWeightBlock) * 8;
  HEADRACE_TRY(launch({.name = "logit_draw",
                       .grid = dim3(static_cast<unsigned>(call.num_queries)),
                       .block = dim3(kThreads),
                       .smem_bytes = static_cast<unsigned>(bytes)},
                      static_cast<cudaStream_t>(stream), draw_kernel, call));
  return call.has_filters ? draw_filtered(call, stream) : std::nullopt;
}

}  // namespace headrace::cuda
