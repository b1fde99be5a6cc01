// Decode where there is little work: a cluster of CTAs has a (sequence, KV head), and merges its
// splits through shared memory. Nothing is counted and nothing goes through global memory, and the
// CTAs leave room for those of the kernels before and behind. The code is small, because between
// other kernels it comes from memory each time.
#pragma once

#include "backends/cuda/device/cluster.cuh"
#include "backends/cuda/sm90/decode/block.cuh"
#include "backends/cuda/sm90/decode/merge.cuh"
#include "backends/cuda/sm90/decode/produce.cuh"

namespace headrace::cuda::sm90::decode {

template <int kDim, int kRows>
struct ClusterSmem {
  static constexpr ClusterSmemPlan kPlan = cluster_smem_plan(kDim, kRows);
  u32 base;  // a multiple of 1024

  __device__ u32 block(int stage, int warp) const {
    return base + static_cast<u32>((stage * kClusterWarps + warp) * kPlan.block);
  }
  __device__ u32 full(int stage, int warp) const {
    return base + static_cast<u32>(kPlan.full + 8 * (stage * kClusterWarps + warp));
  }
  __device__ u32 q() const { return base + static_cast<u32>(kPlan.q); }
  // Row `i` of all partial results of the CTA: the columns, then (maximum, sum).
  __device__ u32 partial(int i) const {
    return base + static_cast<u32>(kPlan.partials + i * kPlan.partial_pitch);
  }
};

// Splits of a warp: split i begins at key first_key + i * step.
struct WarpSplits {
  int first_key, step, count;
  __device__ int key(int block) const {
    return first_key + block / kSplitBlocks * step + block % kSplitBlocks * kBlockKeys;
  }
};

// The ring of a warp that loads its own blocks, those that a row sees: when a block has been read,
// the one kStages later takes its place. K and V of a block follow each other. A lane issues the
// loads; with one producer warp for all, issuing took longer than memory.
template <int kDim, int kRows>
class SelfLoadingRing {
  static constexpr int kStages = ClusterSmem<kDim, kRows>::kPlan.stages;

 public:
  __device__ SelfLoadingRing(const Params& p, const Maps& maps, const Item& item,
                             const ClusterSmem<kDim, kRows>& smem, const WarpSplits& splits,
                             int warp, int lane)
      : loader_(p, maps), item_(item), smem_(smem), splits_(splits), warp_(warp), lane_(lane) {
    end_ = splits.count * kSplitBlocks;
    while (next_ < end_ && !item.sees_block(splits.key(next_))) ++next_;
    while (end_ > next_ && !item.sees_block(splits.key(end_ - 1))) --end_;
    read_pages(next_ - next_ % 32);
#pragma unroll 1
    for (int stage = 0; stage < kStages; ++stage)
      load_next(smem_.block(stage, warp), smem_.full(stage, warp));
  }

  // The next block, when it has arrived.
  __device__ __forceinline__ u32 wait() const {
    mbarrier_wait(smem_.full(ring_.stage, warp_), ring_.parity);
    return smem_.block(ring_.stage, warp_);
  }
  // `loaded` depends on all loads of the block.
  __device__ __forceinline__ void release(u32 loaded) {
    const u32 to = released_behind(loaded, smem_.block(ring_.stage, warp_));
    __syncwarp();
    load_next(to, smem_.full(ring_.stage, warp_));
    ring_.next();
  }
  __device__ void report() const { loader_.report(); }

 private:
  // Lane i has the page of block first + i; entries for blocks that no row sees are not read.
  __device__ __forceinline__ void read_pages(int first) {
    const int block = first + lane_;
    if (block >= next_ && block < end_ && !loader_.has_small_boxes())
      page_ = loader_.page(item_, splits_.key(block));
  }
  __device__ __forceinline__ void load_next(u32 to, u32 full) {
    if (next_ >= end_) return;
    const int key = splits_.key(next_), page = __shfl_sync(0xffffffffu, page_, next_ % 32);
    if (lane_ == 0) {
      if (loader_.has_small_boxes())
        loader_.load_small_boxes(is_v_, item_, key, to, full);
      else
        loader_.load(is_v_, item_, key, page, to, full);
    }
    if (is_v_ && ++next_ % 32 == 0) read_pages(next_);
    is_v_ = !is_v_;
  }

  BlockLoader<kDim> loader_;
  const Item& item_;
  const ClusterSmem<kDim, kRows> smem_;
  const WarpSplits splits_;
  const int warp_, lane_;
  int next_ = 0, end_ = 0;  // blocks: the next to load
  int page_ = 0;
  bool is_v_ = false;
  Ring<kStages> ring_;  // the next to read
};

// Split i of those that the head's queries see belongs to CTA i % C of the C of the cluster. It is
// that CTA's partial result i / C, of warp i / C % kClusterWarps.
template <class V>
class ClusterCta {
  using Element = typename V::Element;
  static constexpr int kDim = V::kDim, kRows = V::kRows, kRowBlocks = kRows / 8;
  static constexpr ClusterSmemPlan kPlan = cluster_smem_plan(kDim, kRows);
  using Sums = SplitSums<Element, kRowBlocks, kDim / 16>;

 public:
  __device__ ClusterCta(const Params& p, u32 smem_base) : p_(p), smem_{smem_base} {}

  // By all threads, before a barrier of the CTA.
  __device__ void init_barriers() const {
    static_assert(kPlan.stages * kClusterWarps <= kClusterThreads);
    if (threadIdx.x < kPlan.stages * kClusterWarps)
      mbarrier_init(smem_.full(0, static_cast<int>(threadIdx.x)), 1);
    fence_mbarrier_init();
  }

  __device__ void run(const Maps& maps) {
    const int tid = static_cast<int>(threadIdx.x);
    find_item();
    sum(maps, __shfl_sync(0xffffffffu, tid >> 5, 0), tid & 31);
    __syncwarp();
    cluster_sync();
    merge(tid);
    cluster_sync();  // the others have read this CTA's partial results
  }

 private:
  __device__ void find_item() {
    size_log2_ = 31 - __clz(static_cast<int>(cluster_size()));
    rank_ = static_cast<int>(cluster_rank());
    const int head = static_cast<int>(blockIdx.x) >> size_log2_;
    item_.batch_idx = p_.by_kv_heads.divide(head);
    item_.kv_head = head - item_.batch_idx * p_.num_kv_heads;
    SequenceKeys keys = p_.keys;
    if (p_.work.is_uniform) {
      item_.seqlen_q = static_cast<int>(p_.sizes.seqlen_q);
      item_.seqlen_k = static_cast<int>(p_.sizes.seqlen_k);
    } else {
      const bool reports = item_.kv_head == 0 && rank_ == 0 && threadIdx.x == 0;
      const SequenceRows rows = rows_of(p_, item_.batch_idx, reports);
      item_.seqlen_q = rows.seqlen_q;
      item_.seqlen_k = rows.seqlen_k;
      item_.row_q = rows.row_q;
      item_.row_k = rows.row_k;
      keys = keys_of_sequence(p_.window, rows.seqlen_q, rows.seqlen_k);
    }
    item_.left = keys.left;
    item_.right = keys.right;
    item_.first_key = keys.first_key;
    item_.end_key = keys.end_key;
    splits_ = splits_of(keys);
  }

  // Partial results warp, warp + kClusterWarps, ... of the CTA.
  __device__ WarpSplits splits_of_warp(int warp) const {
    const int first = (warp << size_log2_) + rank_, step = kClusterWarps << size_log2_;
    return {.first_key = (splits_.first + first) * kSplitKeys,
            .step = step * kSplitKeys,
            .count = max(0, (splits_.count - first + step - 1) / step)};
  }

  // Chunk i of the query rows. Rows and columns that do not exist count as zeros.
  __device__ __forceinline__ Chunk read_query(int i) const {
    constexpr int kChunksOfRow = kDim / 8;
    const int row = i / kChunksOfRow, column = i % kChunksOfRow * 8;
    if (row >= item_.rows(p_) || column >= p_.sizes.head_dim) return {};
    const int q_idx = p_.by_group.divide(row);
    const auto* from = static_cast<const typename Element::Stored*>(p_.q.data) +
                       row_offset(p_.q, item_.batch_idx, item_.row_q + q_idx,
                                  item_.kv_head * p_.group + row - q_idx * p_.group);
    return *reinterpret_cast<const Chunk*>(from + column);
  }

  // The warp's splits become partial results.
  __device__ void sum(const Maps& maps, int warp, int lane) const {
    // Queries are on their way while the first blocks are asked for.
    constexpr int kChunks = kRows * kDim / 8,
                  kShare = (kChunks + kClusterThreads - 1) / kClusterThreads;
    const int tid = 32 * warp + lane;
    Chunk chunks[kShare];
#pragma unroll
    for (int i = 0; i < kShare; ++i)
      if (const int at = i * kClusterThreads + tid; at < kChunks) chunks[i] = read_query(at);
    const WarpSplits splits = splits_of_warp(warp);
    SelfLoadingRing<kDim, kRows> ring(p_, maps, item_, smem_, splits, warp, lane);
#pragma unroll
    for (int i = 0; i < kShare; ++i)
      if (const int at = i * kClusterThreads + tid; at < kChunks)
        store_chunk(
            smem_.q() + static_cast<u32>(at / (kDim / 8) * kPlan.q_pitch + at % (kDim / 8) * 16),
            chunks[i]);
    __syncthreads();
    const BlockSums<Element, kRowBlocks> blocks(p_, lane);
    QueryFragments<kDim, kRows> queries(lane);
    queries.load(smem_.q());
#pragma unroll 1
    for (int i = 0; i < splits.count; ++i) {
      Sums sums;
      sums.clear();
      sum_split(item_, blocks, queries, ring, splits.first_key + i * splits.step, sums);
      sums.normalise();
      store(sums, warp + i * kClusterWarps, lane);
    }
    ring.report();
  }

  __device__ __forceinline__ void store(const Sums& sums, int i, int lane) const {
#pragma unroll
    for (int r = 0; r < 2 * kRowBlocks; ++r) {
      const int n = r / 2, h = r % 2, row = 8 * n + 2 * (lane & 3) + h;
      if (row >= p_.rows) continue;
      const u32 to = smem_.partial(i * p_.rows + row);
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j)
        store_shared(to + static_cast<u32>(4 * (8 * j + (lane >> 2))),
                     __float_as_uint(sums.o[j / 2][n][j % 2 * 2 + h]));
      if (lane >= 4) continue;
      store_shared(to + 4 * kDim, __float_as_uint(sums.row_max[n][h]));
      store_shared(to + 4 * kDim + 4, __float_as_uint(sums.sum[n][h]));
    }
  }

  // A thread merges two columns of a row; the CTAs share the rows' columns.
  __device__ void merge(int tid) const {
    constexpr int kPairs = kDim / 2;
    const int num_pairs = item_.rows(p_) * kPairs, mask = (1 << size_log2_) - 1;
    const int share = (num_pairs + mask) >> size_log2_;
    const int end = min((rank_ + 1) * share, num_pairs);
#pragma unroll 1
    for (int pair = rank_ * share + tid; pair < end; pair += 32 * kClusterWarps) {
      const int row = pair / kPairs, d = pair % kPairs * 2;
      const auto address = [&](int split) {
        const int i = split - splits_.first;
        return cluster_address(smem_.partial((i >> size_log2_) * p_.rows + row),
                               static_cast<u32>(i & mask));
      };
      const Partial<2> sum = merge_row_splits(
          splits_.first, splits_.first + splits_.count, p_.scale_log2,
          [&](int split) { return load_cluster2(address(split) + 4 * kDim); },
          [&](int split) { return load_cluster2(address(split) + static_cast<u32>(4 * d)); });
      decode::write_row<Element>(p_, item_, row, d, sum);
    }
  }

  const Params& p_;
  const ClusterSmem<kDim, kRows> smem_;
  Item item_{};
  SplitRange splits_{};
  int rank_ = 0, size_log2_ = 0;
};

template <class V>
__global__ void __launch_bounds__(kClusterThreads)
    decode_cluster(const __grid_constant__ Params params, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char smem_raw[];
  ClusterCta<V> cta(params, (smem_address(smem_raw) + 1023) & ~1023u);
  cta.init_barriers();
  if (threadIdx.x == 0) {
    prefetch_tensormap(&maps.k);
    prefetch_tensormap(&maps.v);
  }
  __syncthreads();
  griddep_launch_dependents();
  griddep_wait();
  cta.run(maps);
#endif
}

}  // namespace headrace::cuda::sm90::decode
