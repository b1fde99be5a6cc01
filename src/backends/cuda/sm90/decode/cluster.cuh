// Decode where there is little work: a cluster of CTAs has a (sequence, KV head), and merges its
// splits through shared memory. Nothing is counted and nothing goes through global memory. The code
// is small, because between other kernels it comes from memory each time.
#pragma once

#include "backends/cuda/device/cluster.cuh"
#include "backends/cuda/sm90/decode/merge.cuh"
#include "backends/cuda/sm90/decode/self_loading.cuh"

namespace headrace::cuda::sm90::decode {

template <int kDim, int kRows>
struct ClusterSmem {
  static constexpr ClusterSmemPlan kPlan = cluster_smem_plan(kDim, kRows, 0, 0);
  u32 base;  // a multiple of 1024
  int ring_log2;

  // Of the ring that the warps share.
  __device__ u32 block(int i) const { return base + static_cast<u32>(i * kPlan.block); }
  __device__ u32 q() const { return behind_ring(kPlan.q); }
  // All partial results are in the CTA's shared memory.
  __device__ u32 arrived() const { return behind_ring(kPlan.arrived); }
  __device__ u32 partials() const { return behind_ring(kPlan.partials); }

 private:
  __device__ u32 behind_ring(int offset) const {
    return block(1 << ring_log2) + static_cast<u32>(offset - kPlan.block);
  }
};

// Splits of a warp: split i begins at key first_key + i * step.
struct WarpSplits {
  int first_key, step, count;
  __device__ int key(int block) const {
    return first_key + block / kSplitBlocks * step + block % kSplitBlocks * kBlockKeys;
  }
};

// The blocks of a warp's splits that a row of the head sees.
template <class V>
class SplitBlocks {
 public:
  __device__ SplitBlocks(BlockCopier<V>& copier, const Item& item, const WarpSplits& splits,
                         int lane)
      : item_(item), splits_(splits), end_(splits.count * kSplitBlocks), lane_(lane) {
    while (next_ < end_ && !item.sees_block(splits.key(next_))) ++next_;
    while (end_ > next_ && !item.sees_block(splits.key(end_ - 1))) --end_;
    read_pages(copier, next_ - next_ % 32);
  }
  __device__ __forceinline__ bool has_block() const { return next_ < end_; }
  __device__ __forceinline__ const Item& item() const { return item_; }
  __device__ __forceinline__ int key() const { return splits_.key(next_); }
  __device__ __forceinline__ int page() const {
    return __shfl_sync(0xffffffffu, page_, next_ % 32);
  }
  __device__ __forceinline__ void advance(BlockCopier<V>& copier) {
    if (++next_ % 32 == 0) read_pages(copier, next_);
  }

 private:
  // Lane i has the page of block first + i; entries for blocks that no row sees are not read.
  __device__ __forceinline__ void read_pages(BlockCopier<V>& copier, int first) {
    const int block = first + lane_;
    if (block < next_ || block >= end_ || copier.has_small_pages()) return;
    page_ = copier.page(item_, splits_.key(block));
    copier.check(item_, page_);
  }

  const Item& item_;
  const WarpSplits splits_;
  int next_ = 0, end_;
  int page_ = 0;
  const int lane_;
};

// Split i of those that the head's queries see belongs to CTA i % C of the C of the cluster, to its
// warp i / C % kClusterWarps. CTA c has columns [c * kDim / C, (c + 1) * kDim / C) of all splits'
// partial results, which arrive in its shared memory by st.async, as bytes of a transaction: a CTA
// leaves when it has all. Releases of a cluster's scope (barrier.cluster, mbarrier.arrive) would
// wait for all of the GPU's memory (MEMBAR.ALL.GPU).
template <class V>
class ClusterCta {
  using Element = typename V::Element;
  static constexpr int kDim = V::kDim, kRows = V::kRows, kRowBlocks = kRows / 8;
  static constexpr int kDimLog2 = kDim == 64 ? 6 : 7;
  static constexpr ClusterSmemPlan kPlan = ClusterSmem<kDim, kRows>::kPlan;
  using Sums = SplitSums<Element, kRowBlocks, kDim / 16>;

 public:
  __device__ ClusterCta(const Params& p, u32 smem_base)
      : p_(p), smem_{smem_base, p.work.cluster_ring_log2} {}

  // By all threads, before a barrier of the CTA.
  __device__ void init_barriers() const {
    if (threadIdx.x == 0) {
      mbarrier_init(smem_.arrived(), 1);
      fence_mbarrier_init();
    }
  }

  __device__ void run() {
    const int tid = static_cast<int>(threadIdx.x);
    cluster_arrive();
    find_item();
    if (tid == 0 && size_log2_ > 0)
      mbarrier_arrive_expect_tx(smem_.arrived(),
                                static_cast<u32>(splits_.count * item_.rows(p_) * partial_pitch()));
    sum(__shfl_sync(0xffffffffu, tid >> 5, 0), tid & 31);
    __syncthreads();  // the ring and the queries have been read; merging writes in their place
    if (size_log2_ > 0) mbarrier_wait_cluster(smem_.arrived(), 0);
    merge(tid);
  }

 private:
  __device__ void find_item() {
    size_log2_ = 31 - __clz(static_cast<int>(cluster_size()));
    rank_ = static_cast<int>(cluster_rank());
    const int head = static_cast<int>(blockIdx.x) >> size_log2_;
    const bool reports = rank_ == 0 && threadIdx.x == 0;
    item_ = item_of_head(p_, head, reports);
    splits_ = splits_of(item_.keys());
  }

  // A launch with fewer than kClusterWarps warps has no splits for the others.
  __device__ WarpSplits splits_of_warp(int warp) const {
    const int first = (warp << size_log2_) + rank_, step_log2 = kClusterWarpsLog2 + size_log2_;
    const int behind_last = splits_.count - first + (1 << step_log2) - 1;
    return {.first_key = (splits_.first + first) * kSplitKeys,
            .step = kSplitKeys << step_log2,
            .count = max(0, behind_last >> step_log2)};
  }

  // The warp's splits become partial results of all CTAs.
  __device__ void sum(int warp, int lane) const {
    // Queries are on their way while the first blocks are asked for, if they are complete.
    Chunk chunks[kQueryChunks<V, kMinClusterThreads>];
    if constexpr (!V::kIsEarly) read_queries<V>(p_, item_, 32 * warp + lane, chunks);
    const WarpSplits splits = splits_of_warp(warp);
    const int stages_log2 = stages_of_warp_log2();
    BlockCopier<V> copier(p_, lane, kEvictNormal);
    SelfLoadingRing<V, SplitBlocks<V>> ring(copier, {copier, item_, splits, lane},
                                            smem_.block(warp << stages_log2), stages_log2);
    if constexpr (V::kIsEarly) {
      griddep_wait();
      read_queries<V>(p_, item_, 32 * warp + lane, chunks);
    }
    store_queries<V>(chunks, smem_.q(), kPlan.q_pitch);
    __syncthreads();
    cluster_wait();  // the barriers of the other CTAs exist
    const BlockSums<Element, kRowBlocks> blocks(p_, lane);
    QueryFragments<kDim, kRows> queries(lane);
    queries.load(smem_.q());
#pragma unroll 1
    for (int i = 0; i < splits.count; ++i) {
      Sums sums;
      sums.clear();
      sum_split(item_, blocks, queries, ring, splits.first_key + i * splits.step, sums);
      sums.normalise();
      send(sums, (i * kClusterWarps + warp << size_log2_) + rank_, lane);
    }
    copier.report();
  }

  // Of the ring, which the warps with splits share: 2 or 3.
  __device__ int stages_of_warp_log2() const {
    const int splits_of_cta = (splits_.count + (1 << size_log2_) - 1) >> size_log2_;
    const int warps_log2 =
        splits_of_cta >= kClusterWarps ? kClusterWarpsLog2 : 32 - __clz(splits_of_cta - 1);
    return min(3, p_.work.cluster_ring_log2 - warps_log2);
  }

  // Row `row` of split i: the CTA's columns, then (maximum, sum).
  __device__ __forceinline__ int partial_pitch() const { return (4 * kDim >> size_log2_) + 8; }
  __device__ __forceinline__ u32 partial(int i, int row) const {
    return smem_.partials() + static_cast<u32>((i * item_.rows(p_) + row) * partial_pitch());
  }

  // The sums of split i go to the CTAs that have their columns.
  __device__ __forceinline__ void send(const Sums& sums, int i, int lane) const {
    const int columns_log2 = kDimLog2 - size_log2_;
#pragma unroll
    for (int r = 0; r < 2 * kRowBlocks; ++r) {
      const int n = r / 2, h = r % 2, row = 8 * n + 2 * (lane & 3) + h;
      if (row >= item_.rows(p_)) continue;
      const u32 to = partial(i, row);
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j) {
        const u32 rank = static_cast<u32>(8 * j >> columns_log2);
        const int column = 8 * j + (lane >> 2) - static_cast<int>(rank << columns_log2);
        put(to + static_cast<u32>(4 * column), rank, sums.o[j / 2][n][j % 2 * 2 + h]);
      }
      // All lanes of a row have its sums.
#pragma unroll 1
      for (int rank = lane >> 2; rank < 1 << size_log2_; rank += 8) {
        const u32 end = to + static_cast<u32>(partial_pitch() - 8);
        put(end, static_cast<u32>(rank), sums.row_max[n][h]);
        put(end + 4, static_cast<u32>(rank), sums.sum[n][h]);
      }
    }
  }
  // Launches without a cluster have no st.async.
  __device__ __forceinline__ void put(u32 to, u32 rank, float x) const {
    if (size_log2_ == 0)
      store_shared(to, __float_as_uint(x));
    else
      st_async(cluster_address(to, rank), x, cluster_address(smem_.arrived(), rank));
  }

  // A thread merges the splits of a group for two columns of a row, then appends the groups.
  __device__ void merge(int tid) const {
    const int pairs_log2 = kDimLog2 - 1 - size_log2_, pairs = 1 << pairs_log2;
    const int rows = item_.rows(p_), first_group = splits_.first / kGroupSplits;
    const int num_groups = (splits_.first + splits_.count - 1) / kGroupSplits - first_group + 1;
#pragma unroll 1
    for (int i = tid; i < rows * num_groups << pairs_log2; i += static_cast<int>(blockDim.x)) {
      const int group = (i >> pairs_log2) / rows, row = (i >> pairs_log2) - group * rows;
      store_merged(i, merge_group_of(first_group + group, row, i & (pairs - 1)));
    }
    __syncthreads();
    if (num_groups > kGroupsOfThread)
      return append_all(tid, rows, pairs_log2, first_group, num_groups);
#pragma unroll 1
    for (int i = tid; i < rows << pairs_log2; i += static_cast<int>(blockDim.x)) {
      const Partial<2> sum = append_groups(first_group, num_groups, p_.scale_log2, [&](int group) {
        return load_merged(i + (group * rows << pairs_log2));
      });
      decode::write_row<Element>(p_, item_, i >> pairs_log2,
                                 2 * ((rank_ << pairs_log2) + (i & (pairs - 1))), sum);
    }
  }
  // The same with a warp for each row, 16 groups at a time.
  __device__ __forceinline__ void append_all(int tid, int rows, int pairs_log2, int first_group,
                                             int num_groups) const {
    const int lane = tid & 31, pairs = 1 << pairs_log2, warps_of_row = (pairs + 31) / 32;
    const u32 smem_pairs = smem_.q() + static_cast<u32>(8 * kPartsAtOnce * (tid >> 5));
#pragma unroll 1
    for (int i = tid >> 5; i < rows * warps_of_row; i += static_cast<int>(blockDim.x) >> 5) {
      const int row = i / warps_of_row, pair = (i - row * warps_of_row) * 32 + lane;
      Partial<2> all;
#pragma unroll 1
      for (int first = 0; first < num_groups;) {
        const int count =
            min(kChunkGroups - (first_group + first) % kChunkGroups, num_groups - first);
        const auto at = [&](int group, int column) {
          return ((first + group) * rows + row << pairs_log2) + column;
        };
        float2 row_sums = {-HUGE_VALF, 0.0f};
        if (lane < count) row_sums = load_shared2(smem_.base + static_cast<u32>(16 * at(lane, 0)));
        float o[kPartsAtOnce][2] = {};
#pragma unroll
        for (int j = 0; j < kPartsAtOnce; ++j) {
          if (j >= count || pair >= pairs) continue;
          const float2 x = load_shared2(smem_.base + static_cast<u32>(16 * at(j, pair) + 8));
          o[j][0] = x.x, o[j][1] = x.y;
        }
        Partial<2> chunk;
        append_parts(chunk, row_sums, o, p_.scale_log2, smem_pairs, lane);
        append(all, chunk, p_.scale_log2);
        first += count;
      }
      if (pair < pairs)
        decode::write_row<Element>(p_, item_, row, 2 * ((rank_ << pairs_log2) + pair), all);
    }
  }
  __device__ __forceinline__ Partial<2> merge_group_of(int group, int row, int pair) const {
    const int first = group * kGroupSplits - splits_.first;
    const u32 from = partial(first, row), step = static_cast<u32>(item_.rows(p_) * partial_pitch());
    const auto read = [&](int i, int offset, float2 absent) {
      const bool exists = first + i >= 0 && first + i < splits_.count;
      return exists ? load_shared2(from + step * static_cast<u32>(i) + static_cast<u32>(offset))
                    : absent;
    };
    return merge_group(
        p_.scale_log2,
        [&](int i) {
          return read(i, partial_pitch() - 8, {-HUGE_VALF, 0.0f});
        },
        [&](int i) {
          return read(i, 8 * pair, {0.0f, 0.0f});
        });
  }
  // Merged groups take the place of the ring, whose blocks have been read.
  __device__ __forceinline__ void store_merged(int i, const Partial<2>& x) const {
    store_chunk(smem_.base + static_cast<u32>(16 * i),
                {{__float_as_uint(x.row_max), __float_as_uint(x.sum), __float_as_uint(x.o[0]),
                  __float_as_uint(x.o[1])}});
  }
  __device__ __forceinline__ Partial<2> load_merged(int i) const {
    const Chunk c = load_chunk(smem_.base + static_cast<u32>(16 * i));
    return {__uint_as_float(c.words[0]),
            __uint_as_float(c.words[1]),
            {__uint_as_float(c.words[2]), __uint_as_float(c.words[3])}};
  }

  const Params& p_;
  const ClusterSmem<kDim, kRows> smem_;
  Item item_{};
  SplitRange splits_{};
  int rank_ = 0, size_log2_ = 0;
};

template <class V>
__global__ void __launch_bounds__(kMaxClusterThreads, 1)
    decode_cluster(const __grid_constant__ Params params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char smem_raw[];
  ClusterCta<V> cta(params, (smem_address(smem_raw) + 1023) & ~1023u);
  cta.init_barriers();
  __syncthreads();
  griddep_launch_dependents();
  if constexpr (!V::kIsEarly) griddep_wait();
  cta.run();
#endif
}

}  // namespace headrace::cuda::sm90::decode
