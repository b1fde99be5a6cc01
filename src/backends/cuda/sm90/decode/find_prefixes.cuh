// Which neighbouring sequences begin with the same pages: the work of attend_prefix (prefix.cuh).
#pragma once

#include "backends/cuda/device/cluster.cuh"
#include "backends/cuda/sm90/decode/batch.cuh"

namespace headrace::cuda::sm90::decode {

// One cluster: a multiprocessor alone reads the tables of 256 sequences in 10 us.
inline constexpr int kFindCtas = 8, kFindThreads = 512;

// Groups that all rows of a sequence see whole, but for its last one: an item writes the rows.
__device__ __forceinline__ int shareable_groups(const Params& p, int batch_idx) {
  const SequenceRows rows = rows_of(p, batch_idx, false);
  const SequenceKeys keys = keys_of_sequence(p.window, rows.seqlen_q, rows.seqlen_k);
  const int whole = min(keys.right, rows.seqlen_k) / kGroupKeys;
  return max(0, min(min(whole, groups_of(keys).count - 1), p.prefix.max_groups));
}

// Groups that sequence batch_idx has in the same pages as the one before it. By one warp.
__device__ __forceinline__ int groups_in_common(const Params& p, int batch_idx, int lane) {
  const int groups = min(shareable_groups(p, batch_idx), shareable_groups(p, batch_idx - 1));
  if (groups == 0) return 0;
  const PageTable& table = p.pages;
  const int num_entries = (groups * kGroupKeys + table.page_size - 1) / table.page_size;
  const std::int32_t* own = table.block_table + batch_idx * table.stride_batch;
  const std::int32_t* other = own - table.stride_batch + first_entry(p.used_keys, batch_idx - 1);
  own += first_entry(p.used_keys, batch_idx);
  int first = num_entries;  // that differs
#pragma unroll 8
  for (int i = lane; i < num_entries; i += 32)
    if (own[i] != other[i]) first = min(first, i);
  first = __reduce_min_sync(0xffffffffu, first);
  return min(groups, static_cast<int>(std::int64_t{first} * table.page_size / kGroupKeys));
}

// A run of sequences shares what all of its neighbours have in common; it ends where that would be
// less than half of what some of them have.
struct PrefixRun {
  int end, groups;
};
// The run of two or more from `begin` on, by one warp. common[i]: groups in common of sequences
// i - 1 and i.
__device__ __forceinline__ PrefixRun find_run(const int* common, int batch, int begin, int lane) {
  constexpr unsigned kAll = 0xffffffffu;
  int least = INT_MAX, most = 0;
  for (int first = begin + 1;; first += 32) {
    const int groups = first + lane < batch ? common[first + lane] : 0;
    int lower = min(least, groups), upper = max(most, groups);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int lower_before = __shfl_up_sync(kAll, lower, step);
      const int upper_before = __shfl_up_sync(kAll, upper, step);
      if (lane < step) continue;
      lower = min(lower, lower_before);
      upper = max(upper, upper_before);
    }
    const unsigned ends = __ballot_sync(kAll, 2 * lower < upper || lower == 0);
    const int last = (ends != 0 ? __ffs(static_cast<int>(ends)) - 1 : 32) - 1;  // lane in the run
    if (last >= 0) least = __shfl_sync(kAll, lower, last);
    if (ends != 0) return {first + last + 1, least};
    most = __shfl_sync(kAll, upper, 31);
  }
}
// Runs, their slices and items, by one warp. The other sequences have no groups already.
__device__ __forceinline__ void store_runs(const Params& p, const int* common, int lane) {
  const int sequences_of_slice = kPrefixRows / p.rows;
  int num_slices = 0, num_items = 0;
  for (int begin = 0; begin < p.batch;) {
    const bool begins = begin + lane + 1 < p.batch && common[begin + lane + 1] > 0;
    const unsigned runs = __ballot_sync(0xffffffffu, begins);
    if (runs == 0) {
      begin += 32;
      continue;
    }
    begin += __ffs(static_cast<int>(runs)) - 1;
    const auto [end, groups] = find_run(common, p.batch, begin, lane);
    for (int b = begin + lane; b < end; b += 32) p.prefix_groups[b] = groups;
    const int slices = ceil_div(end - begin, sequences_of_slice);
    for (int i = lane; i < slices; i += 32) {
      const int first = begin + i * sequences_of_slice;
      p.slices[num_slices + i] = {first, min(sequences_of_slice, end - first), groups,
                                  num_items + i * groups};
    }
    num_slices += slices;
    num_items += slices * groups;
    begin = end;
  }
  if (lane != 0) return;
  p.num_slices[0] = num_slices;
  p.num_slices[1] = num_items;
}

// One cluster. Its warps compare neighbours, its first CTA forms runs.
static __global__ void __launch_bounds__(kFindThreads, 1)
    find_prefixes(const __grid_constant__ Params params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const Params& p = params;
  __shared__ int common[kMaxPrefixBatch];
  __shared__ std::uint64_t arrived;
  const int tid = static_cast<int>(threadIdx.x), warp = tid >> 5, lane = tid & 31;
  const auto rank = static_cast<int>(cluster_rank());
  const u32 barrier = smem_address(&arrived);
  if (rank == 0 && tid == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, static_cast<u32>(4 * p.batch));
  }
  __syncwarp();
  cluster_arrive();
  griddep_launch_dependents();
  griddep_wait();
  cluster_wait();  // the first CTA's barrier exists
  for (int b = warp * kFindCtas + rank; b < p.batch; b += kFindCtas * kFindThreads / 32) {
    const int groups = b == 0 ? 0 : groups_in_common(p, b, lane);
    if (lane == 0)
      st_async(cluster_address(smem_address(common + b), 0), __int_as_float(groups),
               cluster_address(barrier, 0));
  }
  if (rank != 0) return;
  for (int b = tid; b < p.batch; b += kFindThreads) p.prefix_groups[b] = 0;
  __syncthreads();
  if (warp != 0) return;
  mbarrier_wait_cluster(barrier, 0);
  store_runs(p, common, lane);
#endif
}

}  // namespace headrace::cuda::sm90::decode
