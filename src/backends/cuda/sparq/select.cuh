// The keys of step 2 of SparQ attention, by one CTA: the largest sums of softmaxes. Few candidates
// above a bound are ordered by counting; where they are many, a radix select finds the threshold.
#pragma once

#include "backends/cuda/sparq/common.cuh"

namespace headrace::cuda::sparq {

inline constexpr int kAttendWarps = kAttendThreads / kWarp;

inline constexpr int kMaxCandidates = 512;

struct SelectShared {
  std::uint32_t histogram[1 << 11];
  std::uint32_t threshold, num_equal;
  std::uint32_t warp_sums[kAttendWarps];
  std::uint32_t num_candidates;
  std::uint32_t ranks[kMaxCandidates];  // of the candidates
  std::int32_t keys[kMaxCandidates];
  bool is_chosen[kMaxCandidates];
};

// One digit of the rank of the threshold, by the first warp: `threshold` gets it, `num_equal`, the
// place of the threshold among values with the same higher digits, becomes that with this digit.
__device__ inline void find_digit(int shift, int num_bits, SelectShared& smem) {
  if (threadIdx.x < kWarp) {
    const int lane = static_cast<int>(threadIdx.x), width = (1 << num_bits) / kWarp;
    const int top = (1 << num_bits) - 1 - lane * width;  // a lane has digits [top - width + 1, top]
    std::uint32_t sum = 0;
    for (int i = 0; i < width; ++i) sum += smem.histogram[top - i];
    std::uint32_t before = sum;  // inclusive scan, then of the lanes before this one
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const std::uint32_t other = __shfl_up_sync(~0u, before, step);
      if (lane >= step) before += other;
    }
    before -= sum;
    const std::uint32_t count = smem.num_equal, threshold = smem.threshold;
    __syncwarp();
    if (before < count && count <= before + sum) {
      std::uint32_t rest = count - before;
      int digit = top;
      for (; smem.histogram[digit] < rest; --digit) rest -= smem.histogram[digit];
      smem.num_equal = rest;
      smem.threshold = threshold | static_cast<std::uint32_t>(digit) << shift;
    }
  }
  __syncthreads();
}

// The sum of x over the threads before this one; `total` of all.
__device__ inline std::uint32_t exclusive_scan(std::uint32_t x, SelectShared& smem,
                                               std::uint32_t* total) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  std::uint32_t sum = x;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const std::uint32_t other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == kWarp - 1) smem.warp_sums[warp] = sum;
  __syncthreads();
  std::uint32_t before = 0, all = 0;
#pragma unroll
  for (int w = 0; w < kAttendWarps; ++w) {
    if (w < warp) before += smem.warp_sums[w];
    all += smem.warp_sums[w];
  }
  __syncthreads();
  *total = all;
  return before + sum - x;
}

// `threshold` becomes the rank of the `count`-th largest, `num_equal` the number of values equal to
// it that are among the `count` largest. for_ranks(visit) calls visit with every rank of a thread.
template <class ForRanks>
__device__ __forceinline__ void find_threshold(std::int64_t count, const ForRanks& for_ranks,
                                               SelectShared& smem) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) smem.threshold = 0, smem.num_equal = static_cast<std::uint32_t>(count);
#pragma unroll 1
  for (int digit = 0; digit < 3; ++digit) {
    const int shift = 20 - 10 * digit, num_bits = digit == 0 ? 11 : 10;
    for (int i = thread; i < 1 << num_bits; i += kAttendThreads) smem.histogram[i] = 0;
    __syncthreads();
    const std::uint32_t prefix = smem.threshold >> (shift + num_bits);
    for_ranks([&](std::uint32_t rank) {
      if (rank >> (shift + num_bits) == prefix)
        atomicAdd(&smem.histogram[rank >> shift & ((1u << num_bits) - 1)], 1u);
    });
    __syncthreads();
    find_digit(shift, num_bits, smem);
  }
}

// visit(i, rank) for the values p[0, size) of a thread; p is aligned to four floats.
template <class Visit>
__device__ __forceinline__ void for_values(const float* p, std::int64_t size, const Visit& visit) {
  constexpr std::int64_t kStep = kAttendThreads * kKeysOfThread;
  constexpr int kLoads = 4;  // in flight
  for (std::int64_t base = std::int64_t{threadIdx.x} * kKeysOfThread; base < size;
       base += kStep * kLoads) {
    float4 x[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u)
      x[u] = base + u * kStep < size ? *reinterpret_cast<const float4*>(p + base + u * kStep)
                                     : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const std::int64_t i = base + u * kStep;
      const float of_key[] = {x[u].x, x[u].y, x[u].z, x[u].w};
#pragma unroll
      for (int c = 0; c < kKeysOfThread; ++c)
        if (i + c < size) visit(i + c, rank_of(of_key[c]));
    }
  }
}

// The keys that are among the `count` largest, ascending, by counting: a candidate's place is the
// number of those before it.
__device__ inline void order_candidates(int num_candidates, std::int64_t count, std::int32_t* keys,
                                        SelectShared& smem) {
  for (int i = static_cast<int>(threadIdx.x); i < num_candidates; i += kAttendThreads) {
    const std::uint32_t rank = smem.ranks[i];
    const std::int32_t key = smem.keys[i];
    int place = 0;
    for (int j = 0; j < num_candidates; ++j)
      place += smem.ranks[j] > rank || (smem.ranks[j] == rank && smem.keys[j] < key);
    smem.is_chosen[i] = place < count;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < num_candidates; i += kAttendThreads) {
    if (!smem.is_chosen[i]) continue;
    const std::int32_t key = smem.keys[i];
    int place = 0;
    for (int j = 0; j < num_candidates; ++j) place += smem.is_chosen[j] && smem.keys[j] < key;
    keys[place] = key;
  }
}

// The largest of many values are hardly more than those above the `count`-th largest of a part of
// them. `most`: the largest ranks of a thread's values at each place of four, so no two are of one
// value. False: there are too many candidates, and nothing was written.
__device__ inline bool select_by_bound(const float* p, std::int64_t size, std::int64_t count,
                                       const std::uint32_t (&most)[kKeysOfThread],
                                       std::int32_t* keys, SelectShared& smem) {
  if (count > kMaxCandidates) return false;
  if (threadIdx.x == 0) smem.num_candidates = 0;
  find_threshold(
      count,
      [&](const auto& visit) {
#pragma unroll
        for (int c = 0; c < kKeysOfThread; ++c) visit(most[c]);
      },
      smem);
  const std::uint32_t bound = smem.threshold;
  for_values(p, size, [&](std::int64_t i, std::uint32_t rank) {
    if (rank < bound) return;
    const std::uint32_t at = atomicAdd(&smem.num_candidates, 1u);
    if (at >= kMaxCandidates) return;
    smem.ranks[at] = rank;
    smem.keys[at] = static_cast<std::int32_t>(i);
  });
  __syncthreads();
  const std::uint32_t num_candidates = smem.num_candidates;
  if (num_candidates > kMaxCandidates) return false;
  order_candidates(static_cast<int>(num_candidates), count, keys, smem);
  return true;
}

// The same for any number of values.
__device__ inline void select_by_digits(const float* p, std::int64_t size, std::int64_t count,
                                        std::int32_t* keys, SelectShared& smem) {
  const int thread = static_cast<int>(threadIdx.x);
  find_threshold(
      count,
      [&](const auto& visit) {
        for_values(p, size, [&](std::int64_t, std::uint32_t rank) { visit(rank); });
      },
      smem);
  const std::uint32_t threshold = smem.threshold, num_equal = smem.num_equal;
  std::uint32_t larger_before = 0, equal_before = 0;
  for (std::int64_t base = 0; base < size; base += kAttendThreads * kKeysOfThread) {
    const std::int64_t first = base + thread * kKeysOfThread;
    std::uint32_t rank[kKeysOfThread], mine = 0;  // counts: equal ones in the upper half
    if (first < size) {
      const float4 x = *reinterpret_cast<const float4*>(p + first);
      rank[0] = rank_of(x.x), rank[1] = rank_of(x.y), rank[2] = rank_of(x.z),
      rank[3] = rank_of(x.w);
    }
#pragma unroll
    for (int i = 0; i < kKeysOfThread; ++i)
      if (first + i < size) mine += (rank[i] > threshold) + ((rank[i] == threshold) << 16);
    std::uint32_t total = 0;
    const std::uint32_t before = exclusive_scan(mine, smem, &total);
    std::uint32_t larger = larger_before + (before & 0xffffu),
                  equal = equal_before + (before >> 16);
#pragma unroll
    for (int i = 0; i < kKeysOfThread; ++i) {
      if (first + i >= size || rank[i] < threshold) continue;
      if (rank[i] > threshold || equal < num_equal)
        keys[larger + min(equal, num_equal)] = static_cast<std::int32_t>(first + i);
      larger += rank[i] > threshold;
      equal += rank[i] == threshold;
    }
    larger_before += total & 0xffffu;
    equal_before += total >> 16;
  }
}

// Writes the indices of the `count` largest of p[0, size), ascending, among equals the lowest.
// 1 <= count <= size; p is aligned to four floats. `most`: as select_by_bound() has them.
__device__ inline void select_largest(const float* p, std::int64_t size, std::int64_t count,
                                      const std::uint32_t (&most)[kKeysOfThread],
                                      std::int32_t* keys, SelectShared& smem) {
  if (!select_by_bound(p, size, count, most, keys, smem))
    select_by_digits(p, size, count, keys, smem);
}

}  // namespace headrace::cuda::sparq
