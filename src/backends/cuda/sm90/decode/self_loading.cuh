// Blocks of keys that a warp copies for itself, and the query rows of a CTA: where TMA's latency
// would be seen.
#pragma once

#include "backends/cuda/device/cp_async.cuh"
#include "backends/cuda/sm90/decode/block.cuh"
#include "backends/cuda/sm90/decode/produce.cuh"

namespace headrace::cuda::sm90::decode {

// Splits of a warp: split i begins at key first_key + i * step.
struct WarpSplits {
  int first_key, step, count;
  __device__ int key(int block) const {
    return first_key + block / kSplitBlocks * step + block % kSplitBlocks * kBlockKeys;
  }
};

// The ring of a warp that copies its own blocks, those that a row sees, with cp.async: little work
// waits for latency, of which TMA has more. K and V of a block follow each other; when a block has
// been read, the one a ring later takes its place. A block lies as TMA would leave it: see
// BlockReader.
template <int kDim>
class SelfLoadingRing {
  static constexpr int kBlockBytes = kBlockKeys * kDim * 2;
  static constexpr int kChunks = kDim / 8;  // of 16 bytes, of a key
  static constexpr int kKeysOfCopy = 32 / kChunks, kCopies = kBlockKeys / kKeysOfCopy;

 public:
  // `base`: of 2^num_stages_log2 blocks, 4 or 8.
  __device__ SelfLoadingRing(const Params& p, const Item& item, const WarpSplits& splits, u32 base,
                             int num_stages_log2, int lane)
      : p_(p),
        place_(p),
        item_(item),
        splits_(splits),
        base_(base),
        num_stages_log2_(num_stages_log2),
        lane_(lane) {
    const int key = lane / kChunks, chunk = lane % kChunks;
    to_ = static_cast<u32>((chunk / 8 * kBlockKeys + key) * kSwizzleRowBytes);
    swizzle_ = static_cast<u32>((chunk % 8) ^ key) << 4;
    end_ = splits.count * kSplitBlocks;
    while (next_ < end_ && !item.sees_block(splits.key(next_))) ++next_;
    while (end_ > next_ && !item.sees_block(splits.key(end_ - 1))) --end_;
    read_pages(next_ - next_ % 32);
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
  __device__ void report() const { place_.report(); }

 private:
  __device__ u32 block() const { return base_ + static_cast<u32>(stage_ * kBlockBytes); }
  __device__ bool has_small_pages() const {
    return p_.pages.block_table != nullptr && p_.pages.page_size % kBlockKeys != 0;
  }
  // Lane i has the page of block first + i; entries for blocks that no row sees are not read.
  __device__ __forceinline__ void read_pages(int first) {
    const int block = first + lane_;
    if (block >= next_ && block < end_ && !has_small_pages())
      page_ = place_.page(item_, splits_.key(block));
  }
  // A group of copies for each call, so that wait() can count them. Rings are even: K takes the
  // place of K.
  __device__ __forceinline__ void load_next(u32 to, bool is_v) {
    if (next_ < end_) {
      const int key = splits_.key(next_), page = __shfl_sync(0xffffffffu, page_, next_ % 32);
      if (has_small_pages())
        load_small_pages(is_v, key, to);
      else
        load(is_v, key, page, to);
      if (is_v && ++next_ % 32 == 0) read_pages(next_);
    }
    cp_async_commit_group();
  }
  // Keys behind the last that a row sees, columns and pages that do not exist become zeros.
  __device__ __forceinline__ void load(bool is_v, int key, int page, u32 to) const {
    const int lane_key = key + lane_ / kChunks;
    const char* from = row(is_v, page, place_.slot(item_, key) + lane_ / kChunks);
    const std::int64_t step = kKeysOfCopy * stride_seq(is_v) * 2;
    const int end = exists(page) && has_column(is_v) ? item_.end_key : 0;
#pragma unroll
    for (int i = 0; i < kCopies; ++i, from += step)
      copy(to, i, from, lane_key + i * kKeysOfCopy < end);
  }
  // A block may span several pages.
  __device__ __forceinline__ void load_small_pages(bool is_v, int first_key, u32 to) {
#pragma unroll 1
    for (int i = 0; i < kCopies; ++i) {
      const int key = first_key + i * kKeysOfCopy + lane_ / kChunks;
      bool is_read = key < item_.end_key;
      const int page = is_read ? place_.page(item_, key) : 0;
      is_read = is_read && exists(page) && has_column(is_v);
      copy(to, i, row(is_v, is_read ? page : 0, place_.slot(item_, key)), is_read);
    }
  }
  __device__ __forceinline__ void copy(u32 to, int i, const char* from, bool is_read) const {
    const u32 row = to_ + static_cast<u32>(i * kKeysOfCopy * kSwizzleRowBytes);
    const u32 chunk = swizzle_ ^ (static_cast<u32>(i * kKeysOfCopy % 8) << 4);
    cp_async_cg_16(to + row + chunk, from, is_read ? 16 : 0);
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
  __device__ __forceinline__ const char* row(bool is_v, int page, int slot) const {
    const void* data = is_v ? p_.v.data : p_.k.data;
    const std::int64_t head = is_v ? p_.v.stride_head : p_.k.stride_head;
    const std::int64_t batch = is_v ? p_.v.stride_batch : p_.k.stride_batch;
    return static_cast<const char*>(data) + 2 * (page * batch + slot * stride_seq(is_v) +
                                                 item_.kv_head * head + lane_ % kChunks * 8);
  }

  const Params& p_;
  KeyPlace place_;
  const Item& item_;
  const WarpSplits splits_;
  const u32 base_;
  const int num_stages_log2_, lane_;
  u32 to_, swizzle_;        // of the lane's chunk in a block
  int next_ = 0, end_ = 0;  // blocks: the next to load
  int page_ = 0;
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
