// Which neighbouring sequences begin with the same pages: the work of attend_prefix (prefix.cuh).
#pragma once

#include "backends/cuda/sm90/decode/batch.cuh"

namespace headrace::cuda::sm90::decode {

inline constexpr int kFindThreads = 1024;

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

// One CTA. A run of sequences shares what all of its neighbours have in common; it ends where that
// would be less than half of what some of them have.
static __global__ void __launch_bounds__(kFindThreads, 1)
    find_prefixes(const __grid_constant__ Params params) {
  const Params& p = params;
  __shared__ int common[kMaxPrefixBatch];
  const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
  griddep_launch_dependents();
  griddep_wait();
  for (int b = warp; b < p.batch; b += kFindThreads / 32) {
    const int groups = b == 0 ? 0 : groups_in_common(p, b, lane);
    if (lane == 0) common[b] = groups;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const int sequences_of_slice = kPrefixRows / p.rows;
  int num_slices = 0, num_items = 0;
  for (int begin = 0, end; begin < p.batch; begin = end) {
    int least = INT_MAX, most = 0;
    for (end = begin + 1; end < p.batch; ++end) {
      const int next_least = min(least, common[end]), next_most = max(most, common[end]);
      if (2 * next_least < next_most || next_least == 0) break;
      least = next_least, most = next_most;
    }
    const int groups = end == begin + 1 ? 0 : least;
    for (int b = begin; b < end; ++b) p.prefix_groups[b] = groups;
    if (groups == 0) continue;
    for (int b = begin; b < end; b += sequences_of_slice) {
      p.slices[num_slices++] = {b, min(sequences_of_slice, end - b), groups, num_items};
      num_items += groups;
    }
  }
  p.num_slices[0] = num_slices;
  p.num_slices[1] = num_items;
}

}  // namespace headrace::cuda::sm90::decode
