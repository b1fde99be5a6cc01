// Blocks of keys that a warp copies for itself, and the query rows of a CTA: where TMA's latency
// would be seen.
#pragma once

#include "backends/cuda/device/cp_async.cuh"
#include "backends/cuda/sm90/decode/block.cuh"
#include "backends/cuda/sm90/decode/produce.cuh"

namespace headrace::cuda::sm90::decode {

// Copies blocks of 16 keys with cp.async, as TMA would leave them: see BlockReader.
template <class V>
class BlockCopier {
  static constexpr int kDim = V::kDim;
  static constexpr int kChunks = kDim / 8;  // of 16 bytes, of a key
  static constexpr int kKeysOfCopy = 32 / kChunks, kCopies = kBlockKeys / kKeysOfCopy;

 public:
  __device__ BlockCopier(const Params& p, int lane, u64 policy)
      : p_(p), policy_(policy), place_(p), lane_(lane) {
    const int key = lane / kChunks, chunk = lane % kChunks;
    to_ = static_cast<u32>((chunk / 8 * kBlockKeys + key) * kSwizzleRowBytes);
    swizzle_ = static_cast<u32>((chunk % 8) ^ key) << 4;
  }

  __device__ __forceinline__ bool has_small_pages() const {
    return p_.pages.block_table != nullptr && p_.pages.page_size % kBlockKeys != 0;
  }
  __device__ __forceinline__ int page(const Item& item, int key) const {
    return place_.page(item, key);
  }
  __device__ __forceinline__ void check(const Item& item, int page) { place_.check(item, page); }
  __device__ void report() const { place_.report(); }
  // Until the block's keys are complete, where the kernel before may still append the newest: of
  // the call's queries, as sequences may be the tokens of one that are computed each alone.
  __device__ __forceinline__ void wait_for_keys(const Item& item, int key) const {
    if (V::kIsEarly && key + kBlockKeys > item.seqlen_k - static_cast<int>(p_.sizes.total_q))
      griddep_wait();
  }

  // Keys behind the last that a row sees, columns and pages that do not exist become zeros.
  // `page`: of the block, unless pages are small.
  __device__ __forceinline__ void copy_block(bool is_v, const Item& item, int key, int page,
                                             u32 to) {
    if (has_small_pages())
      copy_small_pages(is_v, item, key, to);
    else
      copy_page(is_v, item, key, page, to);
  }

 private:
  __device__ __forceinline__ void copy_page(bool is_v, const Item& item, int key, int page,
                                            u32 to) const {
    const int lane_key = key + lane_ / kChunks;
    const char* from = row(is_v, item, page, place_.slot(item, key) + lane_ / kChunks);
    const std::int64_t step = kKeysOfCopy * stride_seq(is_v) * 2;
    const int end = exists(page) && has_column(is_v) ? item.end_key : 0;
#pragma unroll
    for (int i = 0; i < kCopies; ++i, from += step)
      copy(to, i, from, lane_key + i * kKeysOfCopy < end);
  }
  // A block may span several pages.
  __device__ __forceinline__ void copy_small_pages(bool is_v, const Item& item, int first_key,
                                                   u32 to) {
#pragma unroll 1
    for (int i = 0; i < kCopies; ++i) {
      const int key = first_key + i * kKeysOfCopy + lane_ / kChunks;
      bool is_read = key < item.end_key;
      const int page = is_read ? place_.page(item, key) : 0;
      if (is_read) place_.check(item, page);
      is_read = is_read && exists(page) && has_column(is_v);
      copy(to, i, row(is_v, item, is_read ? page : 0, place_.slot(item, key)), is_read);
    }
  }
  __device__ __forceinline__ void copy(u32 to, int i, const char* from, bool is_read) const {
    const u32 row = to_ + static_cast<u32>(i * kKeysOfCopy * kSwizzleRowBytes);
    const u32 chunk = swizzle_ ^ (static_cast<u32>(i * kKeysOfCopy % 8) << 4);
    cp_async_cg_16(to + row + chunk, from, is_read ? 16 : 0, policy_);
  }
  __device__ __forceinline__ bool exists(int page) const {
    return p_.pages.block_table == nullptr ||
           static_cast<unsigned>(page) < static_cast<unsigned>(p_.pages.num_pages);
  }
  __device__ __forceinline__ bool has_column(bool is_v) const {
    return lane_ % kChunks * 8 < (is_v ? p_.sizes.head_dim_v : p_.sizes.head_dim);
  }
  __device__ __forceinline__ std::int64_t stride_seq(bool is_v) const {
    return is_v ? p_.v.stride_seq : p_.k.stride_seq;
  }
  // The lane's chunk.
  __device__ __forceinline__ const char* row(bool is_v, const Item& item, int page,
                                             int slot) const {
    const void* data = is_v ? p_.v.data : p_.k.data;
    const std::int64_t head = is_v ? p_.v.stride_head : p_.k.stride_head;
    const std::int64_t batch = is_v ? p_.v.stride_batch : p_.k.stride_batch;
    return static_cast<const char*>(data) +
           2 * (page * batch + slot * stride_seq(is_v) + item.kv_head * head + lane_ % kChunks * 8);
  }

  const Params& p_;
  const u64 policy_;  // of L2
  KeyPlace place_;
  const int lane_;
  u32 to_, swizzle_;  // of the lane's chunk in a block
};

// The ring of a warp that copies its own blocks, those that a row sees, with cp.async: little work
// waits for latency, of which TMA has more. K and V of a block follow each other; when a block has
// been read, the one a ring later takes its place. Blocks: which ones, in order: has_block(),
// item(), key(), page() of the next, advance().
template <class V, class Blocks>
class SelfLoadingRing {
  static constexpr int kBlockBytes = kBlockKeys * V::kDim * 2;

 public:
  // `base`: of 2^num_stages_log2 blocks, 4 or 8.
  __device__ SelfLoadingRing(BlockCopier<V>& copier, Blocks blocks, u32 base, int num_stages_log2)
      : copier_(copier), blocks_(blocks), base_(base), num_stages_log2_(num_stages_log2) {
#pragma unroll 1
    for (int i = 0; i < 1 << num_stages_log2; ++i)
      load_next(base + static_cast<u32>(i * kBlockBytes), i % 2 != 0);
  }

  // The next block, when it has arrived.
  __device__ __forceinline__ u32 wait() const {
    if (num_stages_log2_ == 3)
      cp_async_wait_group<7>();
    else
      cp_async_wait_group<3>();
    __syncwarp();
    return block();
  }
  // `loaded` depends on all loads of the block.
  template <bool kIsV>
  __device__ __forceinline__ void release(u32 loaded) {
    const u32 to = released_behind(loaded, block());
    __syncwarp();
    load_next(to, kIsV);
    stage_ = (stage_ + 1) & ((1 << num_stages_log2_) - 1);
  }

 private:
  __device__ u32 block() const { return base_ + static_cast<u32>(stage_ * kBlockBytes); }
  // A group of copies for each call, so that wait() can count them. Rings are even: K takes the
  // place of K.
  __device__ __forceinline__ void load_next(u32 to, bool is_v) {
    if (blocks_.has_block()) {
      copier_.wait_for_keys(blocks_.item(), blocks_.key());
      copier_.copy_block(is_v, blocks_.item(), blocks_.key(), blocks_.page(), to);
      if (is_v) blocks_.advance(copier_);
    }
    cp_async_commit_group();
  }

  BlockCopier<V>& copier_;
  Blocks blocks_;
  const u32 base_;
  const int num_stages_log2_;
  int stage_ = 0;  // the next to read
};

// Chunk i of the query rows. Rows and columns that do not exist count as zeros.
template <class V>
__device__ __forceinline__ Chunk read_query(const Params& p, const Item& item, int i) {
  constexpr int kRowChunks = V::kDim / 8;
  const int row = i / kRowChunks, column = i % kRowChunks * 8;
  if (row >= item.rows(p) || column >= p.sizes.head_dim) return {};
  const int q_idx = p.by_group.divide(row);
  const auto* from = static_cast<const typename V::Element::Stored*>(p.q.data) +
                     row_offset(p.q, item.batch_idx, item.row_q + q_idx,
                                item.kv_head * p.group + row - q_idx * p.group);
  return *reinterpret_cast<const Chunk*>(from + column);
}

// Chunks of the query rows for a thread of a CTA that has at least kMinThreads.
template <class V, int kMinThreads>
inline constexpr int kQueryChunks = (V::kRows * V::kDim / 8 + kMinThreads - 1) / kMinThreads;
template <class V, int kChunks>
__device__ __forceinline__ void read_queries(const Params& p, const Item& item, int tid,
                                             Chunk (&chunks)[kChunks]) {
#pragma unroll
  for (int i = 0; i < kChunks; ++i)
    if (const int at = i * static_cast<int>(blockDim.x) + tid; at < V::kRows * V::kDim / 8)
      chunks[i] = read_query<V>(p, item, at);
}
// Rows are `pitch` bytes apart. The thread's number is read again: the compiler kept a predicate of
// read_queries() while the first blocks were copied, and their copies took 0.4 us longer.
template <class V, int kChunks>
__device__ __forceinline__ void store_queries(const Chunk (&chunks)[kChunks], u32 to, int pitch) {
  const int tid = static_cast<int>(threadIdx.x);
  constexpr int kRowChunks = V::kDim / 8;
#pragma unroll
  for (int i = 0; i < kChunks; ++i)
    if (const int at = i * static_cast<int>(blockDim.x) + tid; at < V::kRows * kRowChunks)
      store_chunk(to + static_cast<u32>(at / kRowChunks * pitch + at % kRowChunks * 16), chunks[i]);
}

}  // namespace headrace::cuda::sm90::decode
