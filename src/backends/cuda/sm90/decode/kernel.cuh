// Attention of few query rows over many keys, for Hopper (Flash-Decoding): clusters where there is
// little work (cluster.cuh), else persistent CTAs that take items of it. README.md defines splits,
// groups and items.
#pragma once

#include <type_traits>

#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/decode/cluster.cuh"
#include "backends/cuda/sm90/decode/consume.cuh"
#include "backends/cuda/sm90/decode/launch.h"
#include "backends/cuda/sm90/decode/shares.cuh"

namespace headrace::cuda::sm90::decode {

// A thread of each warp initialises some: the lanes of a warp would do it one after the other,
// which takes 1.5 us.
template <int kDim, int kRows>
__device__ __forceinline__ void init_barriers(const Smem<kDim, kRows>& smem, int warp, int lane) {
  constexpr int kStages = smem_plan(kDim, kRows).stages;
  static_assert(kItemSlots <= kThreads / 32 - kProducerWarp);
  if (lane != 0) return;
  if (warp < kConsumerWarps) {
#pragma unroll 1
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(smem.full(stage, warp), 1);
      mbarrier_init(smem.empty(stage, warp), 1);
    }
  } else if (const int slot = warp - kProducerWarp; slot < kItemSlots) {
    mbarrier_init(smem.announced(slot), 1);
    mbarrier_init(smem.item_full(slot), 1);
    mbarrier_init(smem.item_empty(slot), kConsumerWarps + kProducerWarps - 1 + 1);
    mbarrier_init(smem.written(slot), kConsumerWarps);
    if (slot == 0) mbarrier_init(smem.opened(), 1);
  }
  fence_mbarrier_init();
}

template <class V>
__global__ void __launch_bounds__(kThreads, 1)
    decode(const __grid_constant__ Params params, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kDim = V::kDim, kRows = V::kRows;
  constexpr SmemPlan kPlan = smem_plan(kDim, kRows);
  extern __shared__ unsigned char smem_raw[];
  unsigned char* base = smem_raw + (-smem_address(smem_raw) & 1023u);
  const Smem<kDim, kRows> smem{smem_address(base)};
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5, 0);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  // Query rows and columns that do not exist count as zeros.
  for (int i = static_cast<int>(threadIdx.x); i < kItemSlots * kRows * kPlan.q_pitch / 4;
       i += kThreads)
    store_shared(smem.q(0) + 4 * static_cast<u32>(i), 0);
  fence_proxy_async();
  init_barriers(smem, warp, lane);
  if (threadIdx.x == 32 * kProducerWarp) {
    announce_rehearsal(params, smem);
    prefetch_tensormap(&maps.k);
    prefetch_tensormap(&maps.v);
  }
  __syncthreads();
  griddep_launch_dependents();
  if (warp < kConsumerWarps) {
    Consumer<V>(params, smem, warp, lane).run();
  } else {
    // Consumers touch global memory behind an item that is announced behind this. Behind a prefix
    // load_state() waits: all but the states has been written before.
    if constexpr (!V::kHasPrefix) griddep_wait();
    const Batch batch(params, smem.batch());
    if (warp < kMergeWarp) {
      Producer<V>(params, maps, smem, batch, warp - kProducerWarp, lane).run();
    } else {
      if (warp == kMergeWarp && params.counters != nullptr) {
        open_counters(params, params.batch * params.num_kv_heads + batch.num_slots(), lane);
        if (lane == 0) mbarrier_arrive(smem.opened());
      }
      const int tid = static_cast<int>(threadIdx.x) - 32 * kMergeWarp;
      Merger<V>(params, smem, base, batch.run_log2(), tid).run();
    }
  }
  if constexpr (V::kHasPrefix) griddep_wait();  // also where no row has a prefix
  if (params.counters == nullptr) return;
  __syncthreads();
  if (threadIdx.x == 0) counters_of(params).close();
#endif
}

template <class V>
Status launch_grid(const char* name, const Call& call) {
  constexpr SmemPlan kPlan = smem_plan(V::kDim, V::kRows);
  const LaunchShape shape{.name = name,
                          .grid = dim3(static_cast<unsigned>(call.num_ctas)),
                          .block = dim3(kThreads),
                          .smem_bytes = static_cast<unsigned>(kPlan.total),
                          .use_pdl = true};
  static_assert(kPlan.total <= kSmemLimitSm90);
  static AllowedSmem allowed;
  if (Status bad = allow_smem(shape, decode<V>, allowed)) return bad;
  return launch(shape, static_cast<cudaStream_t>(call.stream), decode<V>, call.params, call.maps);
}

template <class V>
Status launch_clusters(const char* name, const Call& call) {
  const WorkPlan& work = call.params.work;
  LaunchShape shape{.name = name,
                    .grid = dim3(static_cast<unsigned>(call.num_ctas)),
                    .block = dim3(static_cast<unsigned>(work.cluster_threads)),
                    .smem_bytes = kSmemLimitSm90,
                    .cluster = static_cast<unsigned>(work.cluster_size),
                    .use_pdl = true};
  static AllowedSmem allowed;
  if (Status bad = allow_smem(shape, decode_cluster<V>, allowed)) return bad;
  shape.smem_bytes = static_cast<unsigned>(work.cluster_smem_bytes);
  return launch(shape, static_cast<cudaStream_t>(call.stream), decode_cluster<V>, call.params);
}

template <class V>
Status launch_shares(const char* name, const Call& call) {
  constexpr ShareSmemPlan kPlan = share_smem_plan(V::kDim, V::kRows);
  const Params& p = call.params;
  const auto stream = static_cast<cudaStream_t>(call.stream);
  LaunchShape shape{.name = name,
                    .grid = dim3(static_cast<unsigned>(call.num_ctas)),
                    .block = dim3(kShareThreads),
                    .smem_bytes = static_cast<unsigned>(kPlan.total),
                    .use_pdl = true};
  static_assert(kPlan.total <= kSmemLimitSm90);
  static AllowedSmem allowed;
  if (Status bad = allow_smem(shape, decode_shares<V>, allowed)) return bad;
  HEADRACE_TRY(launch(shape, stream, decode_shares<V>, p));
  const int num_heads = p.work.has_cut_heads ? call.num_ctas : p.batch * p.num_kv_heads;
  shape.grid = dim3(static_cast<unsigned>(num_heads * p.rows));
  shape.block = dim3(static_cast<unsigned>(append_threads(V::kDim, p.work.share_slots)));
  shape.smem_bytes = 0;
  return launch(shape, stream, append_groups_of_rows<typename V::Element, V::kDim>, p);
}

template <class V>
Status launch_variant(const char* name, const Call& call) {
  if constexpr (!V::kHasPrefix) {
    const WorkPlan& work = call.params.work;
    // Of the format in which decoders compute on a GPU.
    if constexpr (std::is_same_v<typename V::Element, Bf16Element>) {
      using Early = Variant<typename V::Element, V::kDim, V::kRows, false, true>;
      if (call.is_early && work.cluster_size > 0) return launch_clusters<Early>(name, call);
      if (call.is_early && work.share_slots > 0) return launch_shares<Early>(name, call);
    }
    if (work.cluster_size > 0) return launch_clusters<V>(name, call);
    if (work.share_slots > 0) return launch_shares<V>(name, call);
  }
  return launch_grid<V>(name, call);
}

template <class Element, int kDim, bool kHasPrefix>
Status launch_element(const char* name, const Call& call) {
  if (row_bucket(call.params.rows) == 8)
    return launch_variant<Variant<Element, kDim, 8, kHasPrefix>>(name, call);
  return launch_variant<Variant<Element, kDim, 16, kHasPrefix>>(name, call);
}

template <int kDim, bool kHasPrefix>
Status launch_dim(const char* name_bf16, const char* name_f16, const Call& call) {
  if (call.dtype == DType::bf16)
    return launch_element<Bf16Element, kDim, kHasPrefix>(name_bf16, call);
  return launch_element<F16Element, kDim, kHasPrefix>(name_f16, call);
}

}  // namespace headrace::cuda::sm90::decode
