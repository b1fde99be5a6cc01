// Shared prefixes: groups of keys that neighbouring sequences have in the same pages are read once
// for the rows of all of them. Three kernels before the persistent grid, which then begins behind
// the prefix:
//   find_prefixes   compares block tables: which sequences share how many groups
//   attend_prefix   groups of a prefix for up to 128 rows, as partial results
//   fold_prefix     appends them to the two states that a head's other groups continue
// Rows are summed as without: the same blocks, splits, groups and chunks in the same order.
#pragma once

#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/decode/consume.cuh"
#include "backends/cuda/sm90/decode/find_prefixes.cuh"
#include "backends/cuda/sm90/decode/launch.h"

namespace headrace::cuda::sm90::decode {

inline constexpr int kPrefixProducers = 4;  // warps
inline constexpr int kPrefixThreads = 32 * (kPrefixWarps + kPrefixProducers);
inline constexpr int kFoldThreads = 256;

// ---- attend_prefix

// A group of keys, a KV head, the rows of a slice.
struct PrefixItem {
  PrefixSlice slice;
  int kv_head, group;
};
// By one warp. The heads of the same keys are consecutive items.
__device__ __forceinline__ PrefixItem find_prefix_item(const Params& p, int num_slices, int id,
                                                       int lane) {
  const int rest = p.by_kv_heads.divide(id);
  int slice = -1;
#pragma unroll 1
  for (int first = 0; first < num_slices; first += 32) {
    const bool is_before = first + lane < num_slices && p.slices[first + lane].items_before <= rest;
    slice += __popc(__ballot_sync(0xffffffffu, is_before));
  }
  const PrefixSlice found = p.slices[slice];
  return {found, id - rest * p.num_kv_heads, rest - found.items_before};
}

template <int kDim>
struct PrefixSmem {
  static constexpr PrefixSmemPlan kPlan = prefix_smem_plan(kDim);
  u32 base;  // a multiple of 1024

  __device__ u32 block(int stage) const { return base + static_cast<u32>(stage * kPlan.block); }
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

// Loads all K of a group, then all V, block after block, by one lane of each producer warp. Blocks
// over pages of one key are 16 boxes, which one warp does not issue fast enough. A warp is less
// than a ring of blocks ahead of one that must load before it, so the parity of a barrier is that
// of the phase before.
template <class V>
class PrefixProducer {
  static constexpr int kDim = V::kDim, kStages = prefix_smem_plan(kDim).stages;
  static_assert(kPrefixProducers < kStages);

 public:
  __device__ PrefixProducer(const Params& p, const Maps& maps, PrefixSmem<kDim> smem, int producer)
      : used_keys_(p.used_keys),
        smem_(smem),
        producer_(producer),
        stage_(producer),
        blocks_(p, maps) {}

  // By one lane.
  __device__ void load(const PrefixItem& x) {
    constexpr int kOfWarp = kGroupBlocks / kPrefixProducers;
    constexpr int kStep = kPrefixProducers * kBlockKeys;
    const Item item{.batch_idx = x.slice.first_sequence,
                    .kv_head = x.kv_head,
                    .row_k = first_entry(used_keys_, x.slice.first_sequence),
                    .end_key = (x.group + 1) * kGroupKeys};
    const int first_key = x.group * kGroupKeys + producer_ * kBlockKeys;
    int next = page_of(item, first_key);
#pragma unroll 1
    for (int i = 0; i < 2 * kOfWarp; ++i) {
      const int page = next, key = first_key + i % kOfWarp * kStep;
      next = page_of(item, first_key + (i + 1) % kOfWarp * kStep);
      mbarrier_wait(smem_.empty(stage_), parity_ ^ 1);
      const u32 to = smem_.block(stage_), full = smem_.full(stage_);
      if (blocks_.has_small_boxes())
        blocks_.load_small_boxes(i >= kOfWarp, item, key, to, full);
      else
        blocks_.load(i >= kOfWarp, item, key, page, to, full);
      stage_ += kPrefixProducers;
      if (stage_ >= kStages) {
        stage_ -= kStages;
        parity_ ^= 1;
      }
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
  int stage_;  // of the next block
  u32 parity_ = 0;
  BlockLoader<kDim> blocks_;
};

// A warp has 16 rows. A group weighs its splits by the sums of all of them, so K comes first: P of
// the whole group waits in shared memory for V.
template <class V>
class PrefixConsumer {
  using Element = typename V::Element;
  static constexpr int kDim = V::kDim, kRowBlocks = kMaxRows / 8, kTiles = kDim / 16;
  static constexpr PrefixSmemPlan kPlan = prefix_smem_plan(kDim);

 public:
  __device__ PrefixConsumer(const Params& p, PrefixSmem<kDim> smem, int warp, int lane)
      : p_(p), smem_(smem), warp_(warp), lane_(lane), reader_(lane) {}

  __device__ void attend(const PrefixItem& item) {
    if (warp_ * kMaxRows < item.slice.num_sequences * p_.rows)
      attend_rows(item);
    else
      pass();
  }

 private:
  // A row of the warp: which sequence's, if any.
  struct RowPlace {
    int batch_idx, row;  // of the sequence; batch_idx -1: no row
  };
  __device__ RowPlace place_of(const PrefixItem& item, int row) const {
    const int of_slice = warp_ * kMaxRows + row, sequence = of_slice / p_.rows;
    if (sequence >= item.slice.num_sequences) return {-1, 0};
    return {item.slice.first_sequence + sequence, of_slice - sequence * p_.rows};
  }
  __device__ int slot_of(const PrefixItem& item, int batch_idx) const {
    return p_.prefix.group_slot(batch_idx * p_.num_kv_heads + item.kv_head, item.group);
  }
  // Of the lane's four rows.
  __device__ int row_of(int i) const { return 8 * (i / 2) + 2 * (lane_ & 3) + i % 2; }

  // The warp has no rows, but the others' blocks wait for it.
  __device__ void pass() {
#pragma unroll 1
    for (int i = 0; i < 2 * kGroupBlocks; ++i) {
      mbarrier_wait(smem_.full(ring_.stage), ring_.parity);
      __syncwarp();
      if (lane_ == 0) mbarrier_arrive(smem_.empty(ring_.stage));
      ring_.next();
    }
  }

  __device__ void attend_rows(const PrefixItem& item) {
    load_queries(item);
    sum_probs();
    weigh_splits(item);
    float o[kTiles][kRowBlocks][4] = {};
#pragma unroll 1
    for (int split = 0; split < kGroupSplits; ++split) add_split(split, o);
    store(item, o);
    __syncwarp();  // shared memory of the warp has been read
  }

  // Rows that do not exist count as zeros. A lane finds a row for all.
  __device__ void load_queries(const PrefixItem& item) const {
    using Stored = typename Element::Stored;
    const RowPlace at = place_of(item, lane_ % kMaxRows);
    std::uintptr_t own = 0;
    if (at.batch_idx >= 0) {
      const SequenceRows rows = rows_of(p_, at.batch_idx, false);
      const int q_idx = p_.by_group.divide(at.row);
      const int head = item.kv_head * p_.group + at.row - q_idx * p_.group;
      if (q_idx < rows.seqlen_q)
        own = reinterpret_cast<std::uintptr_t>(
            static_cast<const Stored*>(p_.q.data) +
            row_offset(p_.q, at.batch_idx, rows.row_q + q_idx, head));
    }
    constexpr int kChunks = kDim / 8, kRowsAtOnce = 32 / kChunks;
    const int d = lane_ % kChunks * 8;
#pragma unroll 2
    for (int first = 0; first < kMaxRows; first += kRowsAtOnce) {
      const int row = first + lane_ / kChunks;
      const std::uintptr_t q = __shfl_sync(0xffffffffu, own, row);
      Chunk chunk{};
      if (q != 0 && d < p_.sizes.head_dim)
        chunk = *reinterpret_cast<const Chunk*>(reinterpret_cast<const Stored*>(q) + d);
      store_chunk(smem_.q(warp_) + static_cast<u32>(row * kPlan.q_pitch + 2 * d), chunk);
    }
    __syncwarp();
  }

  // P, the factors by which sums shrink where a maximum grows, and the sums of all splits. The
  // products of a block run beside the exponentials of the one before it: between waits there is no
  // branch.
  __device__ __forceinline__ void sum_probs() {
    QueryFragments<kDim, kMaxRows, true> queries(lane_);
    queries.load(smem_.q(warp_));
    __syncwarp();  // factors replace Q
    grown_blocks_ = 0;
    float s[kRowBlocks][4], next[kRowBlocks][4];
    // Released behind the exponentials of the block before: the arrival waits for the products.
    const auto load_scores = [&](float(&to)[kRowBlocks][4]) {
      mbarrier_wait(smem_.full(ring_.stage), ring_.parity);
      return block_scores<Element>(reader_, queries, smem_.block(ring_.stage), to);
    };
    release(load_scores(s));
#pragma unroll 1
    for (int split = 0; split < kGroupSplits; ++split) {
      SplitSums<Element, kRowBlocks, 0> sums;
      sums.clear();
#pragma unroll 1
      for (int block = split * kSplitBlocks; block < (split + 1) * kSplitBlocks; ++block) {
        const bool has_next = block + 1 < kGroupBlocks;
        const u32 loaded = has_next ? load_scores(next) : 0;
        add_probs(block, s, sums);
        if (has_next) release(loaded);
#pragma unroll
        for (int i = 0; i < 4 * kRowBlocks; ++i) s[i / 4][i % 4] = next[i / 4][i % 4];
      }
      sums.normalise();
      if (lane_ >= 4) continue;
#pragma unroll
      for (int r = 0; r < 2 * kRowBlocks; ++r) {
        const u32 to = smem_.row_sums(warp_, split, row_of(r));
        store_shared(to, __float_as_uint(sums.row_max[r / 2][r % 2]));
        store_shared(to + 4, __float_as_uint(sums.sum[r / 2][r % 2]));
      }
    }
    __syncwarp();
  }
  // Every row sees every key.
  __device__ __forceinline__ void add_probs(int block, float (&s)[kRowBlocks][4],
                                            SplitSums<Element, kRowBlocks, 0>& sums) {
    float top[kRowBlocks][2], factors[2 * kRowBlocks];
    u32 probs[kRowBlocks][2];
    block_max<kRowBlocks>(s, top);
    const bool grows = sums.grows(top);
    sums.rescale(top, p_.scale_log2, factors);
    sums.add_weights(s, p_.scale_log2, probs);
    store_chunk(smem_.probs(warp_, block, lane_),
                {{probs[0][0], probs[0][1], probs[1][0], probs[1][1]}});
    grown_blocks_ |= grows ? 1u << block : 0u;
    if (lane_ >= 4) return;
#pragma unroll
    for (int r = 0; r < 2 * kRowBlocks; ++r)
      store_shared(smem_.factor(warp_, block, row_of(r)), __float_as_uint(factors[r]));
  }

  __device__ __forceinline__ void weigh_splits(const PrefixItem& item) const {
    if (lane_ < kMaxRows) {
      const GroupWeights w = group_weights(
          p_.scale_log2, [&](int i) { return load_shared2(smem_.row_sums(warp_, i, lane_)); });
#pragma unroll
      for (int i = 0; i < kGroupSplits; ++i)
        store_shared(smem_.weight(warp_, i, lane_),
                     __float_as_uint(__fmul_rn(w.of_split[i], w.factor)));
      const RowPlace at = place_of(item, lane_);
      if (at.batch_idx >= 0)
        store_row_sums(partial_row<kDim>(p_, slot_of(item, at.batch_idx), at.row).sums, w.row_max,
                       w.sum);
    }
    __syncwarp();
  }

  // The mean of the values of a split, times its weight.
  __device__ __forceinline__ void add_split(int split, float (&o)[kTiles][kRowBlocks][4]) {
    SplitSums<Element, kRowBlocks, kTiles> sums;
    sums.clear();
#pragma unroll 1
    for (int i = 0; i < kSplitBlocks; ++i) {
      const int block = split * kSplitBlocks + i;
      const Chunk c = load_chunk(smem_.probs(warp_, block, lane_));
      const u32 probs[kRowBlocks][2] = {{c.words[0], c.words[1]}, {c.words[2], c.words[3]}};
      if (i > 0 && (grown_blocks_ >> block & 1) != 0) {  // the first finds zeros
#pragma unroll
        for (int r = 0; r < 2 * kRowBlocks; ++r)
          sums.scale_values(r, load_float(smem_.factor(warp_, block, row_of(r))));
      }
      mbarrier_wait(smem_.full(ring_.stage), ring_.parity);
      release(add_values<Element, false>(reader_, smem_.block(ring_.stage), probs, {0, 0}, sums.o));
    }
#pragma unroll
    for (int r = 0; r < 2 * kRowBlocks; ++r) {
      const int n = r / 2, h = r % 2;
      const float sum = load_float(smem_.row_sums(warp_, split, row_of(r)) + 4);
      sums.normalise_values(r, sum);
      const float weight = load_float(smem_.weight(warp_, split, row_of(r)));
#pragma unroll
      for (int j = 0; j < 2 * kTiles; ++j) {
        float& x = o[j / 2][n][j % 2 * 2 + h];
        x = fmaf(sums.o[j / 2][n][j % 2 * 2 + h], weight, x);
      }
    }
  }
  __device__ __forceinline__ static float load_float(u32 from) {
    return __uint_as_float(load_shared(from));
  }
  // The block of the ring. `loaded` depends on all loads of it.
  __device__ __forceinline__ void release(u32 loaded) {
    const u32 empty = released_behind(loaded, smem_.empty(ring_.stage));
    __syncwarp();
    if (lane_ == 0) mbarrier_arrive(empty);
    ring_.next();
  }

  __device__ __forceinline__ void store(const PrefixItem& item,
                                        const float (&o)[kTiles][kRowBlocks][4]) const {
#pragma unroll
    for (int r = 0; r < 2 * kRowBlocks; ++r) {
      const int n = r / 2, h = r % 2;
      const RowPlace at = place_of(item, row_of(r));
      if (at.batch_idx < 0) continue;
      float* to = partial_row<kDim>(p_, slot_of(item, at.batch_idx), at.row).o + (lane_ >> 2);
#pragma unroll
      for (int j = 0; j < 2 * kTiles; ++j) __stcg(to + 8 * j, o[j / 2][n][j % 2 * 2 + h]);
    }
  }

  const Params& p_;
  const PrefixSmem<kDim> smem_;
  const int warp_, lane_;
  const BlockReader reader_;
  u32 grown_blocks_ = 0;  // bit i: in block i of the group the maximum of a row grew
  Ring<kPlan.stages> ring_;
};

template <class V>
__global__ void __launch_bounds__(kPrefixThreads, 1)
    attend_prefix(const __grid_constant__ Params params, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kDim = V::kDim, kStages = prefix_smem_plan(kDim).stages;
  extern __shared__ unsigned char smem_raw[];
  const u32 start = smem_address(smem_raw);
  const PrefixSmem<kDim> smem{start + (-start & 1023u)};
  const int tid = static_cast<int>(threadIdx.x), lane = tid & 31;
  const int warp = __shfl_sync(0xffffffffu, tid >> 5, 0);
  if (tid < kStages) {
    mbarrier_init(smem.full(tid), 1);
    mbarrier_init(smem.empty(tid), kPrefixWarps);
  }
  fence_mbarrier_init();
  __syncthreads();
  griddep_launch_dependents();
  griddep_wait();
  const int num_slices = params.num_slices[0];
  const int num_items = params.num_slices[1] * params.num_kv_heads;
  PrefixProducer<V> producer(params, maps, smem, warp - kPrefixWarps);
  PrefixConsumer<V> consumer(params, smem, warp, lane);
#pragma unroll 1
  for (int id = static_cast<int>(blockIdx.x); id < num_items; id += static_cast<int>(gridDim.x)) {
    const PrefixItem item = find_prefix_item(params, num_slices, id, lane);
    if (warp < kPrefixWarps)
      consumer.attend(item);
    else if (lane == 0)
      producer.load(item);
    __syncwarp();
  }
  if (warp >= kPrefixWarps && lane == 0) producer.report();
#endif
}

// ---- fold_prefix

// A warp has a row of a (sequence, KV head).
template <int kDim>
__global__ void __launch_bounds__(kFoldThreads) fold_prefix(const __grid_constant__ Params params) {
  const Params& p = params;
  __shared__ float2 pairs[kFoldThreads / 32][kPartsAtOnce];
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int id = static_cast<int>(blockIdx.x) * (kFoldThreads / 32) + warp;
  const int num_heads = p.batch * p.num_kv_heads, head_idx = id / p.rows;
  griddep_launch_dependents();
  griddep_wait();
  if (head_idx >= num_heads) return;
  const int row = id - head_idx * p.rows, d = kDim / 32 * lane;
  const int groups = __ldcg(p.prefix_groups + p.by_kv_heads.divide(head_idx));
  if (groups == 0) return;
  Partial<kDim / 32> all, chunk;
#pragma unroll 1
  for (int first = 0; first < groups; first += kChunkGroups) {
    if (first > 0) append(all, chunk, p.scale_log2);
    chunk = {};
    const int count = min(kChunkGroups, groups - first);
    append_slots<kDim>(p, {p.prefix.group_slot(head_idx, first), 0, 1, count}, row, d,
                       smem_address(pairs[warp]), lane, chunk);
  }
  if (groups % kChunkGroups == 0) {
    append(all, chunk, p.scale_log2);
    chunk = {};
  }
  store_partial<kDim>(p, p.prefix.state_slot(num_heads, head_idx, kWholeChunks), row, d, all);
  store_partial<kDim>(p, p.prefix.state_slot(num_heads, head_idx, kOpenChunk), row, d, chunk);
}

// ---- launch

inline LaunchShape prefix_shape(const char* name, std::int64_t num_ctas, int threads, int smem) {
  return {.name = name,
          .grid = dim3(static_cast<unsigned>(num_ctas)),
          .block = dim3(static_cast<unsigned>(threads)),
          .smem_bytes = static_cast<unsigned>(smem),
          .use_pdl = true};
}

template <class Element, int kDim>
Status launch_prefix_kernels(const Call& call) {
  using V = Variant<Element, kDim, kMaxRows>;
  const Params& p = call.params;
  const auto stream = static_cast<cudaStream_t>(call.stream);
  HEADRACE_TRY(launch(prefix_shape("find_prefixes", 1, kFindThreads, 0), stream, find_prefixes, p));
  constexpr PrefixSmemPlan kPlan = prefix_smem_plan(kDim);
  static_assert(kPlan.total <= kSmemLimitSm90);
  const LaunchShape attend =
      prefix_shape("attend_prefix", p.num_units, kPrefixThreads, kPlan.total);
  static AllowedSmem allowed;
  if (Status bad = allow_smem(attend, attend_prefix<V>, allowed)) return bad;
  HEADRACE_TRY(launch(attend, stream, attend_prefix<V>, p, call.maps));
  constexpr int kRowsOfCta = kFoldThreads / 32;
  const std::int64_t rows = std::int64_t{p.batch} * p.num_kv_heads * p.rows;
  return launch(
      prefix_shape("fold_prefix", ceil_div<std::int64_t>(rows, kRowsOfCta), kFoldThreads, 0),
      stream, fold_prefix<kDim>, p);
}

}  // namespace headrace::cuda::sm90::decode
