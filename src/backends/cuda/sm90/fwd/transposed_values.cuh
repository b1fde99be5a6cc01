// P V, the sums of P, and the results of rows, by warpgroups of the transposed kernels.
//
// Thread (warp w, g = lane / 4, t = lane % 4) has of O the columns 16 w + g and eight more of each
// 64, of rows 2 t and the next of each 8.
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

// Sums of P: thread (warp w, lane) has row lane % rows, as thread w of the row does in other tiles.
template <Tile kTile>
class SplitSums {
  static constexpr int kKeys = kTile.keys, kRows = kTile.transposed_rows;

 public:
  __device__ __forceinline__ explicit SplitSums(u32 smem)
      : warp_(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5, 0) % 4),
        lane_(static_cast<int>(threadIdx.x) & 31),
        buffers_{smem} {}

  __device__ __forceinline__ void begin() { sum_ = 0.0f; }
  __device__ __forceinline__ void add(float thread_sum) { sum_ += thread_sum; }
  __device__ __forceinline__ void add_probs(int buffer) {
    float max = 0.0f;
    sum_ += buffers_.sum_of_probs(buffer, warp_, lane_, max);
  }
  // PreciseSoftmax's one chain over the keys of the two lanes of a row.
  __device__ __forceinline__ void add_probs_precisely(int buffer) {
#pragma unroll 1
    for (int i = 0; i < kKeys / 8; ++i) {
      sum_ += buffers_.load_prob(buffer, 8 * i + 2 * warp_, lane_);
      sum_ += buffers_.load_prob(buffer, 8 * i + 2 * warp_ + 1, lane_);
    }
  }
  // By the factor of the row whose P the thread adds.
  __device__ __forceinline__ void scale(float factor) { sum_ = __fmul_rn(sum_, factor); }
  // For SplitValues::store(), behind a barrier.
  __device__ __forceinline__ void share() const {
    if (lane_ < kRows) store_shared(buffers_.row_sum(warp_, lane_), __float_as_uint(sum_));
  }

 private:
  const int warp_, lane_;
  const TransposedBuffers<kTile> buffers_;
  float sum_ = 0.0f;
};

template <Tile kTile, class Element>
class SplitValues {
  using B = TransposedBarriers<kTile>;
  static constexpr TransposedSmem kSmem = transposed_smem(kTile);
  static constexpr int kKeys = kTile.keys, kRows = kTile.transposed_rows, kKeyTiles = kKeys / 64;
  static constexpr int kColumns = columns_of_part(kTile), kColumnTiles = kColumns / 64;
  using Thread = TransposedThread<kRows>;
  static constexpr int kRegisters = Thread::kRegisters;
  static constexpr int kBarrierStages = stages_of_barrier(kTile);
  using Product = WgmmaM64Few<typename Element::Operand, kRows>;

 public:
  // `part`: of the columns. `barrier`: a named one, of the warpgroup.
  __device__ __forceinline__ SplitValues(const Params& p, u32 smem, int part, int barrier)
      : p_(p),
        smem_(smem),
        part_(part),
        barrier_(barrier),
        warp_(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5, 0) % 4),
        lane_(static_cast<int>(threadIdx.x) & 31),
        buffers_{smem} {}

  __device__ __forceinline__ void begin() { scale_d_ = 0; }

  // ---- a k-block, of P in a buffer
  // The stages of V, in their order.
  __device__ __forceinline__ void wait() const {
    Ring<kTile.v_stages> ring = v_;
#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i, ring.next())
      if (i % kBarrierStages == 0)
        mbarrier_wait(barrier(B::kVFull + ring.stage / kBarrierStages), ring.parity);
  }
  // To the next k-block.
  __device__ __forceinline__ void advance() {
#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i) v_.next();
  }
  // The first k-block that has not been released; its product is finished.
  __device__ __forceinline__ void release() {
#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i, released_.next())
      if (i % kBarrierStages == 0 && threadIdx.x % 128 == 0)
        mbarrier_arrive(barrier(B::kVEmpty + released_.stage / kBarrierStages));
  }
  // The first P V of a split replaces O.
  __device__ __forceinline__ void issue(int buffer) {
    wgmma_fence();
    const u64 p = wgmma_plain_descriptor(buffers_.packed(buffer), 128, kKeys * 16);
    Ring<kTile.v_stages> ring = v_;
#pragma unroll
    for (int half = 0; half < kKeyTiles; ++half, ring.next()) {
      const u64 v =
          wgmma_descriptor(smem_ + static_cast<u32>(kSmem.offset_v + ring.stage * kSmem.v_stage),
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
  __device__ __forceinline__ void keep() { scale_d_ = 1; }
  __device__ __forceinline__ void finish() {
    wgmma_wait_group<0>();
#pragma unroll
    for (int tile = 0; tile < kColumnTiles; ++tile) warpgroup_fence_operand(o_[tile]);
  }
  // As Consumer::zero_v_tail(): before the product of k-block n, the first.
  __device__ __forceinline__ void zero_tail(const SplitItem& item, int n) const {
    if (p_.has_device_lengths == 0) [[likely]]
      return;
    const int rows = item.seqlen_k - n * kKeys;
    if (rows >= kKeys) [[likely]]
      return;
    wait();
    Ring<kTile.v_stages> ring = v_;
#pragma unroll 1
    for (int half = 0; half < kKeyTiles; ++half, ring.next())
      zero_rows<num_swizzle_atoms(kColumns), kStageKeys>(
          smem_ + static_cast<u32>(kSmem.offset_v + ring.stage * kSmem.v_stage),
          max(rows - half * kStageKeys, 0));
    fence_proxy_async();
    sync();
  }

  // By the factors of the thread's rows.
  template <int kFactors>
  __device__ __forceinline__ void rescale(const float (&factor)[kFactors]) {
#pragma unroll
    for (int i = 0; i < kColumnTiles * kRegisters; ++i)
      o_[i / kRegisters][i % kRegisters] *= factor[Thread::mine_of(i)];
  }

  // ---- results

  // `rows`: those that were computed again, or 0. Otherwise rows that must be are written as well,
  // and reported in `word`. `ref`: SplitSoftmax::reference(). All P have been added, and a barrier
  // is behind SplitSums::share(). O goes through the memory of P: a thread then has eight columns
  // of one row.
  __device__ __forceinline__ void store(const SplitItem& item, float ref, u32 rows, u32 word) {
    const TransposedRows<kTile, Element> places{p_, item};
    const bool is_precise = rows != 0;
    const int row = lane_ % kRows;
    if (threadIdx.x % 128 == 0 && !is_precise) store_shared(word, 0);
    float part[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) part[i] = __uint_as_float(load_shared(buffers_.row_sum(i, row)));
    stage_o();
    const RowEnd end =
        end_of_row(places.head_of(row), ref, (part[0] + part[1]) + (part[2] + part[3]), is_precise);
    const bool is_written = places.exists(row) && (!is_precise || (rows >> row & 1u) != 0);
    if (is_written && part_ == 0 && static_cast<int>(threadIdx.x) % 128 < kRows)
      places.write_end(row, end);
    sync();
    bool overflows = end.overflows;
#pragma unroll 1
    for (int chunk = static_cast<int>(threadIdx.x) % 128 / kRows; chunk < kColumns / 8;
         chunk += 128 / kRows)
      overflows |= !places.write_chunk(buffers_.staged(row, 8 * chunk), row,
                                       part_ * (kColumns / 8) + chunk, end.factor, is_written);
    if (is_precise || !__any_sync(0xffffffffu, is_written && overflows)) [[likely]]
      return;
    const u32 again = __reduce_or_sync(0xffffffffu, is_written && overflows ? 1u << row : 0);
    if (lane_ == 0) asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(word), "r"(again) : "memory");
  }

 private:
  __device__ __forceinline__ void sync() const { bar_sync(barrier_, 128); }
  __device__ __forceinline__ u32 barrier(int i) const {
    return smem_ + static_cast<u32>(kSmem.offset_barriers + 8 * i);
  }
  __device__ __forceinline__ void stage_o() const {
#pragma unroll
    for (int i = 0; i < kColumnTiles * kRegisters; ++i) {
      const int j = Thread::mine_of(i),
                column = i / kRegisters * 64 + 16 * warp_ + (lane_ >> 2) + i % 4 / 2 * 8;
      store_shared(buffers_.staged(row_of_thread<kRows>(j, lane_), column),
                   __float_as_uint(o_[i / kRegisters][i % kRegisters]));
    }
  }
  __device__ __forceinline__ RowEnd end_of_row(int head, float ref, float sum,
                                               bool is_precise) const {
    const float max_score = is_precise ? ref * p_.scores.params.scale : -INFINITY;
    if (is_precise) ref = __fmul_rn(ref, p_.scale_log2) - Element::kPreciseLog2Scale;
    RowEpilogue end =
        row_epilogue(p_.rows.sinks, p_.scores.params.keep_factor, head, ref, sum, max_score);
    if (ref == INFINITY && fabsf(max_score) < INFINITY) end.lse = max_score;  // as lse_of()
    return {end.factor, end.lse, {split_reference(ref, max_score), sum}, fwd::overflows(ref, sum)};
  }

  const Params& p_;
  const u32 smem_;
  const int part_, barrier_, warp_, lane_;
  const TransposedBuffers<kTile> buffers_;
  Ring<kTile.v_stages> v_, released_;
  int scale_d_ = 0;
  float o_[kColumnTiles][kRegisters];
};

}  // namespace headrace::cuda::sm90::fwd
