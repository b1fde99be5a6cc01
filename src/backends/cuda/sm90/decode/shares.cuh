// Decode of a medium amount of work: all groups of the call stand in a line, sequence by sequence
// and head by head, and each CTA has an equal share of it. Nothing is announced and nothing
// counted. A share writes the rows of heads that it has alone; a second kernel, whose launch is
// hidden, appends the groups of the others.
#pragma once

#include "backends/cuda/sm90/decode/merge.cuh"
#include "backends/cuda/sm90/decode/self_loading.cuh"
#include "backends/cuda/sm90/decode/share_line.h"

namespace headrace::cuda::sm90::decode {

// A group of the share, and those behind it. Segments lie in shared memory: consecutive groups of a
// (sequence, KV head), which has place head % kMaxSegments.
class ShareCursor {
 public:
  __device__ ShareCursor(u32 segments, int first_head, int end_head)
      : segments_(segments), next_(first_head), end_(end_head) {
    enter_segment();
  }
  __device__ __forceinline__ bool exists() const { return next_ <= end_; }
  __device__ __forceinline__ bool begins_segment() const { return group_ == item_.first; }
  __device__ __forceinline__ bool ends_segment() const { return group_ + 1 == item_.end; }
  // Whether the segment is the whole head.
  __device__ __forceinline__ bool has_head() const {
    return item_.end - item_.first == item_.num_groups;
  }
  __device__ __forceinline__ const Item& item() const { return item_; }
  __device__ __forceinline__ int group() const { return group_; }
  __device__ __forceinline__ void advance() {
    if (++group_ == item_.end) enter_segment();
  }

 private:
  __device__ __forceinline__ void enter_segment() {
    if (next_++ >= end_) return;
    item_ = load_item(segments_ + static_cast<u32>((next_ - 1) % kMaxSegments * kItemBytes));
    group_ = item_.first;
  }

  Item item_;
  int group_ = 0;
  u32 segments_;
  int next_, end_;  // heads
};

// The share of a CTA, in shared memory.
template <int kDim, int kRows>
class Share {
  static constexpr ShareSmemPlan kPlan = share_smem_plan(kDim, kRows);

 public:
  // By all threads: thread b has sequence b, so that one load and one scan know the line.
  __device__ Share(const Params& p, u32 base) : p_(p), base_(base) {
    const int tid = static_cast<int>(threadIdx.x);
    SequenceRows rows{};
    SequenceKeys keys{};
    int cost = 0;
    bool stay = false;  // K and V in L2
    if (tid < p.batch) {
      rows = rows_of_item(p, tid, blockIdx.x == 0);
      keys = item_of_head(p, tid, 0, rows).keys();
      cost = share_cost(keys) * p.num_kv_heads;
      stay = first_pages(p, tid, keys).are_same();
    }
    int begin, total;
    sum_costs(cost, begin, total);
    const int num_shares = static_cast<int>(gridDim.x);
    const int share =
        share_size(total, num_shares, p.by_shares.divide(total + num_shares - 1),
                   p.by_share_groups.divide(total + kWholeGroupCost * num_shares - 1));
    const int first = share * static_cast<int>(blockIdx.x), last = min(first + share, total);
    if (first < begin + cost && last > begin)
      store_segments(tid, rows, keys, first - begin, last - begin);
    if (tid == 0 && first >= total) {
      store_shared(word(kFirstHead), 0);
      store_shared(word(kEndHead), 0);
      store_cut_head(-1);
    }
    if (tid == 0) stay |= fits_l2<kDim>(total / kWholeGroupCost);  // others may not know the total
    policy_ = policy_of_keys(__syncthreads_or(stay) != 0);
    first_head_ = static_cast<int>(load_shared(word(kFirstHead)));
    end_head_ = static_cast<int>(load_shared(word(kEndHead)));
  }

  __device__ ShareCursor begin() const { return {segments(), first_head_, end_head_}; }
  __device__ u64 policy() const { return policy_; }

 private:
  // Words behind the segments: the costs of each warp's sequences are the first.
  static constexpr int kFirstHead = kShareWarps, kEndHead = kShareWarps + 1;
  __device__ u32 segments() const { return base_ + static_cast<u32>(kPlan.segments); }
  __device__ u32 word(int i) const { return base_ + static_cast<u32>(kPlan.words + 4 * i); }

  // Where the thread's sequence begins in the line. Threads that have none do not need to know.
  __device__ void sum_costs(int cost, int& begin, int& total) const {
    const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
    const int end = warp_inclusive_sum(cost, lane);
    begin = end - cost;
    total = __shfl_sync(0xffffffffu, end, 31);
    if (p_.batch <= 32) return;
    if (lane == 31) store_shared(word(warp), static_cast<u32>(end));
    __syncthreads();
    total = 0;
#pragma unroll
    for (int i = 0; i < kShareWarps; ++i) {
      const int sum = static_cast<int>(load_shared(word(i)));
      begin += i < warp ? sum : 0;
      total += sum;
    }
  }

  // Those of a sequence, in whose line the share is [first, last).
  __device__ void store_segments(int batch_idx, const SequenceRows& rows, const SequenceKeys& keys,
                                 int first, int last) const {
    const int head_0 = batch_idx * p_.num_kv_heads;
    const GroupRange all = groups_of(keys);
    const SharePart part = SharePart::of(keys, p_.num_kv_heads, first, last);
#pragma unroll 1
    for (int head = part.from.head; head < part.end_head; ++head) {
      Item item = item_of_head(batch_idx, head, rows, keys);
      item.first_group = all.first;
      item.num_groups = all.count;
      const GroupRange groups = part.groups(head, all);
      item.first = groups.first;
      item.end = groups.first + groups.count;
      store_item(segments() + static_cast<u32>((head_0 + head) % kMaxSegments * kItemBytes), item);
    }
    if (last <= share_cost(keys) * p_.num_kv_heads)
      store_shared(word(kEndHead), static_cast<u32>(head_0 + part.end_head));
    if (first < 0) return;
    store_shared(word(kFirstHead), static_cast<u32>(head_0 + part.from.head));
    store_cut_head(part.ends_cut_head() ? head_0 + part.from.head : -1);
  }
  // The head that ends in this share and began in one before, or -1.
  __device__ void store_cut_head(int head_idx) const {
    if (p_.cut_heads != nullptr) p_.cut_heads[blockIdx.x] = head_idx;
  }

  const Params& p_;
  const u32 base_;
  int first_head_, end_head_;
  u64 policy_;
};

// The blocks of a warp's splits of a share that a row sees. Pages are read a group ahead, and not
// compared before: a warp would wait for the memory.
template <class V>
class ShareBlocks {
 public:
  __device__ ShareBlocks(BlockCopier<V>& copier, const ShareCursor& first, int warp, int lane)
      : ahead_(first), split_(warp * kSplitKeys), lane_(lane) {
    read_page(copier);
    next_split(copier);
  }
  __device__ __forceinline__ bool has_block() const { return key_ < end_key_; }
  __device__ __forceinline__ const Item& item() const { return item_; }
  __device__ __forceinline__ int key() const { return key_; }
  __device__ __forceinline__ int page() const {
    return __shfl_sync(0xffffffffu, page_, key_ / kBlockKeys % kSplitBlocks);
  }
  __device__ __forceinline__ void advance(BlockCopier<V>& copier) {
    key_ += kBlockKeys;
    if (key_ >= end_key_) next_split(copier);
  }

 private:
  __device__ __forceinline__ int first_key_ahead() const {
    return ahead_.group() * kGroupKeys + split_;
  }
  // Lane i has the page of block i of the split.
  __device__ __forceinline__ void read_page(BlockCopier<V>& copier) {
    const int key = first_key_ahead() + lane_ * kBlockKeys;
    has_page_ahead_ = ahead_.exists() && lane_ < kSplitBlocks && ahead_.item().sees_block(key) &&
                      !copier.has_small_pages();
    if (has_page_ahead_) page_ahead_ = copier.page(ahead_.item(), key);
  }
  __device__ __forceinline__ void next_split(BlockCopier<V>& copier) {
    key_ = end_key_ = 0;
#pragma unroll 1
    while (ahead_.exists() && key_ >= end_key_) {
      const int first = first_key_ahead();
      item_ = ahead_.item();
      page_ = page_ahead_;
      if (has_page_ahead_) copier.check(item_, page_);
      key_ = max(first, item_.first_key / kBlockKeys * kBlockKeys);
      end_key_ = min(first + kSplitKeys, item_.end_key);
      ahead_.advance();
      read_page(copier);
    }
  }

  ShareCursor ahead_;
  Item item_;
  const int split_, lane_;
  int key_ = 0, end_key_ = 0;  // of the item's split
  int page_ = 0, page_ahead_ = 0;
  bool has_page_ahead_ = false;  // of the lane
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
        lane_(static_cast<int>(threadIdx.x) & 31) {}

  __device__ void run() const {
    const Share<kDim, kRows> share(p_, base_);
    ShareCursor at = share.begin();
    if (!at.exists()) return;
    // Queries are on their way while the first blocks are asked for, if they are complete.
    Chunk chunks[kQueryChunks<V, kShareThreads>];
    if constexpr (!V::kIsEarly) read_queries<V>(p_, at.item(), 32 * warp_ + lane_, chunks);
    const int first_block = warp_ << kPlan.stages_log2;
    BlockCopier<V> copier(p_, lane_, share.policy());
    SelfLoadingRing<V, ShareBlocks<V>> ring(copier, {copier, at, warp_, lane_},
                                            base_ + static_cast<u32>(first_block * kPlan.block),
                                            kPlan.stages_log2);
    if constexpr (V::kIsEarly) {
      griddep_wait();
      read_queries<V>(p_, at.item(), 32 * warp_ + lane_, chunks);
    }
    store_queries<V>(chunks, base_ + kPlan.q, kPlan.q_pitch);
    __syncthreads();
    const BlockSums<Element, kRowBlocks> blocks(p_, lane_);
    QueryFragments<kDim, kRows> queries(lane_);
    queries.load(base_ + kPlan.q);
#pragma unroll 1
    while (at.exists()) {
      ShareCursor next = at;
      next.advance();
      // The next kernel's CTAs begin when the first blocks have been asked for: before, they delay
      // calls whose lengths are on the device by 3 us.
      if (!next.exists()) griddep_launch_dependents();
      const bool changes_queries = next.exists() && next.begins_segment();
      if (changes_queries) read_queries<V>(p_, next.item(), 32 * warp_ + lane_, chunks);
      Sums sums;
      sums.clear();
      sum_split(at.item(), blocks, queries, ring, at.group() * kGroupKeys + warp_ * kSplitKeys,
                sums);
      sums.normalise();
      __syncthreads();  // the group before has been merged, and the queries have been read
      store(sums);
      if (changes_queries) store_queries<V>(chunks, base_ + kPlan.q, kPlan.q_pitch);
      __syncthreads();
      merge(at);
      if (changes_queries) queries.load(base_ + kPlan.q);
      at = next;
    }
    copier.report();
  }

 private:
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
  // A thread merges the splits of a group for two columns of a row. Groups of a head that other
  // shares have a part of are partial results.
  __device__ __forceinline__ void merge(const ShareCursor& at) const {
    constexpr int kPairs = kDim / 2;
    const Item& item = at.item();
    const bool writes_rows = p_.cut_heads != nullptr && at.has_head();
    const int slot = item.head_idx(p_) * p_.work.share_slots;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < item.rows(p_) * kPairs; i += kShareThreads) {
      const int row = i / kPairs, column = i % kPairs * 2;
      const Partial<2> group = merge_group(
          p_.scale_log2, [&](int split) { return load_shared2(sums_of(split, row)); },
          [&](int split) { return load_shared2(o_of(split, row) + static_cast<u32>(4 * column)); });
      if (writes_rows)
        append_to_row(at, group, slot, row, column);
      else
        store_partial<kDim>(p_, slot + at.group() - item.first_group, row, column, group);
    }
  }
  // The sums of the chunk are in shared memory, those of the chunks before it in the workspace.
  __device__ __forceinline__ void append_to_row(const ShareCursor& at, const Partial<2>& group,
                                                int slot, int row, int column) const {
    const Item& item = at.item();
    const u32 running =
        base_ + static_cast<u32>(kPlan.running + (row * kDim / 2 + column / 2) * 16);
    const bool begins_chunk = at.begins_segment() || at.group() % kChunkGroups == 0;
    Partial<2> chunk, all;
    if (!begins_chunk) chunk = load_running(running);
    append(chunk, group, p_.scale_log2);
    if (!at.ends_segment() && at.group() % kChunkGroups != kChunkGroups - 1)
      return store_running(running, chunk);
    if (at.group() / kChunkGroups > item.first_group / kChunkGroups)
      all = load_partial<kDim, 2>(p_, slot, row, column);
    append(all, chunk, p_.scale_log2);
    if (at.ends_segment())
      write_row<Element>(p_, item, row, column, all);
    else
      store_partial<kDim>(p_, slot, row, column, all);
  }
  __device__ static Partial<2> load_running(u32 from) {
    const float2 sums = load_shared2(from), o = load_shared2(from + 8);
    return {sums.x, sums.y, {o.x, o.y}};
  }
  __device__ static void store_running(u32 to, const Partial<2>& x) {
    store_chunk(to, {{__float_as_uint(x.row_max), __float_as_uint(x.sum), __float_as_uint(x.o[0]),
                      __float_as_uint(x.o[1])}});
  }

  const Params& p_;
  const u32 base_;
  const int warp_, lane_;
};

template <class V>
__global__ void __launch_bounds__(kShareThreads, 1)
    decode_shares(const __grid_constant__ Params params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char smem_raw[];
  if constexpr (!V::kIsEarly) griddep_wait();
  ShareCta<V>(params, (smem_address(smem_raw) + 1023) & ~1023u).run();
#endif
}

// A CTA has a row of a (sequence, KV head), or of the head that ends in a share and began before; a
// warp has a chunk of it, and 64 columns.
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
  const int idx = static_cast<int>(blockIdx.x) / p.rows;
  const int row = static_cast<int>(blockIdx.x) - idx * p.rows;
  // Lengths are read before the wait: what writes them is complete, as decode_shares, or the append
  // that it begins beside, has waited for it. Behind its keys they would come from memory.
  Item item{};
  if (p.cut_heads == nullptr) item = item_of_head(p, idx, false);
  griddep_launch_dependents();
  griddep_wait();
  if (p.cut_heads != nullptr) {
    const int head_idx = __ldcg(p.cut_heads + idx);
    if (head_idx < 0) return;
    item = item_of_head(p, head_idx, false);
  }
  if (row >= item.rows(p)) return;
  const int head_idx = item.head_idx(p);
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
