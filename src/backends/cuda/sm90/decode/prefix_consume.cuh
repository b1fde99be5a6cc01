// The consumer warps of attend_prefix.
#pragma once

#include "backends/cuda/device/wgmma.cuh"
#include "backends/cuda/sm90/decode/merge.cuh"
#include "backends/cuda/sm90/decode/prefix_produce.cuh"

namespace headrace::cuda::sm90::decode {

// A warpgroup has 64 rows and multiplies them with a split by wgmma, rows as M. Products are summed
// in the order of the other kernels, which multiply by mma.sync, keys as M; the bits are the same.
// A lane has the keys of a block that two lanes have there (BlockSums). A group weighs its splits
// by the sums of all of them, so K comes first: P of the whole group waits in shared memory for V.
template <class V>
class PrefixConsumer {
  using Element = typename V::Element;
  static constexpr int kDim = V::kDim, kSteps = kDim / 16;
  static constexpr PrefixSmemPlan kPlan = prefix_smem_plan(kDim);
  using Scores = WgmmaM64K16<typename Element::Operand, kSplitKeys>;
  using Values = WgmmaM64K16<typename Element::Operand, kDim>;

 public:
  __device__ PrefixConsumer(const Params& p, PrefixSmem<kDim> smem, int warp, int lane)
      : p_(p), smem_(smem), warp_(warp), lane_(lane) {}

  __device__ void attend(const PrefixItem& item) {
    if (warp_ / 4 * 4 * kMaxRows < item.slice.num_sequences * p_.rows)
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
  // Of the lane's two rows.
  __device__ int row_of(int r) const { return (lane_ >> 2) + 8 * r; }

  // The warpgroup has no rows, but the other's splits wait for it.
  __device__ void pass() {
#pragma unroll 1
    for (int i = 0; i < 2 * kGroupSplits; ++i) {
      wait();
      release();
    }
  }

  __device__ void attend_rows(const PrefixItem& item) {
    load_queries(item);
    cp_async_bulk_wait_group_read<0>();  // of the item before, whose rows lie where P will
    __syncwarp();
    sum_probs();
    weigh_splits();
    float o[kDim / 2] = {};
#pragma unroll 1
    for (int split = 0; split < kGroupSplits; split += 2) add_splits(split, o);
    store(o);
  }

  // Rows that do not exist count as zeros. A lane finds a row for all, and where its sums go.
  __device__ void load_queries(const PrefixItem& item) {
    using Stored = typename Element::Stored;
    const RowPlace at = place_of(item, lane_ % kMaxRows);
    std::uintptr_t own = 0;
    result_ = {};
    if (at.batch_idx >= 0) {
      const int slot =
          p_.prefix.group_slot(at.batch_idx * p_.num_kv_heads + item.kv_head, item.group);
      result_ = partial_row<kDim>(p_, slot, at.row);
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
    Chunk chunks[kMaxRows / kRowsAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kMaxRows / kRowsAtOnce; ++i) {
      const std::uintptr_t q = __shfl_sync(0xffffffffu, own, i * kRowsAtOnce + lane_ / kChunks);
      if (q != 0 && d < p_.sizes.head_dim)
        chunks[i] = *reinterpret_cast<const Chunk*>(reinterpret_cast<const Stored*>(q) + d);
    }
#pragma unroll
    for (int i = 0; i < kMaxRows / kRowsAtOnce; ++i)
      store_chunk(smem_.q(warp_) +
                      static_cast<u32>((i * kRowsAtOnce + lane_ / kChunks) * kPlan.q_pitch + 2 * d),
                  chunks[i]);
    __syncwarp();
  }

  // P, the factors by which sums shrink where a maximum grows, and the sums of all splits. The
  // products of a split run beside the exponentials of the one before it.
  __device__ __forceinline__ void sum_probs() {
    QueryFragments<kDim, kMaxRows, true> rows(lane_);
    rows.load(smem_.q(warp_));
    u32 q[kSteps][4];
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      u32 b[2];
      rows.get(b, i / 2, i % 2);
      q[i / 2][i % 2] = b[0];
      q[i / 2][i % 2 + 2] = b[1];
    }
    __syncwarp();  // factors replace Q
    grown_blocks_ = 0;
    float even[kSplitKeys / 2], odd[kSplitKeys / 2], s[kSplitKeys / 2];
    begin_scores(q, even, odd);
#pragma unroll 1
    for (int split = 0; split + 1 < kGroupSplits; ++split) {
      finish_scores(even, odd, s);
      begin_scores(q, even, odd);
      add_probs(split, s);
    }
    finish_scores(even, odd, s);
    add_probs(kGroupSplits - 1, s);
    __syncwarp();
  }
  // Two chains, as in block_scores().
  __device__ __forceinline__ void begin_scores(const u32 (&q)[kSteps][4],
                                               float (&even)[kSplitKeys / 2],
                                               float (&odd)[kSplitKeys / 2]) {
    const u64 keys = wgmma_descriptor(wait(), 0);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
      Scores::template rs<Major::k>(
          i % 2 == 0 ? even : odd, q[i],
          wgmma_descriptor_advance(keys, static_cast<u32>(i / 4 * kPlan.half + i % 4 * 32)), i > 1);
    wgmma_commit_group();
  }
  __device__ __forceinline__ void finish_scores(float (&even)[kSplitKeys / 2],
                                                float (&odd)[kSplitKeys / 2],
                                                float (&s)[kSplitKeys / 2]) {
    wgmma_wait_group<0>();
    warpgroup_fence_operand(even);
    warpgroup_fence_operand(odd);
    release();
#pragma unroll
    for (int i = 0; i < kSplitKeys / 2; ++i) s[i] = even[i] + odd[i];
  }
  // Every row sees every key. s[8 b + i] is a score of block b: rows as row_of(i % 4 / 2), keys
  // 2 (lane % 4) + i % 2, eight more where i > 3.
  __device__ __forceinline__ void add_probs(int split, float (&s)[kSplitKeys / 2]) {
    float row_max[2] = {-HUGE_VALF, -HUGE_VALF};
    float sum[2][2] = {};  // [row][lane that would have the keys]: SplitSums' order
#pragma unroll
    for (int b = 0; b < kSplitBlocks; ++b) {
      const int block = split * kSplitBlocks + b;
      bool grows = false;
      float factors[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float* x = s + 8 * b + 2 * r;
        float top = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[4], x[5]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        grows |= top > row_max[r];
        const float before = row_max[r];
        row_max[r] = fmaxf(before, top);
        factors[r] = shrink_factor(before, row_max[r], p_.scale_log2);
        const float ref = finite_row_max(row_max[r]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          x[i] = prob_of<Element>(x[i], ref, p_.scale_log2);
          x[i + 4] = prob_of<Element>(x[i + 4], ref, p_.scale_log2);
          sum[r][i] = __fmul_rn(sum[r][i], factors[r]) + (x[i] + x[i + 4]);
        }
      }
      const float* x = s + 8 * b;
      store_chunk(smem_.probs(warp_, block, lane_),
                  {{Element::pack(x[0], x[1]), Element::pack(x[2], x[3]), Element::pack(x[4], x[5]),
                    Element::pack(x[6], x[7])}});
      if (__any_sync(0xffffffffu, grows)) grown_blocks_ |= 1u << block;
      if (lane_ % 4 == 0) {
        store_shared(smem_.factor(warp_, block, row_of(0)), __float_as_uint(factors[0]));
        store_shared(smem_.factor(warp_, block, row_of(1)), __float_as_uint(factors[1]));
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float all = sum[r][0] + sum[r][1];
      all += __shfl_xor_sync(0xffffffffu, all, 1);
      all += __shfl_xor_sync(0xffffffffu, all, 2);
      if (lane_ % 4 != 0) continue;
      const u32 to = smem_.row_sums(warp_, split, row_of(r));
      store_shared(to, __float_as_uint(row_max[r]));
      store_shared(to + 4, __float_as_uint(all));
    }
  }

  __device__ __forceinline__ void weigh_splits() const {
    if (lane_ < kMaxRows) {
      const GroupWeights w = group_weights(
          p_.scale_log2, [&](int i) { return load_shared2(smem_.row_sums(warp_, i, lane_)); });
#pragma unroll
      for (int i = 0; i < kGroupSplits; ++i)
        store_shared(smem_.weight(warp_, i, lane_),
                     __float_as_uint(__fmul_rn(w.of_split[i], w.factor)));
      if (result_.sums != nullptr) store_row_sums(result_.sums, w.row_max, w.sum);
    }
    __syncwarp();
  }

  // Adds the means of the values of two splits, times their weights. The products of one run beside
  // the sums of the other.
  __device__ __forceinline__ void add_splits(int split, float (&o)[kDim / 2]) {
    SplitValues first, second;
    begin_values(first, split);
    begin_values(second, split + 1);
#pragma unroll
    for (int b = 1; b < kSplitBlocks; ++b) {
      continue_values(first, b);
      continue_values(second, b);
    }
    finish_values<1>(first, o);
    finish_values<0>(second, o);
  }
  struct SplitValues {
    float x[kDim / 2];
    u32 probs[4];
    u64 values;
    int split;
  };
  __device__ __forceinline__ void begin_values(SplitValues& v, int split) {
    v.split = split;
    v.values = wgmma_descriptor(wait(), kPlan.half);
    multiply_block(v, 0);
  }
  __device__ __forceinline__ void continue_values(SplitValues& v, int b) {
    wgmma_wait_group<1>();
    warpgroup_fence_operand(v.x);
    const int block = v.split * kSplitBlocks + b;
    if ((grown_blocks_ >> block & 1) != 0) {
      const float factors[2] = {load_float(smem_.factor(warp_, block, row_of(0))),
                                load_float(smem_.factor(warp_, block, row_of(1)))};
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) v.x[i] *= factors[i % 4 / 2];
    }
    multiply_block(v, b);
  }
  __device__ __forceinline__ void multiply_block(SplitValues& v, int b) const {
    const Chunk c = load_chunk(smem_.probs(warp_, v.split * kSplitBlocks + b, lane_));
#pragma unroll
    for (int i = 0; i < 4; ++i) v.probs[i] = c.words[i];
    warpgroup_fence_operand(v.x);
    wgmma_fence();
    Values::template rs<Major::mn>(
        v.x, v.probs, wgmma_descriptor_advance(v.values, static_cast<u32>(b * kHalfOfBlock)),
        b > 0);
    wgmma_commit_group();
  }
  template <int kPending>
  __device__ __forceinline__ void finish_values(SplitValues& v, float (&o)[kDim / 2]) {
    float sums[2], factors[2], weights[2];
    u32 loaded = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sums[r] = load_float(smem_.row_sums(warp_, v.split, row_of(r)) + 4);
      factors[r] = rcp_approx(sums[r]);
      weights[r] = load_float(smem_.weight(warp_, v.split, row_of(r)));
      loaded ^= __float_as_uint(sums[r]) ^ __float_as_uint(weights[r]);
    }
    wgmma_wait_group<kPending>();
    warpgroup_fence_operand(v.x);
    release(loaded);
    if (sums[0] == 0.0f || sums[1] == 0.0f) [[unlikely]] {  // all scores are -inf
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) v.x[i] = sums[i % 4 / 2] == 0.0f ? 0.0f : v.x[i];
#pragma unroll
      for (int r = 0; r < 2; ++r) factors[r] = sums[r] == 0.0f ? 0.0f : factors[r];
    }
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i)
      o[i] = fmaf(v.x[i] * factors[i % 4 / 2], weights[i % 4 / 2], o[i]);
  }
  __device__ __forceinline__ static float load_float(u32 from) {
    return __uint_as_float(load_shared(from));
  }
  // The next split, when it has arrived.
  __device__ __forceinline__ u32 wait() {
    mbarrier_wait(smem_.full(next_.stage), next_.parity);
    const u32 split = smem_.split(next_.stage);
    next_.next();
    return split;
  }
  // The first split that has not been released, whose wgmmas are complete. `loaded` depends on
  // loads that are in flight.
  __device__ __forceinline__ void release(u32 loaded = 0) {
    const u32 empty = released_behind(loaded, smem_.empty(first_.stage));
    __syncwarp();
    if (lane_ == 0) mbarrier_arrive(empty);
    first_.next();
  }

  // Rows go to the workspace by bulk copies, from where P was: by stores, of 32 bytes of a row
  // each, a multiprocessor takes 4 us for them.
  __device__ __forceinline__ void store(const float (&o)[kDim / 2]) const {
    constexpr u32 kPitch = 4 * kDim + 16;  // rows begin 4 banks apart
    static_assert(kMaxRows * kPitch <= kGroupBlocks * kProbBytes);
    const u32 rows = smem_.probs(warp_, 0, 0);
    __syncwarp();  // P has been read
#pragma unroll
    for (int i = 0; i < kDim / 2; i += 2)
      store_shared2(rows + static_cast<u32>(row_of(i % 4 / 2)) * kPitch +
                        static_cast<u32>(4 * (i / 4 * 8 + 2 * (lane_ & 3))),
                    o[i], o[i + 1]);
    fence_proxy_async();
    __syncwarp();
    if (lane_ < kMaxRows && result_.o != nullptr)
      cp_async_bulk_store(result_.o, rows + static_cast<u32>(lane_) * kPitch, 4 * kDim);
    cp_async_bulk_commit_group();
  }

  const Params& p_;
  const PrefixSmem<kDim> smem_;
  const int warp_, lane_;
  PartialRow result_{};   // of row lane % 16 of the warp; null: no row
  u32 grown_blocks_ = 0;  // bit i: in block i of the group the maximum of a row grew
  Ring<kPlan.stages> next_, first_;
};

}  // namespace headrace::cuda::sm90::decode
