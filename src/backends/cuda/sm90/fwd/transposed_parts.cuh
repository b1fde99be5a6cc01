// Up to 16 rows of a KV head where there is little work: a cluster of CTAs has a split of the keys,
// so that more multiprocessors load it. Each has one of two roles:
//
//   columns   the first CTAs: P of S, its sums, P V of 64 columns of V, by a warpgroup each
//   scores    the others: S of every n-th k-block, which goes to all CTAs with columns
//
// A k-block of 8 rows has little to compute, but one step after the other: with one warpgroup for
// P, sums and P V it took 1290 clocks, most of them latency.
//
// S of all k-blocks of a split has its place in shared memory, so that nothing waits for room. Sums
// are those of attend_splits, to the bit: S comes from the same products, and no sum of a row goes
// beyond a column.
#pragma once

#include "backends/cuda/device/cluster.cuh"
#include "backends/cuda/sm90/fwd/transposed_launch.cuh"
#include "backends/cuda/sm90/fwd/transposed_part_roles.cuh"
#include "backends/cuda/sm90/fwd/transposed_scores.cuh"

namespace headrace::cuda::sm90::fwd {

// A CTA of the cluster.
template <Tile kTile, class Element>
class PartCta {
  using B = TransposedBarriers<kTile>;
  using Sent = SentScores<kTile>;
  static constexpr TransposedSmem kSmem = transposed_smem(kTile);
  static constexpr int kParts = num_column_parts(kTile);

 public:
  __device__ __forceinline__ PartCta(const Params& p, const Maps& maps, u32 smem, int warp)
      : p_(p), maps_(maps), smem_(smem), warp_(warp), rank_(static_cast<int>(cluster_rank())) {}

  // By threads behind a barrier of the CTA, before the cluster's.
  __device__ __forceinline__ void expect() const {
    const int i = static_cast<int>(threadIdx.x);
    if (rank_ >= kParts || i > blocks_of_split(kTile)) return;
    mbarrier_arrive_expect_tx(Sent::full(smem_, i),
                              i < blocks_of_split(kTile) ? Sent::kBytes : 4 * kParts);
  }

  __device__ __forceinline__ void run(const SplitItem& item) const {
    if (rank_ >= kParts) {
      if (warp_ < 4) score(item);
      if (warp_ >= kFirstLoader) load_keys(item);
    } else if (warp_ < 4) {
      make_probs(item);
    } else if (warp_ < 8) {
      sum_values(item);
    } else if (warp_ < kFirstLoader) {
      sum_probs(item);
    } else {
      load_values(item);
    }
  }

 private:
  static constexpr int kFirstLoader = 12;

  // ---- scores
  __device__ __forceinline__ PartBlocks scored_blocks() const {
    return {rank_ - kParts, static_cast<int>(cluster_size()) - kParts};
  }
  __device__ __forceinline__ void load_keys(const SplitItem& item) const {
    if (warp_ == kFirstLoader && threadIdx.x % 32 == 0)
      load_rows_of_q<kTile>(p_, maps_, item, smem_ + static_cast<u32>(kSmem.offset_q),
                            barrier(B::kQFull));
    __syncwarp();
    PartLoader<kTile, false>(p_, maps_, smem_, warp_ - kFirstLoader, 0).load(item, scored_blocks());
  }
  __device__ __forceinline__ void score(const SplitItem& item) const {
    const PartBlocks blocks = scored_blocks();
    const int count = blocks.count(item);
    ComputedScores<kTile, Element> scores(smem_);
    typename Sent::Registers s;
    scores.begin();
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      scores.wait();
      scores.issue(s);
      scores.template finish<0>(s);
      scores.release();
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        Sent::send(s, blocks.first + i * blocks.step,
                   cluster_address(smem_, static_cast<u32>(part)));
    }
  }

  // ---- columns. Twice where a row must be computed again: its S is still there.
  __device__ __forceinline__ void make_probs(const SplitItem& item) const {
    PartSoftmax<kTile, Element> softmax(p_, smem_);
#pragma unroll 1
    for (bool is_precise = false;; is_precise = true) {
      softmax.run(item, is_precise);
      if (is_precise || agreed() == 0) return;
    }
  }
  __device__ __forceinline__ void sum_probs(const SplitItem& item) const {
    PartSums<kTile, Element> sums(smem_);
#pragma unroll 1
    for (bool is_precise = false;; is_precise = true) {
      sums.run(item, is_precise);
      if (is_precise || agreed() == 0) return;
    }
  }
  __device__ __forceinline__ void load_values(const SplitItem& item) const {
    PartLoader<kTile, true> loader(p_, maps_, smem_, warp_ - kFirstLoader, rank_);
#pragma unroll 1
    for (bool is_again = false;; is_again = true) {
      loader.load(item, {0, 1});
      if (is_again || agreed() == 0) return;
    }
  }
  __device__ __forceinline__ void sum_values(const SplitItem& item) const {
    PartValues<kTile, Element> values(p_, smem_, rank_);
    const u32 word = smem_ + static_cast<u32>(kSmem.offset_again);
#pragma unroll 1
    for (u32 rows = 0;;) {
      values.run(item, rows, word);
      if (rows != 0) return;
      if (threadIdx.x % 128 == 0) report(load_shared(word));
      rows = agreed();
      if (rows == 0) return;
    }
  }
  // Rows that a part computes again, all do: their references are others then.
  __device__ __forceinline__ u32 reported(int part) const {
    return smem_ + static_cast<u32>(kSmem.offset_items + 4 * part);
  }
  __device__ __forceinline__ void report(u32 rows) const {
    for (u32 part = 0; part < kParts; ++part)
      st_async(cluster_address(reported(rank_), part), __uint_as_float(rows),
               cluster_address(barrier(B::kAgreed), part));
  }
  // Also: no CTA leaves before all have stored to it.
  __device__ __forceinline__ u32 agreed() const {
    mbarrier_wait(barrier(B::kAgreed), 0);
    u32 rows = 0;
    for (int part = 0; part < kParts; ++part) rows |= load_shared(reported(part));
    return rows;
  }

  __device__ __forceinline__ u32 barrier(int i) const {
    return smem_ + static_cast<u32>(kSmem.offset_barriers + 8 * i);
  }

  const Params& p_;
  const Maps& maps_;
  const u32 smem_;
  const int warp_, rank_;
};

template <class Variant>
__global__ void __launch_bounds__(threads_of(Variant::kTile), 1)
    attend_parts(const __grid_constant__ Params params, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr Tile kTile = Variant::kTile;
  extern __shared__ unsigned char smem_raw[];
  const u32 smem = (smem_address(smem_raw) + 1023) & ~1023u;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5, 0);
  if (warp == 4) prefetch_tensormap(&maps.k);
  if (warp == 5) prefetch_tensormap(&maps.v);
  prepare_smem<kTile>(params, smem);
  const PartCta<kTile, typename Variant::Element> cta(params, maps, smem, warp);
  cta.expect();
  cluster_arrive();
  griddep_launch_dependents();
  griddep_wait();
  const int size = static_cast<int>(cluster_size()), split = static_cast<int>(blockIdx.x) / size;
  // Of each cluster: a search ends at the sequence that it finds, so none alone sees all lengths.
  const bool is_first_warp = static_cast<int>(blockIdx.x) == split * size && warp == 0;
  SplitItem item;
  const bool exists = SplitItems<kTile>(params, is_first_warp).find(split, item);
  cluster_wait();  // the barriers of the other CTAs exist
  if (!exists) return;
  if (item.has_keys())
    cta.run(item);
  else if (is_first_warp)
    TransposedRows<kTile, typename Variant::Element>{params, item}.store_empty(
        static_cast<int>(threadIdx.x) & 31);
#endif
}

// Both dtypes of a tile.
template <Tile kTile>
constexpr Kernels part_kernels_of(const char* name_bf16, const char* name_f16) {
  return {transposed_image<kTile>(name_bf16, attend_parts<TransposedVariant<kTile, Bf16Element>>),
          transposed_image<kTile>(name_f16, attend_parts<TransposedVariant<kTile, F16Element>>)};
}

}  // namespace headrace::cuda::sm90::fwd
