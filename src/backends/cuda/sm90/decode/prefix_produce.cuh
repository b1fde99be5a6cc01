// The work of attend_prefix, its shared memory, and its producer warps: K and V by TMA.
#pragma once

#include "backends/cuda/sm90/decode/produce.cuh"

namespace headrace::cuda::sm90::decode {

inline constexpr int kPrefixProducers = 4;  // warps

// A group of keys, a KV head, the rows of a slice.
struct PrefixItem {
  PrefixSlice slice;
  int kv_head, group;
};
// By one warp. The heads of the same keys are consecutive items.
__device__ __forceinline__ PrefixItem find_prefix_item(const Params& p, int num_slices, int id,
                                                       int lane) {
  constexpr unsigned kAll = 0xffffffffu;
  const int rest = p.by_kv_heads.divide(id);
  PrefixSlice found{};
#pragma unroll 1
  for (int first = 0; first < num_slices; first += 32) {
    PrefixSlice mine{};
    if (first + lane < num_slices) mine = p.slices[first + lane];
    const bool is_before = first + lane < num_slices && mine.items_before <= rest;
    const int count = __popc(__ballot_sync(kAll, is_before));
    if (count == 0) break;
    found = {__shfl_sync(kAll, mine.first_sequence, count - 1),
             __shfl_sync(kAll, mine.num_sequences, count - 1),
             __shfl_sync(kAll, mine.groups, count - 1),
             __shfl_sync(kAll, mine.items_before, count - 1)};
  }
  return {found, id - rest * p.num_kv_heads, rest - found.items_before};
}

template <int kDim>
struct PrefixSmem {
  static constexpr PrefixSmemPlan kPlan = prefix_smem_plan(kDim);
  u32 base;  // a multiple of 1024

  __device__ u32 split(int stage) const { return base + static_cast<u32>(stage * kPlan.stage); }
  __device__ u32 full(int stage) const { return word(kPlan.full, stage); }
  __device__ u32 empty(int stage) const { return word(kPlan.empty, stage); }
  // Of a warp: its rows of Q, and P of a block, 16 bytes a lane.
  __device__ u32 q(int warp) const {
    return base + static_cast<u32>(kPlan.q + warp * kMaxRows * kPlan.q_pitch);
  }
  __device__ u32 probs(int warp, int block, int lane) const {
    return base +
           static_cast<u32>(kPlan.probs + (warp * kGroupBlocks + block) * kProbBytes + 16 * lane);
  }
  // Of a warp's row and a block, where Q was.
  __device__ u32 factor(int warp, int block, int row) const {
    return q(warp) + static_cast<u32>(block * kFactorBytes + 4 * row);
  }
  // Of a warp's row and a split.
  __device__ u32 row_sums(int warp, int split, int row) const {
    return base + static_cast<u32>(kPlan.row_sums + entry(warp, split, row) * 8);
  }
  __device__ u32 weight(int warp, int split, int row) const {
    return base + static_cast<u32>(kPlan.weights + entry(warp, split, row) * 4);
  }

 private:
  __device__ static int entry(int warp, int split, int row) {
    return (warp * kGroupSplits + split) * kMaxRows + row;
  }
  __device__ u32 word(int offset, int i) const { return base + static_cast<u32>(offset + 8 * i); }
};

// Loads all splits of K of a group, then of V. One lane of each producer warp has a block of each
// split: over pages of one key a split is 64 boxes, which one warp does not issue fast enough.
template <class V>
class PrefixProducer {
  static constexpr int kDim = V::kDim;
  static constexpr PrefixSmemPlan kPlan = prefix_smem_plan(kDim);
  static_assert(kPrefixProducers == kSplitBlocks);

 public:
  __device__ PrefixProducer(const Params& p, const Maps& maps, PrefixSmem<kDim> smem, int producer)
      : used_keys_(p.used_keys), smem_(smem), producer_(producer), blocks_(p, maps, kEvictFirst) {}

  // By one lane.
  __device__ void load(const PrefixItem& x) {
    const Item item{.batch_idx = x.slice.first_sequence,
                    .kv_head = x.kv_head,
                    .row_k = first_entry(used_keys_, x.slice.first_sequence),
                    .end_key = (x.group + 1) * kGroupKeys};
    const int first_key = x.group * kGroupKeys + producer_ * kBlockKeys;
    int next = page_of(item, first_key);
#pragma unroll 1
    for (int i = 0; i < 2 * kGroupSplits; ++i) {
      const int page = next, key = first_key + i % kGroupSplits * kSplitKeys;
      next = page_of(item, first_key + (i + 1) % kGroupSplits * kSplitKeys);
      mbarrier_wait(smem_.empty(ring_.stage), ring_.parity ^ 1);
      const u32 to =
          smem_.split(ring_.stage) + static_cast<u32>(producer_ * kBlockKeys * kSwizzleRowBytes);
      const u32 full = smem_.full(ring_.stage);
      if (blocks_.has_small_boxes())
        blocks_.load_small_boxes(i >= kGroupSplits, item, key, to, full);
      else
        blocks_.load(i >= kGroupSplits, item, key, page, to, full);
      ring_.next();
    }
  }
  __device__ void report() const { blocks_.report(); }

 private:
  __device__ int page_of(const Item& item, int key) {
    return blocks_.has_small_boxes() ? 0 : blocks_.page(item, key);
  }

  const UsedKeys& used_keys_;
  const PrefixSmem<kDim> smem_;
  const int producer_;
  BlockLoader<kDim, kPlan.half> blocks_;
  Ring<kPlan.stages> ring_;
};

}  // namespace headrace::cuda::sm90::decode
