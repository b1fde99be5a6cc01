// Attention backward on mma.sync and cp.async: dQ, dK and dV (Dao, FlashAttention-2, 2023,
// algorithm 2). A CTA owns a key tile of one (batch entry, KV head) and loops over the q-blocks of
// all heads of the group. dK and dV accumulate in registers. dQ is added to dq_accum in global
// memory with atomics, in any order, or with `deterministic` in a fixed order.
//
//   S = Q K^T   dP = dO V^T   dV += P^T dO   dQ += dS K   dK += dS^T Q
//
// P and dS pass through shared memory, because each product is partitioned among the warps
// differently.
#pragma once

#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/device/reduce.cuh"
#include "backends/cuda/sm80/bwd/scores.cuh"
#include "backends/cuda/sm80/store.cuh"

namespace headrace::cuda::sm80::bwd {

template <class T, bool kIsGeneral, class Shape>
class Backward {
  using Grads = ScoreGrads<T, kIsGeneral, Shape>;
  using QBlock = typename Grads::QBlock;
  using Scores = typename Grads::Scores;
  static constexpr Tile kTile = Grads::kTile;
  static constexpr SmemPlan kSmem = Grads::kSmem;
  static constexpr bool kIsFloat = Grads::kIsFloat;
  static constexpr int kDim = Grads::kDim, kRows = Grads::kRows, kKeys = Grads::kKeys;
  static constexpr int kRowBytes = Grads::kRowBytes, kScoreBytes = Grads::kScoreBytes;
  // A warp's part of dK and dV, and of dQ.
  static constexpr int kKeyColumnWarps = kTile.warps / kTile.key_warps;
  static constexpr int kWarpKeys = kKeys / kTile.key_warps, kKeyBlocks = kWarpKeys / 16;
  static constexpr int kKeyColumns = kDim / kKeyColumnWarps, kKeyColumnBlocks = kKeyColumns / 8;
  static constexpr int kRowColumnWarps = kTile.warps / kTile.row_warps;
  static constexpr int kWarpRows = kRows / kTile.row_warps, kRowBlocks = kWarpRows / 16;
  static constexpr int kRowColumns = kDim / kRowColumnWarps;
  // Columns of dQ at a time; float has no registers for more than 32.
  static constexpr int kColumns = kIsFloat && kRowColumns > 32 ? 32 : kRowColumns;
  static constexpr int kElementBytes = static_cast<int>(sizeof(T));
  using DkDvAccum = float[kKeyBlocks][kKeyColumnBlocks][4];
  using DqAccum = float[kRowBlocks][kColumns / 8][4];

 public:
  __device__ explicit Backward(const Params& c) : c_(c), grads_(c.grads) {}

  __device__ void run(std::int64_t work_idx) {
    // With dq_semaphores a CTA waits only for CTAs that have started: tile_counter hands out work
    // tiles in the order in which CTAs start.
    if (threadIdx.x == 0)
      decode_work_tile(c_, kTile,
                       c_.dq_semaphores == nullptr ? work_idx : atomicAdd(c_.tile_counter, 1u),
                       grads_.work());
    __syncthreads();
    if (grads_.work().first_key >= grads_.work().seqlen_k) return;
#pragma unroll
    for (int n = 0; n < kKeyBlocks * kKeyColumnBlocks * 4; ++n)
      dk_[n / 4 / kKeyColumnBlocks][n / 4 % kKeyColumnBlocks][n % 4] =
          dv_[n / 4 / kKeyColumnBlocks][n / 4 % kKeyColumnBlocks][n % 4] = 0.0f;
    if constexpr (kTile.async_warps) {
      mainloop_async_warps();
    } else {
      mainloop();
    }
    __syncthreads();
    store(dk_, c_.grads.scores.params.scale, kSmem.k, c_.dk, c_.grads.sizes.head_dim,
          c_.grads.is_even_k);
    store(dv_, 1.0f, kTile.v_in_registers ? kSmem.q : kSmem.v, c_.dv, c_.grads.sizes.head_dim_v,
          c_.grads.is_even_v);
  }

 private:
  // ---- the main loop
  __device__ __forceinline__ void mainloop() {
    const QueryRange rows = grads_.work().rows;
    if (rows.begin >= rows.end) return;
    const int begin = rows.begin / kRows * kRows, group = c_.grads.group;
    int num_q_blocks = group * ((rows.end - begin + kRows - 1) / kRows);
    QBlock at{grads_.work().kv_head * group, begin, 0};
    grads_.load_keys_and_values();
    grads_.clear_pad_columns();
    grads_.load_q(at);
    grads_.load_dout(at);
    grads_.write_score_rows(at);
    cp_async_commit_group();
#pragma unroll 1
    for (; num_q_blocks > 0; --num_q_blocks) {
      QBlock next{at.head, at.first_row + kRows, (at.stage + 1) % kTile.q_stages};
      if (next.first_row >= grads_.work().rows.end) next = {at.head + 1, begin, next.stage};
      const bool has_next = num_q_blocks > 1;
      // Wait for Q, dO, lse and delta of this q-block.
      cp_async_wait_group<0>();
      __syncthreads();
      if (kTile.q_stages == 2 && has_next) {
        grads_.load_q(next);
        cp_async_commit_group();
      }
      // S = Q K^T and dP = dO V^T become P and dS.
      Scores s, dp;
      grads_.compute_s_dp(at, s, dp);
      grads_.template compute_p_ds<true>(at, s, dp);
      store_scores(s, kSmem.p);
      if constexpr (!kTile.p_ds_alias) store_scores(dp, kSmem.ds);
      // P (and dS) are visible to all warps: dV += P^T dO.
      __syncthreads();
      if (has_next) grads_.write_score_rows(next);
      accumulate_dk_dv(kSmem.p, smem(kSmem.dout), dv_);
      // All warps have read dO and P: load the next dO, and dS may overwrite P.
      __syncthreads();
      if (has_next) {
        grads_.load_dout(next);
        cp_async_commit_group();
      }
      if constexpr (kTile.p_ds_alias) {
        store_scores(dp, kSmem.ds);
        __syncthreads();
      }
      // dQ += dS K in global memory, dK += dS^T Q.
      accumulate_dq(at);
      accumulate_dk_dv(kSmem.ds, grads_.q_of(at.stage), dk_);
      if (c_.dq_semaphores != nullptr) dq_semaphore_release(at);
      if (kTile.q_stages == 1 && has_next) {
        __syncthreads();
        grads_.load_q(next);
        cp_async_commit_group();
      }
      at = next;
    }
  }

  // The same with async_warps. A group of warps owns the same keys in S, dP, dK and dV and syncs
  // once per q-block (named barrier). dQ, two products later, reads what the other groups wrote
  // (scores_full); P and dS are overwritten two products after that (scores_empty).
  __device__ __forceinline__ void mainloop_async_warps() {
    static_assert(!kIsGeneral && kTile.q_stages == 2 && !kTile.p_ds_alias);
    constexpr int kGroups =
        kTile.score_warps < kTile.key_warps ? kTile.score_warps : kTile.key_warps;
    constexpr int kGroup = kTile.warps / kGroups;  // warps per group
    const QueryRange rows = grads_.work().rows;
    if (rows.begin >= rows.end) return;
    const int begin = rows.begin / kRows * kRows, group = c_.grads.group;
    const int num_q_blocks = group * ((rows.end - begin + kRows - 1) / kRows);
    QBlock at{grads_.work().kv_head * group, begin, 0};
    const u32 full = smem(kSmem.barriers), scores_full = full + 16, scores_empty = full + 24;
    if (threadIdx.x == 0) {
      mbarrier_init(full, Grads::kThreads);
      mbarrier_init(full + 8, Grads::kThreads);
      mbarrier_init(scores_full, kTile.warps);
      mbarrier_init(scores_empty, kTile.warps);
    }
    grads_.clear_pad_columns();
    __syncthreads();
    grads_.load_keys_and_values();
    issue_loads(at, full);
#pragma unroll 1
    for (int i = 0; i < num_q_blocks; ++i) {
      QBlock next{at.head, at.first_row + kRows, at.stage ^ 1};
      if (next.first_row >= grads_.work().rows.end) next = {at.head + 1, begin, next.stage};
      // Wait for Q, dO, lse and delta of this q-block.
      mbarrier_wait(full + 8 * at.stage, i >> 1 & 1);
      // S = Q K^T and dP = dO V^T become P and dS.
      Scores s, dp;
      grads_.compute_s_dp(at, s, dp);
      grads_.template compute_p_ds<true>(at, s, dp);
      // Wait until all warps have finished the previous q-block: its P and dS are overwritten, and
      // its stage of Q and dO is refilled.
      if (i > 0) mbarrier_wait(scores_empty, (i - 1) & 1);
      store_scores(s, kSmem.p);
      store_scores(dp, kSmem.ds);
      arrive(scores_full);
      if (i + 1 < num_q_blocks) issue_loads(next, full + 8 * next.stage);
      // P and dS of this group's keys are visible: dV += P^T dO and dK += dS^T Q.
      bar_sync(1 + warp() / kGroup, 32 * kGroup);
      accumulate_dk_dv(kSmem.p, grads_.dout_of(at.stage), dv_);
      if constexpr (!kTile.dq_first) accumulate_dk_dv(kSmem.ds, grads_.q_of(at.stage), dk_);
      // Wait for dS of the other groups: dQ += dS K in global memory.
      mbarrier_wait(scores_full, i & 1);
      accumulate_dq(at);
      if constexpr (kTile.dq_first) accumulate_dk_dv(kSmem.ds, grads_.q_of(at.stage), dk_);
      if (c_.dq_semaphores != nullptr) dq_semaphore_release(at);
      arrive(scores_empty);
      at = next;
    }
    __syncthreads();
    if (threadIdx.x == 0)
      for (int n = 0; n < 4; ++n) mbarrier_inval(full + 8 * n);
  }
  __device__ __forceinline__ void issue_loads(const QBlock& at, u32 barrier) const {
    grads_.load_q(at);
    grads_.load_dout(at);
    if (c_.grads.is_aligned) {
      cp_async_mbarrier_arrive_noinc(barrier);
    } else {
      cp_async_wait_group<0>();
      mbarrier_arrive(barrier);
    }
  }
  // One arrival for the whole warp.
  __device__ __forceinline__ void arrive(u32 barrier) const {
    __syncwarp();
    if (lane() == 0) mbarrier_arrive(barrier);
  }

  // Stores fragments of P or dS to shared memory, rounded to T.
  __device__ __forceinline__ void store_scores(const Scores& from, int to) const {
    constexpr int kChunkKeys = 16 / kElementBytes;
    const int t = lane() & 3;
#pragma unroll
    for (int n = 0; n < 2 * Grads::kRowBlocks; ++n) {
      const int row = Grads::warp_row() + 8 * n + (lane() >> 2);
#pragma unroll
      for (int j = 0; j < Grads::kKeyBlocks; ++j) {
        const int key = Grads::warp_key() + 8 * j + 2 * t;
        const int chunk = key / kChunkKeys ^ SwizzleRows::of(row);
        unsigned char* at =
            dynamic_smem + to + row * kScoreBytes + chunk * 16 + key % kChunkKeys * kElementBytes;
        const float x = from[n / 2][j][n % 2 * 2], y = from[n / 2][j][n % 2 * 2 + 1];
        if constexpr (kIsFloat) {
          *reinterpret_cast<float2*>(at) = {x, y};
        } else {
          *reinterpret_cast<u32*>(at) = MmaOps<T>::pack(x, y);
        }
      }
    }
  }

  // sums += W^T X: W is P or dS, X is dO or Q.
  __device__ __forceinline__ void accumulate_dk_dv(int weights, u32 rows, DkDvAccum& sums) const {
    constexpr int kMmaSteps = kRows * kElementBytes / 32;
    const TransposedOperand<T, kScoreBytes> w(smem(weights), warp() / kKeyColumnWarps * kWarpKeys,
                                              lane());
    const TransposedOperand<T, kRowBytes> x(rows, warp() % kKeyColumnWarps * kKeyColumns, lane());
    TileGemm<T, kKeyBlocks, kKeyColumnBlocks, kMmaSteps>::add(
        [&](int step, int block, u32(&a)[4]) { w.load_a(step, block, a); },
        [&](int step, int pair, u32(&b)[4]) { x.load_b(step, pair, b); }, sums);
  }

  // dQ of the q-block, added to dq_accum.
  __device__ __forceinline__ void accumulate_dq(const QBlock& at) const {
    const int row = warp() / kRowColumnWarps * kWarpRows;
    const int first_column = warp() % kRowColumnWarps * kRowColumns;
#pragma unroll
    for (int column = 0; column < kRowColumns; column += kColumns) {
      DqAccum sums = {};
      multiply_keys(row, first_column + column, sums);
      if (column == 0 && c_.dq_semaphores != nullptr) dq_semaphore_wait(at);
      if (c_.dq_accum_cols == kDim) {
        reduce<true>(at, row, first_column + column, sums);
      } else {
        reduce<false>(at, row, first_column + column, sums);
      }
    }
  }
  // sums += dS K.
  __device__ __forceinline__ void multiply_keys(int row, int column, DqAccum& sums) const {
    constexpr int kMmaSteps = kKeys * kElementBytes / 32;
    const PermutedOperand<T, kScoreBytes> ds(smem(kSmem.ds) + static_cast<u32>(row * kScoreBytes),
                                             lane());
    const TransposedOperand<T, kRowBytes> k(smem(kSmem.k), column, lane());
    TileGemm<T, kRowBlocks, kColumns / 8, kMmaSteps>::add(
        [&](int step, int block, u32(&a)[4]) { ds.load_a(step, block, a); },
        [&](int step, int pair, u32(&b)[4]) { k.load_b(step, pair, b); }, sums);
  }

  // A block of 8 rows x 16 columns is 128 floats in lane order.
  template <bool kIsFullWidth>
  __device__ __forceinline__ void reduce(const QBlock& at, int row, int column,
                                         const DqAccum& sums) const {
    const std::int64_t blocks = kIsFullWidth ? kDim / 16 : c_.dq_accum_cols / 16;  // of a row
    float* to = c_.dq_accum +
                ((grads_.padded_offset_of(at) + row) / 8 * blocks + column / 16) * 128 + 4 * lane();
#pragma unroll
    for (int n = 0; n < 2 * kRowBlocks; ++n) {
      float* block = to + n * blocks * 128;
#pragma unroll
      for (int j = 0; j < kColumns / 8; j += 2) {
        const float(&x)[4] = sums[n / 2][j];
        const float(&y)[4] = sums[n / 2][j + 1];
        if (kIsFullWidth || column + 8 * j < c_.dq_accum_cols)
          red_add_v4_f32(block + 64 * j, x[n % 2 * 2], x[n % 2 * 2 + 1], y[n % 2 * 2],
                         y[n % 2 * 2 + 1]);
      }
    }
  }

  // Deterministic dQ: key tiles add to a q-block in order, from the last one that it sees to the
  // first. With a causal mask the last key tile starts with these rows, and the others reach them
  // in this order. A warp owns the same part of dQ in every CTA: it waits only for its own
  // semaphore, and releases it at the end of the iteration, when its additions have completed
  // without a wait.
  __device__ __forceinline__ u32* dq_semaphore_of(const QBlock& at) const {
    return c_.dq_semaphores + grads_.padded_offset_of(at) / kRows * kTile.warps + warp();
  }
  __device__ __forceinline__ u32 dq_semaphore_turn(const QBlock& at) const {
    const WorkTile& x = grads_.work();
    return static_cast<u32>(last_key_tile(x.band, kTile, at.first_row, x.seqlen_q, x.seqlen_k) -
                            x.key_tile);
  }
  __device__ void dq_semaphore_wait(const QBlock& at) const {
    if (lane() == 0)
      while (ld_acquire(dq_semaphore_of(at)) != dq_semaphore_turn(at)) __nanosleep(64);
    __syncwarp();
  }
  __device__ void dq_semaphore_release(const QBlock& at) const {
    __threadfence();
    __syncwarp();
    if (lane() == 0) st_release(dq_semaphore_of(at), dq_semaphore_turn(at) + 1);
  }

  // ---- results
  // 16-bit rows are staged in shared memory, which is free by now, and stored in whole 16-byte
  // chunks.
  __device__ __forceinline__ void store(const DkDvAccum& sums, float factor, int through,
                                        const Operand& to, std::int64_t dim, bool is_even) const {
    const int first_row = warp() / kKeyColumnWarps * kWarpKeys + (lane() >> 2);
    const int first_column = warp() % kKeyColumnWarps * kKeyColumns;
    const int num_keys = grads_.work().seqlen_k - grads_.work().first_key;
    T* data =
        static_cast<T*>(to.data) +
        row_offset(to, grads_.work().batch_idx,
                   grads_.work().sequence.row_k + grads_.work().first_key, grads_.work().kv_head);
#pragma unroll
    for (int n = 0; n < 2 * kKeyBlocks; ++n) {
      const int row = first_row + 8 * n;
#pragma unroll
      for (int c = 0; c < kKeyColumnBlocks; ++c) {
        // Adding +0 turns -0 into +0.
        const float x = fmaf(sums[n / 2][c][n % 2 * 2], factor, 0.0f);
        const float y = fmaf(sums[n / 2][c][n % 2 * 2 + 1], factor, 0.0f);
        const int column = first_column + 8 * c + 2 * (lane() & 3);
        if constexpr (kIsFloat) {
          if (row < num_keys) store_floats(data + row * to.stride_seq, dim, column, x, y, is_even);
        } else {
          const int chunk = column / 8 ^ SwizzleRows::of(row);
          *reinterpret_cast<u32*>(dynamic_smem + through + row * kRowBytes + chunk * 16 +
                                  column % 8 * 2) = MmaOps<T>::pack(x, y);
        }
      }
    }
    if constexpr (!kIsFloat) {
      constexpr int kCopied = kKeys / kTile.warps;
      const int row = warp() * kCopied + lane();
      __syncthreads();
      copy_rows<T, kDim, kCopied>(
          dynamic_smem + through + warp() * kCopied * kRowBytes, data, row * to.stride_seq,
          __ballot_sync(Grads::kFullMask, lane() < kCopied && row < num_keys), dim, is_even);
    }
  }

  const Params& c_;
  Grads grads_;
  DkDvAccum dk_, dv_;
};

template <class T, bool kIsGeneral, class Shape>
__global__ void __launch_bounds__(Shape::kTile.threads(), Shape::kTile.min_ctas)
    backward(const __grid_constant__ Params params) {
  for (std::int64_t work_idx = blockIdx.x; work_idx < params.order.num_tiles();
       work_idx += gridDim.x) {
    Backward<T, kIsGeneral, Shape>(params).run(work_idx);
    __syncthreads();
  }
}

}  // namespace headrace::cuda::sm80::bwd
