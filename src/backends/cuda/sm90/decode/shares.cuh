// Decode of few sequences with many keys: all groups of the call stand in a line, sequence by
// sequence and head by head, and each CTA has an equal share of it. Nothing is announced and
// nothing counted: a second kernel, whose launch is hidden, appends the groups.
#pragma once

#include "backends/cuda/sm90/decode/merge.cuh"
#include "backends/cuda/sm90/decode/self_loading.cuh"

namespace headrace::cuda::sm90::decode {

// Groups of a sequence and KV head, a share of them.
struct Segment {
  int batch_idx, kv_head, first, count;  // first: counted from the head's first group
};

// The line of all groups. A lane has a sequence, so that one load and one scan know all lengths.
class GroupLine {
 public:
  __device__ GroupLine(const Params& p, int lane, bool reports) : p_(p) {
    if (lane < p.batch) {
      rows_ = rows_of_item(p, lane, reports);
      groups_ = groups_of(item_of_head(p, lane, 0, rows_).keys()).count;
    }
    end_ = groups_ * p.num_kv_heads;
#pragma unroll
    for (int step = 1; step < kMaxShareBatch; step *= 2) {
      const int before = __shfl_up_sync(kAll, end_, step);
      if (lane >= step) end_ += before;
    }
  }
  __device__ int num_groups() const { return __shfl_sync(kAll, end_, kMaxShareBatch - 1); }

  // The groups of one head among [begin, end), from begin on.
  __device__ Segment segment(int begin, int end) const {
    const int b = __popc(__ballot_sync(kAll, end_ <= begin));
    const int groups = __shfl_sync(kAll, groups_, b);
    const int rest = begin - (__shfl_sync(kAll, end_, b) - groups * p_.num_kv_heads);
    const int kv_head = rest / groups, first = rest - kv_head * groups;
    return {b, kv_head, first, min(groups - first, end - begin)};
  }
  __device__ Item item(const Segment& x) const {
    const auto of = [&](int word) { return __shfl_sync(kAll, word, x.batch_idx); };
    return item_of_head(p_, x.batch_idx, x.kv_head,
                        {of(rows_.seqlen_q), of(rows_.seqlen_k), of(rows_.row_q), of(rows_.row_k)});
  }

 private:
  static constexpr unsigned kAll = 0xffffffffu;
  static_assert(kMaxShareBatch == 32);
  const Params& p_;
  SequenceRows rows_{};
  int groups_ = 0, end_ = 0;  // groups of a head; of the line, with those of all sequences before
};

template <class V>
class ShareCta {
  using Element = typename V::Element;
  static constexpr int kDim = V::kDim, kRows = V::kRows, kRowBlocks = kRows / 8;
  static constexpr ShareSmemPlan kPlan = share_smem_plan(kDim, kRows);
  using Sums = SplitSums<Element, kRowBlocks, kDim / 16>;

 public:
  __device__ ShareCta(const Params& p, u32 smem_base)
      : p_(p),
        base_(smem_base),
        warp_(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5, 0)),
        lane_(static_cast<int>(threadIdx.x) & 31),
        blocks_(p, lane_),
        queries_(lane_) {}

  __device__ void run() {
    const int cta = static_cast<int>(blockIdx.x), num_ctas = static_cast<int>(gridDim.x);
    const GroupLine line(p_, lane_, cta == 0 && warp_ == 0);
    const int num_groups = line.num_groups(), share = (num_groups + num_ctas - 1) / num_ctas;
    const int end = min((cta + 1) * share, num_groups);
#pragma unroll 1
    for (int begin = cta * share; begin < end;) {
      const Segment segment = line.segment(begin, end);
      attend(line.item(segment), segment);
      begin += segment.count;
    }
  }

 private:
  __device__ __forceinline__ void attend(const Item& item, const Segment& segment) {
    // Queries are on their way while the first blocks are asked for.
    Chunk chunks[kQueryChunks<V, kShareThreads>];
    read_queries<V>(p_, item, 32 * warp_ + lane_, chunks);
    const int first_group = groups_of(item.keys()).first + segment.first;
    const WarpSplits splits{.first_key = first_group * kGroupKeys + warp_ * kSplitKeys,
                            .step = kGroupKeys,
                            .count = segment.count};
    const int first_block = warp_ << kPlan.stages_log2;
    SelfLoadingRing<kDim> ring(p_, item, splits,
                               base_ + static_cast<u32>(first_block * kPlan.block),
                               kPlan.stages_log2, lane_);
    store_queries<V>(chunks, base_ + kPlan.q, kPlan.q_pitch);
    __syncthreads();
    queries_.load(base_ + kPlan.q);
    const int rows = item.rows(p_), slot = item.head_idx(p_) * p_.work.share_slots + segment.first;
#pragma unroll 1
    for (int i = 0; i < segment.count; ++i) {
      // The next kernel's CTAs begin when the first blocks have been asked for: before, they delay
      // calls whose lengths are on the device by 3 us.
      if (i == segment.count - 1) griddep_launch_dependents();
      Sums sums;
      sums.clear();
      sum_split(item, blocks_, queries_, ring, splits.key(i * kSplitBlocks), sums);
      sums.normalise();
      __syncthreads();  // the group before has been merged, and the queries have been read
      store(sums);
      __syncthreads();
      merge(slot + i, rows);
    }
    ring.report();
  }

  __device__ u32 o_of(int split, int row) const {
    return base_ + static_cast<u32>(kPlan.o + (split * kRows + row) * kPlan.o_pitch);
  }
  __device__ u32 sums_of(int split, int row) const {
    return base_ + static_cast<u32>(kPlan.row_sums + (split * kRows + row) * 8);
  }
  __device__ __forceinline__ void store(const Sums& sums) const {
#pragma unroll
    for (int r = 0; r < 2 * kRowBlocks; ++r) {
      const int n = r / 2, h = r % 2, row = 8 * n + 2 * (lane_ & 3) + h;
      const u32 to = o_of(warp_, row) + static_cast<u32>(4 * (lane_ >> 2));
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j)
        store_shared(to + 32 * j, __float_as_uint(sums.o[j / 2][n][j % 2 * 2 + h]));
      if (lane_ >> 2 != 0) continue;  // all lanes of a row have its sums
      store_shared(sums_of(warp_, row), __float_as_uint(sums.row_max[n][h]));
      store_shared(sums_of(warp_, row) + 4, __float_as_uint(sums.sum[n][h]));
    }
  }
  // A thread merges the splits of a group for two columns of a row.
  __device__ __forceinline__ void merge(int slot, int rows) const {
    constexpr int kPairs = kDim / 2;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < rows * kPairs; i += kShareThreads) {
      const int row = i / kPairs, column = i % kPairs * 2;
      const Partial<2> group = merge_group(
          p_.scale_log2, [&](int split) { return load_shared2(sums_of(split, row)); },
          [&](int split) { return load_shared2(o_of(split, row) + static_cast<u32>(4 * column)); });
      store_partial<kDim>(p_, slot, row, column, group);
    }
  }

  const Params& p_;
  const u32 base_;
  const int warp_, lane_;
  const BlockSums<Element, kRowBlocks> blocks_;
  QueryFragments<kDim, kRows> queries_;
};

template <class V>
__global__ void __launch_bounds__(kShareThreads, 1)
    decode_shares(const __grid_constant__ Params params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char smem_raw[];
  griddep_wait();
  ShareCta<V>(params, (smem_address(smem_raw) + 1023) & ~1023u).run();
#endif
}

// A CTA has a row of a (sequence, KV head); a warp has a chunk of it, and 64 columns.
template <class Element, int kDim>
__global__ void __launch_bounds__(kMaxAppendThreads)
    append_groups_of_rows(const __grid_constant__ Params params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kColumns = 2, kParts = kDim / 64, kChunks = kMaxAppendThreads / 32 / kParts;
  const Params& p = params;
  __shared__ float2 pairs[kChunks * kParts][kPartsAtOnce];
  __shared__ float2 sums[kChunks];
  __shared__ float2 o[kChunks][kDim / 2];
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int num_warps = static_cast<int>(blockDim.x) >> 5, chunks_at_once = num_warps / kParts;
  const int chunk_of_warp = warp / kParts, pair = warp % kParts * 32 + lane;
  const int head_idx = static_cast<int>(blockIdx.x) / p.rows;
  const int row = static_cast<int>(blockIdx.x) - head_idx * p.rows;
  // Lengths are read before the wait: decode_shares waits for what writes them before it lets this
  // kernel begin, and behind its keys they would come from memory.
  const Item item = item_of_head(p, head_idx, false);
  griddep_launch_dependents();
  griddep_wait();
  if (row >= item.rows(p)) return;
  const GroupRange groups = groups_of(item.keys());
  const int end = groups.first + groups.count, end_chunk = (end - 1) / kChunkGroups + 1;
  Partial<kColumns> all;
#pragma unroll 1
  for (int chunk = groups.first / kChunkGroups; chunk < end_chunk; chunk += chunks_at_once) {
    Partial<kColumns> mine;
    const int first = max((chunk + chunk_of_warp) * kChunkGroups, groups.first);
    const int count = min((chunk + chunk_of_warp + 1) * kChunkGroups, end) - first;
    const int slot = head_idx * p.work.share_slots + first - groups.first;
    append_slots<kDim>(p, {slot, 0, 1, count}, row, kColumns * pair, smem_address(pairs[warp]),
                       lane, mine);
    if (pair == 0) sums[chunk_of_warp] = {mine.row_max, mine.sum};
    o[chunk_of_warp][pair] = {mine.o[0], mine.o[1]};
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < min(chunks_at_once, end_chunk - chunk) && chunk_of_warp == 0; ++i) {
      const Partial<kColumns> next{sums[i].x, sums[i].y, {o[i][pair].x, o[i][pair].y}};
      append(all, next, p.scale_log2);
    }
    __syncthreads();
  }
  if (chunk_of_warp == 0) write_row<Element>(p, item, row, kColumns * pair, all);
#endif
}

}  // namespace headrace::cuda::sm90::decode
