// Shared prefixes: groups of keys that neighbouring sequences have in the same pages are read once
// for the rows of all of them. Three kernels before the persistent grid, which then begins behind
// the prefix:
//   find_prefixes   compares block tables: which sequences share how many groups
//   attend_prefix   groups of a prefix for up to 128 rows, as partial results
//   fold_prefix     appends them to the two states that a head's other groups continue
// Rows are summed as without: the same blocks, splits, groups and chunks in the same order.
#pragma once

#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/decode/find_prefixes.cuh"
#include "backends/cuda/sm90/decode/launch.h"
#include "backends/cuda/sm90/decode/prefix_consume.cuh"

namespace headrace::cuda::sm90::decode {

inline constexpr int kPrefixThreads = 32 * (kPrefixWarps + kPrefixProducers);
// 65536 of a multiprocessor: 168 a thread at the start.
inline constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;
inline constexpr int kFoldThreads = 256;

// ---- attend_prefix

template <class V>
__global__ void __launch_bounds__(kPrefixThreads, 1)
    attend_prefix(const __grid_constant__ Params params, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kDim = V::kDim, kStages = prefix_smem_plan(kDim).stages;
  extern __shared__ unsigned char smem_raw[];
  const u32 start = smem_address(smem_raw);
  const PrefixSmem<kDim> smem{start + (-start & 1023u)};
  const int tid = static_cast<int>(threadIdx.x), lane = tid & 31;
  const int warp = __shfl_sync(0xffffffffu, tid >> 5, 0);
  if (tid < kStages) {
    mbarrier_init(smem.full(tid), kPrefixProducers);
    mbarrier_init(smem.empty(tid), kPrefixWarps);
  }
  if (tid == kPrefixThreads - 32) {
    prefetch_tensormap(&maps.k);
    prefetch_tensormap(&maps.v);
  }
  fence_mbarrier_init();
  __syncthreads();
  griddep_wait();
  griddep_launch_dependents();  // what find_prefixes wrote is complete
  const int num_slices = params.num_slices[0];
  const int num_items = params.num_slices[1] * params.num_kv_heads;
  const auto for_each_item = [&](const auto& take) {
#pragma unroll 1
    for (int id = static_cast<int>(blockIdx.x); id < num_items; id += static_cast<int>(gridDim.x))
      take(find_prefix_item(params, num_slices, id, lane));
  };
  if (warp < kPrefixWarps) {
    setmaxnreg_inc<kConsumerRegisters>();
    PrefixConsumer<V> consumer(params, smem, warp, lane);
    for_each_item([&](const PrefixItem& item) { consumer.attend(item); });
    cp_async_bulk_wait_group<0>();
    return;
  }
  setmaxnreg_dec<kProducerRegisters>();
  PrefixProducer<V> producer(params, maps, smem, warp - kPrefixWarps);
  for_each_item([&](const PrefixItem& item) {
    if (lane == 0) producer.load(item);
    __syncwarp();
  });
  if (lane == 0) producer.report();
#endif
}

// ---- fold_prefix

// A warp has a row of a (sequence, KV head).
template <int kDim>
__global__ void __launch_bounds__(kFoldThreads) fold_prefix(const __grid_constant__ Params params) {
  const Params& p = params;
  __shared__ float2 pairs[kFoldThreads / 32][kPartsAtOnce];
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int id = static_cast<int>(blockIdx.x) * (kFoldThreads / 32) + warp;
  const int num_heads = p.batch * p.num_kv_heads, head_idx = id / p.rows;
  griddep_launch_dependents();
  const int groups =
      head_idx < num_heads ? __ldcg(p.prefix_groups + p.by_kv_heads.divide(head_idx)) : 0;
  griddep_wait();
  if (groups == 0) return;
  const int row = id - head_idx * p.rows, d = kDim / 32 * lane;
  Partial<kDim / 32> all, chunk;
#pragma unroll 1
  for (int first = 0; first < groups; first += kChunkGroups) {
    if (first > 0) append(all, chunk, p.scale_log2);
    chunk = {};
    const int count = min(kChunkGroups, groups - first);
    append_slots<kDim>(p, {p.prefix.group_slot(head_idx, first), 0, 1, count}, row, d,
                       smem_address(pairs[warp]), lane, chunk);
  }
  if (groups % kChunkGroups == 0) {
    append(all, chunk, p.scale_log2);
    chunk = {};
  }
  store_partial<kDim>(p, p.prefix.state_slot(num_heads, head_idx, kWholeChunks), row, d, all);
  store_partial<kDim>(p, p.prefix.state_slot(num_heads, head_idx, kOpenChunk), row, d, chunk);
}

// ---- launch

inline LaunchShape prefix_shape(const char* name, std::int64_t num_ctas, int threads, int smem) {
  return {.name = name,
          .grid = dim3(static_cast<unsigned>(num_ctas)),
          .block = dim3(static_cast<unsigned>(threads)),
          .smem_bytes = static_cast<unsigned>(smem),
          .use_pdl = true};
}

template <class Element, int kDim>
Status launch_prefix_kernels(const Call& call) {
  using V = Variant<Element, kDim, kMaxRows>;
  const Params& p = call.params;
  const auto stream = static_cast<cudaStream_t>(call.stream);
  LaunchShape find = prefix_shape("find_prefixes", kFindCtas, kFindThreads, 0);
  find.cluster = kFindCtas;
  HEADRACE_TRY(launch(find, stream, find_prefixes, p));
  constexpr PrefixSmemPlan kPlan = prefix_smem_plan(kDim);
  static_assert(kPlan.total <= kSmemLimitSm90);
  const LaunchShape attend =
      prefix_shape("attend_prefix", p.num_units, kPrefixThreads, kPlan.total);
  static AllowedSmem allowed;
  if (Status bad = allow_smem(attend, attend_prefix<V>, allowed)) return bad;
  HEADRACE_TRY(launch(attend, stream, attend_prefix<V>, p, call.maps));
  constexpr int kRowsOfCta = kFoldThreads / 32;
  const std::int64_t rows = std::int64_t{p.batch} * p.num_kv_heads * p.rows;
  return launch(
      prefix_shape("fold_prefix", ceil_div<std::int64_t>(rows, kRowsOfCta), kFoldThreads, 0),
      stream, fold_prefix<kDim>, p);
}

}  // namespace headrace::cuda::sm90::decode
