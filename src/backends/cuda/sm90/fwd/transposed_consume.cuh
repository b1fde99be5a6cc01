// The warpgroup of the transposed kernel that computes.
//
// Thread (warp w, g = lane / 4, t = lane % 4) has of S the keys 16 w + g and eight more of each 64,
// of rows 2 t and the next of each 8; of O columns instead of keys. It adds P of row lane % rows,
// of keys 2 w and the next of each 8.
#pragma once

#include "backends/cuda/common/row_epilogue.cuh"
#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/device/wgmma_few.cuh"
#include "backends/cuda/sm90/element.cuh"
#include "backends/cuda/sm90/fwd/epilogue.cuh"
#include "backends/cuda/sm90/fwd/load_stage.cuh"
#include "backends/cuda/sm90/fwd/softmax.cuh"
#include "backends/cuda/sm90/fwd/transposed_rows.cuh"

namespace headrace::cuda::sm90::fwd {

template <Tile kTile, class Element>
class SplitConsumer {
  using B = TransposedBarriers<kTile>;
  static constexpr TransposedSmem kSmem = transposed_smem(kTile);
  static constexpr int kKeys = kTile.keys, kDim = kTile.head_dim, kRows = kTile.transposed_rows;
  static constexpr int kKeyTiles = kKeys / 64, kColumnTiles = kDim / 64;
  using Thread = TransposedThread<kRows>;
  static constexpr int kRegisters = Thread::kRegisters;
  // Rows of a thread, and the one whose P it adds.
  static constexpr int kMine = Thread::kMine, kSummed = kMine, kTracked = kMine + 1;
  static constexpr int kLog2Scale = Element::kLog2Scale;
  static constexpr bool kIsLazy = Element::kHasFloatRange && kDim <= 128;  // as Scores::kIsLazy
  static constexpr float kLargeP = kRescaleAboveSum / (kKeys / 4);         // so many sum to no more
  using Product = WgmmaM64Few<typename Element::Operand, kRows>;

 public:
  __device__ __forceinline__ SplitConsumer(const Params& p, u32 smem)
      : p_(p),
        smem_(smem),
        warp_(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5, 0)),
        lane_(static_cast<int>(threadIdx.x) & 31),
        buffers_{smem},
        c_(p.scale_log2) {}

  __device__ __forceinline__ void run() {
    PublishedItems<kTile> published(smem_);
    for (;;) {
      const PublishedItem x = published.read();
      if (x.item.batch == kNoItem) return;
      item_ = x.item;
      sum_blocks(x.rows != 0);
      store(x.rows, x.word);
      sync();  // all warps have reported
      published.release(x.loaded(), threadIdx.x == 0);
    }
  }

 private:
  // ---- a split

  // One loop has all of it, so that the code is there once: the first P V and the last S are of
  // whatever lies in shared memory, too, and not used.
  __device__ __forceinline__ void sum_blocks(bool is_precise) {
#pragma unroll
    for (float& x : ref_) x = -INFINITY;
    sum_ = 0.0f;
    scale_d_ = 0;
    has_sums_ = false;
    mbarrier_wait(barrier(B::kQFull + q_.stage), q_.parity);
#pragma unroll 1
    for (int n = item_.block_max - 1;; --n) {
      // S of a k-block and P V of the one to its right; beside them the sums of P of that one.
      const bool is_first = n == item_.block_max - 1, is_last = n < item_.block_min;
      if (!is_last) wait_stages(B::kKFull, k_);
      if (!is_first) wait_stages(B::kVFull, v_);
      issue_s();
      issue_pv();
      scale_d_ = is_first ? 0 : 1;
      add_sums();
      finish_s();
      if (is_last) break;
      release_stages(B::kKEmpty, k_);
      make_probs(n, is_first, is_precise);
      if (is_first) zero_v_tail(n);
    }
    finish_pv();
    release_stages(B::kVEmpty, v_);
    release_q();
  }

  // ---- S becomes P

  // Also waits for P V of the k-block to the right.
  __device__ __forceinline__ void make_probs(int n, bool is_first, bool is_precise) {
    const bool is_masked = item_.is_masked(n);
    if (is_masked) [[unlikely]]
      mask(n);
    float factor[kTracked];
    bool moves = is_precise, is_large = false;
    if (is_precise) {
      precise_update(factor);
    } else {
      if constexpr (!kIsLazy) {
        moves = conditional_update(factor);
      } else if (is_first || (is_masked && any_row_is_new())) {
        exchange_max();
#pragma unroll
        for (int j = 0; j < kTracked; ++j)
          if (ref_[j] == -INFINITY) ref_[j] = __fmul_rn(exchanged(row_of(j), 0), c_) - kLog2Scale;
      }
#pragma unroll
      for (int i = 0; i < kKeyTiles * kRegisters; ++i) {
        const float ref = ref_[Thread::mine_of(i)] == -INFINITY ? 0.0f : ref_[Thread::mine_of(i)];
        float& x = s_[i / kRegisters][i % kRegisters];
        x = ex2_approx_ftz(fmaf(x, c_, -ref));
        is_large |= !(x <= kLargeP);
      }
    }
    buffer_ ^= 1;
    store_probs();
    pack_probs();
    // Before the first k-block no sum can be too large.
    is_large = __any_sync(0xffffffffu, is_large && !is_first);
    if (kIsLazy && lane_ == 0) store_shared(buffers_.flag(buffer_, warp_), is_large ? 1 : 0);
    finish_pv();
    if (!is_first) release_stages(B::kVEmpty, v_);
    publish();
    has_sums_ = true;
    if (is_precise) {
      add_sums_precisely();
    } else if constexpr (kIsLazy) {
      const Chunk flags = load_chunk(buffers_.flag(buffer_, 0));
      if ((flags.words[0] | flags.words[1] | flags.words[2] | flags.words[3]) != 0) [[unlikely]] {
        lazy_update(factor);
        moves = true;
      }
    }
    if (!is_first && moves) [[unlikely]]
      rescale_o(factor);
  }

  // Softmax::conditional_update(), which before the first k-block is first_block().
  __device__ __forceinline__ bool conditional_update(float (&factor)[kTracked]) {
    bool moves = false;
    exchange_max();
#pragma unroll
    for (int j = 0; j < kTracked; ++j) {
      const float max = __fmul_rn(exchanged(row_of(j), 0), c_);
      const bool grows =
          max - ref_[j] > static_cast<float>(kLog2Scale + Element::kRescaleThreshold);
      const float next = grows ? max - kLog2Scale : ref_[j];
      factor[j] = grows ? ex2_approx_ftz(ref_[j] - next) : 1.0f;
      ref_[j] = next;
      moves |= grows;
    }
    sum_ = __fmul_rn(sum_, factor[kSummed]);
    return __any_sync(0xffffffffu, moves);
  }

  // Softmax::lazy_update() where some P is large, behind publish().
  __device__ __forceinline__ void lazy_update(float (&factor)[kTracked]) {
    float max = 0.0f;
    const float thread_sum = sum_of_probs(max);
    sum_ += thread_sum;
    has_sums_ = false;
    exchange_ ^= 1;
    if (lane_ < kRows) {
      store_shared(buffers_.exchange(exchange_, warp_, lane_), __float_as_uint(thread_sum));
      store_shared(buffers_.exchange(exchange_, 4 + warp_, lane_), __float_as_uint(max));
    }
    sync();
#pragma unroll
    for (int j = 0; j < kTracked; ++j) {
      const bool grows = exchanged(row_of(j), 0) > kRescaleAboveSum;
      const float growth = grows ? fminf(__log2f(exchanged(row_of(j), 4)), 126.0f) : 0.0f;
      factor[j] = ex2_approx_ftz(-growth);
      ref_[j] += growth;
    }
    sum_ = __fmul_rn(sum_, factor[kSummed]);
#pragma unroll
    for (int i = 0; i < kKeyTiles * kRegisters; ++i)
      s_[i / kRegisters][i % kRegisters] *= factor[Thread::mine_of(i)];
    pack_probs();
    publish();
  }

  // PreciseSoftmax::update(): ref_ is the maximum of the scores.
  __device__ __forceinline__ void precise_update(float (&factor)[kTracked]) {
    exchange_max();
#pragma unroll
    for (int j = 0; j < kTracked; ++j) {
      const float next = fmaxf(ref_[j], exchanged(row_of(j), 0));
      factor[j] = ref_[j] == next ? 1.0f : ex2_approx_ftz((ref_[j] - next) * c_);
      ref_[j] = next;
    }
#pragma unroll
    for (int i = 0; i < kKeyTiles * kRegisters; ++i) {
      const float ref = ref_[Thread::mine_of(i)] == -INFINITY ? 0.0f : ref_[Thread::mine_of(i)];
      float& x = s_[i / kRegisters][i % kRegisters];
      x = ex2_approx_ftz(fmaf(x - ref, c_, static_cast<float>(Element::kPreciseLog2Scale)));
    }
    sum_ = __fmul_rn(sum_, factor[kSummed]);
  }
  // Its one chain over the keys of the two lanes of a row.
  __device__ __forceinline__ void add_sums_precisely() {
    has_sums_ = false;
#pragma unroll 1
    for (int i = 0; i < kKeys / 8; ++i) {
      sum_ += load_prob(8 * i + 2 * warp_);
      sum_ += load_prob(8 * i + 2 * warp_ + 1);
    }
  }

  __device__ __forceinline__ bool any_row_is_new() const {
    bool is_new = false;
#pragma unroll
    for (int j = 0; j < kMine; ++j) is_new |= ref_[j] == -INFINITY;
    return __any_sync(0xffffffffu, is_new);  // a warp has all rows
  }
  __device__ __forceinline__ void mask(int n) {
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      const int query = places().query_of(row_of(j)), first = n * kKeys + 16 * warp_ + g();
      const int begin = max(0, item_.left + query) - first;
      const int end = min(item_.seqlen_k, item_.right + query) - first;
#pragma unroll
      for (int i = 0; i < kKeyTiles * 2; ++i) {
        const int key = i / 2 * 64 + i % 2 * 8;
        if (key < begin || key >= end) s_[i / 2][Thread::register_of(j, i % 2)] = -INFINITY;
      }
    }
  }

  // ---- rows, and their exchange between warps
  __device__ __forceinline__ int g() const { return lane_ >> 2; }
  __device__ __forceinline__ int row_of(int j) const {
    return j == kSummed ? lane_ % kRows : 8 * (j / 2) + 2 * (lane_ & 3) + j % 2;
  }
  static __device__ __forceinline__ void sync() { bar_sync(1, 128); }

  // exchanged(row, 0) is then the maximum of S.
  __device__ __forceinline__ void exchange_max() {
    exchange_ ^= 1;
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      float max = -INFINITY;
#pragma unroll
      for (int i = 0; i < kKeyTiles * 2; ++i)
        max = fmaxf(max, s_[i / 2][Thread::register_of(j, i % 2)]);
#pragma unroll
      for (int step = 4; step < 32; step *= 2)
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, step));
      if (lane_ < 4)
        store_shared(buffers_.exchange(exchange_, warp_, row_of(j)), __float_as_uint(max));
    }
    sync();
  }
  __device__ __forceinline__ float exchanged(int row, int first) const {
    float max = __uint_as_float(load_shared(buffers_.exchange(exchange_, first, row)));
#pragma unroll
    for (int i = 1; i < 4; ++i)
      max = fmaxf(max, __uint_as_float(load_shared(buffers_.exchange(exchange_, first + i, row))));
    return max;
  }

  // ---- P in shared memory
  __device__ __forceinline__ void store_probs() const {
#pragma unroll
    for (int i = 0; i < kKeyTiles * kMine; ++i) {
      const int tile = i / kMine, h = i % 2, j = i % kMine / 2 * 2;
      const float* x = s_[tile] + Thread::register_of(j, h);
      store_shared2(buffers_.prob(buffer_, tile * 64 + 16 * warp_ + g() + h * 8, row_of(j)), x[0],
                    x[1]);
    }
  }
  __device__ __forceinline__ float load_prob(int key) const {
    return __uint_as_float(load_shared(buffers_.prob(buffer_, key, row_of(kSummed))));
  }
  // What a thread of the row adds of a k-block, and the largest P.
  __device__ __forceinline__ float sum_of_probs(float& max) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
      const float x = load_prob(8 * i + 2 * warp_ + lane_ / kRows % 2);
      sum += x;
      max = fmaxf(max, x);
    }
    max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, kRows));
    return sum + __shfl_xor_sync(0xffffffffu, sum, kRows);
  }
  __device__ __forceinline__ void add_sums() {
    float max = 0.0f;
    if (has_sums_) sum_ += sum_of_probs(max);
  }
  __device__ __forceinline__ void pack_probs() const {
#pragma unroll
    for (int i = 0; i < kKeyTiles * kMine; ++i) {
      const int tile = i / kMine, h = i % 2, j = i % kMine / 2 * 2;
      const float* x = s_[tile] + Thread::register_of(j, h);
      const int key = tile * 64 + 16 * warp_ + g() + h * 8;
      store_shared(buffers_.packed(buffer_) +
                       static_cast<u32>(j / 2 * kKeys * 16 + key * 16 + (lane_ & 3) * 4),
                   Element::pack(x[0], x[1]));
    }
  }
  // What the threads stored is read by wgmma and by other threads.
  __device__ __forceinline__ void publish() const {
    fence_proxy_async();
    sync();
  }

  // ---- products
  __device__ __forceinline__ u32 barrier(int i) const {
    return smem_ + static_cast<u32>(kSmem.offset_barriers + 8 * i);
  }
  // The stages of a k-block, in their order.
  template <int kStages>
  __device__ __forceinline__ void wait_stages(int full_0, Ring<kStages> ring) const {
#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i, ring.next())
      mbarrier_wait(barrier(full_0 + ring.stage), ring.parity);
  }
  template <int kStages>
  __device__ __forceinline__ void release_stages(int empty_0, Ring<kStages>& ring) const {
#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i, ring.next())
      if (threadIdx.x == 0) mbarrier_arrive(barrier(empty_0 + ring.stage));
  }
  __device__ __forceinline__ void issue_s() {
    wgmma_fence();
    const u64 q = wgmma_descriptor(
        smem_ + static_cast<u32>(kSmem.offset_q + q_.stage * kDim * kRows * 2), 16);
    u64 k[kKeyTiles];
    Ring<kTile.k_stages> ring = k_;
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile, ring.next())
      k[tile] =
          wgmma_descriptor(smem_ + static_cast<u32>(kSmem.offset_k + ring.stage * kSmem.stage), 16);
#pragma unroll
    for (int atom = 0; atom < kDim / 64; ++atom)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int tile = 0; tile < kKeyTiles; ++tile)
          Product::template ss<Major::k, Major::k>(
              s_[tile],
              wgmma_descriptor_advance(
                  k[tile], static_cast<u32>(i * 32 + atom * kStageKeys * kSwizzleRowBytes)),
              wgmma_descriptor_advance(q,
                                       static_cast<u32>(i * 32 + atom * kRows * kSwizzleRowBytes)),
              i != 0 || atom != 0);
    wgmma_commit_group();
  }
  __device__ __forceinline__ void finish_s() {
    wgmma_wait_group<1>();
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) warpgroup_fence_operand(s_[tile]);
  }
  __device__ __forceinline__ void issue_pv() {
    wgmma_fence();
    const u64 p = wgmma_plain_descriptor(buffers_.packed(buffer_), 128, kKeys * 16);
    Ring<kTile.v_stages> ring = v_;
#pragma unroll
    for (int half = 0; half < kKeyTiles; ++half, ring.next()) {
      const u64 v =
          wgmma_descriptor(smem_ + static_cast<u32>(kSmem.offset_v + ring.stage * kSmem.stage),
                           kStageKeys * kSwizzleRowBytes);
#pragma unroll
      for (int i = 0; i < kStageKeys / 16; ++i)
#pragma unroll
        for (int tile = 0; tile < kColumnTiles; ++tile)
          Product::template ss<Major::mn, Major::mn>(
              o_[tile],
              wgmma_descriptor_advance(
                  v, static_cast<u32>(i * 2048 + tile * kStageKeys * kSwizzleRowBytes)),
              wgmma_descriptor_advance(p, static_cast<u32>((half * kStageKeys + i * 16) * 16)),
              half == 0 && i == 0 ? scale_d_ : 1);
    }
    wgmma_commit_group();
  }
  __device__ __forceinline__ void finish_pv() {
    wgmma_wait_group<0>();
#pragma unroll
    for (int tile = 0; tile < kColumnTiles; ++tile) warpgroup_fence_operand(o_[tile]);
  }
  __device__ __forceinline__ void release_q() {
    if (threadIdx.x == 0) mbarrier_arrive(barrier(B::kQEmpty + q_.stage));
    q_.next();
  }
  __device__ __forceinline__ void rescale_o(const float (&factor)[kTracked]) {
#pragma unroll
    for (int i = 0; i < kColumnTiles * kRegisters; ++i)
      o_[i / kRegisters][i % kRegisters] *= factor[Thread::mine_of(i)];
  }
  // As Consumer::zero_v_tail().
  __device__ __forceinline__ void zero_v_tail(int n) const {
    if (p_.has_device_lengths == 0) [[likely]]
      return;
    const int rows = item_.seqlen_k - n * kKeys;
    if (rows >= kKeys) [[likely]]
      return;
    wait_stages(B::kVFull, v_);
    Ring<kTile.v_stages> ring = v_;
#pragma unroll 1
    for (int half = 0; half < kKeyTiles; ++half, ring.next())
      zero_rows<num_swizzle_atoms(kDim), kStageKeys>(
          smem_ + static_cast<u32>(kSmem.offset_v + ring.stage * kSmem.stage),
          max(rows - half * kStageKeys, 0));
    publish();
  }

  // ---- results
  __device__ __forceinline__ TransposedRows<kTile, Element> places() const { return {p_, item_}; }

  // `rows`: those that were computed again, or 0. Otherwise rows that must be are written as well,
  // and reported in `word`. O goes through the memory of P: a thread then has eight
  // columns of one row.
  __device__ __forceinline__ void store(u32 rows, u32 word) {
    const bool is_precise = rows != 0;
    const int row = row_of(kSummed);
    exchange_ ^= 1;
    if (lane_ < kRows)
      store_shared(buffers_.exchange(exchange_, warp_, lane_), __float_as_uint(sum_));
    if (threadIdx.x == 0 && !is_precise) store_shared(word, 0);
    sync();  // P has been added
    float part[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      part[i] = __uint_as_float(load_shared(buffers_.exchange(exchange_, i, row)));
    stage_o();
    const RowEnd end = end_of_row((part[0] + part[1]) + (part[2] + part[3]), is_precise);
    const bool is_written = places().exists(row) && (!is_precise || (rows >> row & 1u) != 0);
    if (is_written && static_cast<int>(threadIdx.x) < kRows) places().write_end(row, end);
    sync();
    bool overflows = end.overflows;
#pragma unroll 1
    for (int chunk = static_cast<int>(threadIdx.x) / kRows; chunk < kDim / 8; chunk += 128 / kRows)
      overflows |= !places().write_chunk(buffers_.staged(row, 8 * chunk), row, chunk, end.factor,
                                         is_written);
    if (is_precise || !__any_sync(0xffffffffu, is_written && overflows)) [[likely]]
      return;
    const u32 again = __reduce_or_sync(0xffffffffu, is_written && overflows ? 1u << row : 0);
    if (lane_ == 0) asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(word), "r"(again) : "memory");
  }
  __device__ __forceinline__ void stage_o() const {
#pragma unroll
    for (int i = 0; i < kColumnTiles * kRegisters; ++i) {
      const int j = Thread::mine_of(i),
                column = i / kRegisters * 64 + 16 * warp_ + g() + i % 4 / 2 * 8;
      store_shared(buffers_.staged(row_of(j), column),
                   __float_as_uint(o_[i / kRegisters][i % kRegisters]));
    }
  }
  __device__ __forceinline__ RowEnd end_of_row(float sum, bool is_precise) const {
    const float max_score = is_precise ? ref_[kSummed] * p_.scores.params.scale : -INFINITY;
    const float ref =
        is_precise ? __fmul_rn(ref_[kSummed], c_) - Element::kPreciseLog2Scale : ref_[kSummed];
    RowEpilogue end = row_epilogue(p_.rows.sinks, p_.scores.params.keep_factor,
                                   places().head_of(row_of(kSummed)), ref, sum, max_score);
    if (ref == INFINITY && fabsf(max_score) < INFINITY) end.lse = max_score;  // as lse_of()
    return {end.factor, end.lse, {split_reference(ref, max_score), sum}, fwd::overflows(ref, sum)};
  }

  const Params& p_;
  const u32 smem_;
  const int warp_, lane_;
  const TransposedBuffers<kTile> buffers_;
  const float c_;
  SplitItem item_{};
  Ring<kTile.k_stages> k_;
  Ring<kTile.v_stages> v_;
  Ring<kTile.q_buffers> q_;
  int scale_d_ = 0;
  int buffer_ = 0, exchange_ = 0;  // of P, of what warps exchange
  bool has_sums_ = false;          // of P that are not added yet
  float s_[kKeyTiles][kRegisters], o_[kColumnTiles][kRegisters];
  float ref_[kTracked];  // row_max_ref; of rows that are computed again the maximum
  float sum_ = 0.0f;     // of row kSummed, as of thread `warp_` of the row
};

}  // namespace headrace::cuda::sm90::fwd
