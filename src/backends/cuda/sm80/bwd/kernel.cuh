// Attention backward on mma.sync and cp.async: gradients of q, k and v (Dao, FlashAttention-2,
// 2023, algorithm 2). A CTA takes a tile of keys of one (batch entry, KV head) and walks over the
// rows of all heads of the group: dK and dV stay in its registers, its share of dQ is added to the
// float sums in global memory, in any order or, where bits must not change, when its turn comes.
//
//   S = Q K^T   dP = dO V^T   dV += P^T dO   dQ += dS K   dK += dS^T Q
//
// P and dS go through shared memory, because each product shares its work among the warps in
// another way.
#pragma once

#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/device/reduce.cuh"
#include "backends/cuda/sm80/bwd/scores.cuh"
#include "backends/cuda/sm80/store.cuh"

namespace headrace::cuda::sm80::bwd {

template <class T, bool kIsGeneral, class Shape>
class Gradients : ScoreGradients<T, kIsGeneral, Shape> {
  using Base = ScoreGradients<T, kIsGeneral, Shape>;
  using typename Base::Scores;
  using typename Base::Step;
  static constexpr BackwardTile kTile = Base::kTile;
  static constexpr BackwardSmem kSmem = Base::kSmem;
  static constexpr bool kIsFloat = Base::kIsFloat;
  static constexpr int kDim = Base::kDim, kRows = Base::kRows, kKeys = Base::kKeys;
  static constexpr int kRowBytes = Base::kRowBytes, kScoreBytes = Base::kScoreBytes;
  // A warp's part of dK and dV, and of dQ.
  static constexpr int kKeyColumnWarps = kTile.warps / kTile.key_warps;
  static constexpr int kWarpKeys = kKeys / kTile.key_warps, kKeyBlocks = kWarpKeys / 16;
  static constexpr int kKeyColumns = kDim / kKeyColumnWarps, kKeyColumnBlocks = kKeyColumns / 8;
  static constexpr int kRowColumnWarps = kTile.warps / kTile.row_warps;
  static constexpr int kWarpRows = kRows / kTile.row_warps, kRowBlocks = kWarpRows / 16;
  static constexpr int kRowColumns = kDim / kRowColumnWarps;
  // So many columns of dQ at a time: float has no registers for more.
  static constexpr int kColumns = kIsFloat && kRowColumns > 32 ? 32 : kRowColumns;
  static constexpr int kElementBytes = static_cast<int>(sizeof(T));
  using KeySums = float[kKeyBlocks][kKeyColumnBlocks][4];
  using RowSums = float[kRowBlocks][kColumns / 8][4];
  using Base::args_;
  using Base::c_;
  using Base::lane;
  using Base::p_;
  using Base::smem;
  using Base::unit;
  using Base::warp;

 public:
  using Base::Base;

  __device__ void run(std::int64_t unit_idx) {
    // Who waits for a turn waits for CTAs that have begun: the ticket says in which order they did.
    if (threadIdx.x == 0)
      find_unit(c_, kTile, c_.turns == nullptr ? unit_idx : atomicAdd(c_.ticket, 1u), unit());
    __syncthreads();
    if (unit().first_key >= unit().seqlen_k) return;
#pragma unroll
    for (int n = 0; n < kKeyBlocks * kKeyColumnBlocks * 4; ++n)
      dk_[n / 4 / kKeyColumnBlocks][n / 4 % kKeyColumnBlocks][n % 4] =
          dv_[n / 4 / kKeyColumnBlocks][n / 4 % kKeyColumnBlocks][n % 4] = 0.0f;
    if constexpr (kTile.drifts) {
      walk_apart();
    } else {
      walk_rows();
    }
    __syncthreads();
    store(dk_, static_cast<float>(p_.softmax_scale), kSmem.k, args_.gradients.dk, p_.head_dim,
          c_.is_even_k);
    store(dv_, 1.0f, kTile.holds_v ? kSmem.q : kSmem.v, args_.gradients.dv, p_.head_dim_v,
          c_.is_even_v);
  }

 private:
  // ---- the main loop
  __device__ __forceinline__ void walk_rows() {
    const RowsOfKeys rows = unit().rows;
    if (rows.begin >= rows.end) return;
    const int begin = rows.begin / kRows * kRows, group = static_cast<int>(group_size(p_));
    int num_steps = group * ((rows.end - begin + kRows - 1) / kRows);
    Step at{unit().kv_head * group, begin, 0};
    this->load_keys_and_values();
    this->clear_columns();
    this->load_query(at);
    this->load_dout(at);
    this->write_score_rows(at);
    cp_async_commit_group();
#pragma unroll 1
    for (; num_steps > 0; --num_steps) {
      Step next{at.head, at.first_row + kRows, (at.stage + 1) % kTile.q_stages};
      if (next.first_row >= unit().rows.end) next = {at.head + 1, begin, next.stage};
      const bool has_next = num_steps > 1;
      cp_async_wait_group<0>();
      __syncthreads();
      if (kTile.q_stages == 2 && has_next) {
        this->load_query(next);
        cp_async_commit_group();
      }
      Scores s, dp;
      this->find_products(at, s, dp);
      this->template find_gradients<true>(at, s, dp);
      store_scores(s, kSmem.p);
      if constexpr (!kTile.in_turn) store_scores(dp, kSmem.ds);
      __syncthreads();
      if (has_next) this->write_score_rows(next);
      add_to_keys(kSmem.p, smem(kSmem.dout), dv_);
      __syncthreads();
      if (has_next) {
        this->load_dout(next);
        cp_async_commit_group();
      }
      if constexpr (kTile.in_turn) {
        store_scores(dp, kSmem.ds);
        __syncthreads();
      }
      add_to_rows(at);
      add_to_keys(kSmem.ds, this->q_of(at.stage), dk_);
      if (c_.turns != nullptr) end_turn(at);
      if (kTile.q_stages == 1 && has_next) {
        __syncthreads();
        this->load_query(next);
        cp_async_commit_group();
      }
      at = next;
    }
  }

  // The same where warps drift apart. A group of them has the same keys in S, dP, dK and dV, and
  // meets once a step; what the others wrote is needed for dQ, two products later, and their places
  // two products after that.
  __device__ __forceinline__ void walk_apart() {
    static_assert(!kIsGeneral && kTile.q_stages == 2 && !kTile.in_turn);
    constexpr int kGroups =
        kTile.score_warps < kTile.key_warps ? kTile.score_warps : kTile.key_warps;
    constexpr int kGroup = kTile.warps / kGroups;  // of warps
    const RowsOfKeys rows = unit().rows;
    if (rows.begin >= rows.end) return;
    const int begin = rows.begin / kRows * kRows, group = static_cast<int>(group_size(p_));
    const int num_steps = group * ((rows.end - begin + kRows - 1) / kRows);
    Step at{unit().kv_head * group, begin, 0};
    const u32 filled = smem(kSmem.barriers), written = filled + 16, done = filled + 24;
    if (threadIdx.x == 0) {
      mbarrier_init(filled, Base::kThreads);
      mbarrier_init(filled + 8, Base::kThreads);
      mbarrier_init(written, kTile.warps);
      mbarrier_init(done, kTile.warps);
    }
    this->clear_columns();
    __syncthreads();
    this->load_keys_and_values();
    fill(at, filled);
#pragma unroll 1
    for (int i = 0; i < num_steps; ++i) {
      Step next{at.head, at.first_row + kRows, at.stage ^ 1};
      if (next.first_row >= unit().rows.end) next = {at.head + 1, begin, next.stage};
      mbarrier_wait(filled + 8 * at.stage, i >> 1 & 1);
      Scores s, dp;
      this->find_products(at, s, dp);
      this->template find_gradients<true>(at, s, dp);
      if (i > 0) mbarrier_wait(done, (i - 1) & 1);
      store_scores(s, kSmem.p);
      store_scores(dp, kSmem.ds);
      arrive(written);
      if (i + 1 < num_steps) fill(next, filled + 8 * next.stage);
      bar_sync(1 + warp() / kGroup, 32 * kGroup);
      add_to_keys(kSmem.p, this->dout_of(at.stage), dv_);
      if constexpr (!kTile.dq_first) add_to_keys(kSmem.ds, this->q_of(at.stage), dk_);
      mbarrier_wait(written, i & 1);
      add_to_rows(at);
      if constexpr (kTile.dq_first) add_to_keys(kSmem.ds, this->q_of(at.stage), dk_);
      if (c_.turns != nullptr) end_turn(at);
      arrive(done);
      at = next;
    }
    __syncthreads();
    if (threadIdx.x == 0)
      for (int n = 0; n < 4; ++n) mbarrier_inval(filled + 8 * n);
  }
  __device__ __forceinline__ void fill(const Step& at, u32 barrier) const {
    this->load_query(at);
    this->load_dout(at);
    if (c_.is_aligned) {
      cp_async_mbarrier_arrive_noinc(barrier);
    } else {
      cp_async_wait_group<0>();
      mbarrier_arrive(barrier);
    }
  }
  // For the whole warp.
  __device__ __forceinline__ void arrive(u32 barrier) const {
    __syncwarp();
    if (lane() == 0) mbarrier_arrive(barrier);
  }

  // Fragments of a tile of P or dS, rounded to T.
  __device__ __forceinline__ void store_scores(const Scores& from, int to) const {
    constexpr int kPieceKeys = 16 / kElementBytes;
    const int t = lane() & 3;
#pragma unroll
    for (int n = 0; n < 2 * Base::kRowBlocks; ++n) {
      const int row = Base::warp_row() + 8 * n + (lane() >> 2);
#pragma unroll
      for (int j = 0; j < Base::kKeyBlocks; ++j) {
        const int key = Base::warp_key() + 8 * j + 2 * t;
        const int piece = key / kPieceKeys ^ SwizzleRows::of(row);
        unsigned char* at = backward_memory + to + row * kScoreBytes + piece * 16 +
                            key % kPieceKeys * kElementBytes;
        const float x = from[n / 2][j][n % 2 * 2], y = from[n / 2][j][n % 2 * 2 + 1];
        if constexpr (kIsFloat) {
          *reinterpret_cast<float2*>(at) = {x, y};
        } else {
          *reinterpret_cast<u32*>(at) = Pair<T>::pack(x, y);
        }
      }
    }
  }

  // sums += W^T X: W is P or dS, X is dO or Q.
  __device__ __forceinline__ void add_to_keys(int weights, u32 rows, KeySums& sums) const {
    constexpr int kSteps = kRows * kElementBytes / 32;
    const TransposedOperand<T, kScoreBytes> w(smem(weights), warp() / kKeyColumnWarps * kWarpKeys,
                                              lane());
    const TransposedOperand<T, kRowBytes> x(rows, warp() % kKeyColumnWarps * kKeyColumns, lane());
    BackwardProduct<T, kKeyBlocks, kKeyColumnBlocks, kSteps>::add(
        [&](int step, int block, u32(&a)[4]) { w.load_a(step, block, a); },
        [&](int step, int pair, u32(&b)[4]) { x.load_b(step, pair, b); }, sums);
  }

  // dQ of the tile's rows, into the float sums.
  __device__ __forceinline__ void add_to_rows(const Step& at) const {
    const int row = warp() / kRowColumnWarps * kWarpRows;
    const int first_column = warp() % kRowColumnWarps * kRowColumns;
#pragma unroll
    for (int column = 0; column < kRowColumns; column += kColumns) {
      RowSums sums = {};
      multiply_keys(row, first_column + column, sums);
      if (column == 0 && c_.turns != nullptr) wait_for_turn(at);
      if (c_.rows.dq_accum_cols == kDim) {
        reduce<true>(at, row, first_column + column, sums);
      } else {
        reduce<false>(at, row, first_column + column, sums);
      }
    }
  }
  // sums += dS K.
  __device__ __forceinline__ void multiply_keys(int row, int column, RowSums& sums) const {
    constexpr int kSteps = kKeys * kElementBytes / 32;
    const MeetsTransposed<T, kScoreBytes> ds(smem(kSmem.ds) + static_cast<u32>(row * kScoreBytes),
                                             lane());
    const TransposedOperand<T, kRowBytes> k(smem(kSmem.k), column, lane());
    BackwardProduct<T, kRowBlocks, kColumns / 8, kSteps>::add(
        [&](int step, int block, u32(&a)[4]) { ds.load_a(step, block, a); },
        [&](int step, int pair, u32(&b)[4]) { k.load_b(step, pair, b); }, sums);
  }

  // Blocks of 8 rows and 16 columns are 128 floats in the order of the lanes.
  template <bool kIsWhole>
  __device__ __forceinline__ void reduce(const Step& at, int row, int column,
                                         const RowSums& sums) const {
    const std::int64_t blocks = kIsWhole ? kDim / 16 : c_.rows.dq_accum_cols / 16;  // of a row
    float* to = c_.rows.dq_accum +
                ((this->padded_index_of(at) + row) / 8 * blocks + column / 16) * 128 + 4 * lane();
#pragma unroll
    for (int n = 0; n < 2 * kRowBlocks; ++n) {
      float* block = to + n * blocks * 128;
#pragma unroll
      for (int j = 0; j < kColumns / 8; j += 2) {
        const float(&x)[4] = sums[n / 2][j];
        const float(&y)[4] = sums[n / 2][j + 1];
        if (kIsWhole || column + 8 * j < c_.rows.dq_accum_cols)
          red_add_v4_f32(block + 64 * j, x[n % 2 * 2], x[n % 2 * 2 + 1], y[n % 2 * 2],
                         y[n % 2 * 2 + 1]);
      }
    }
  }

  // Tiles of keys add to a tile of rows from the last one that it sees to the first. Behind a
  // diagonal the last one begins with these rows, and the others arrive in this order. A warp has
  // the same part of a tile's dQ in every CTA: it waits for its own turn alone, and ends it at the
  // end of the step, when its additions have arrived without being waited for.
  __device__ __forceinline__ u32* turn_of(const Step& at) const {
    return c_.turns + this->padded_index_of(at) / kRows * kTile.warps + warp();
  }
  __device__ __forceinline__ u32 my_turn(const Step& at) const {
    const BackwardUnit& x = unit();
    return static_cast<u32>(last_key_tile(x.band, kTile, at.first_row, x.seqlen_q, x.seqlen_k) -
                            x.key_tile);
  }
  __device__ void wait_for_turn(const Step& at) const {
    if (lane() == 0)
      while (ld_acquire(turn_of(at)) != my_turn(at)) __nanosleep(64);
    __syncwarp();
  }
  __device__ void end_turn(const Step& at) const {
    __threadfence();
    __syncwarp();
    if (lane() == 0) st_release(turn_of(at), my_turn(at) + 1);
  }

  // ---- results
  // 16-bit rows go through shared memory, where nothing is needed any more, and from there to
  // global memory by whole pieces.
  __device__ __forceinline__ void store(const KeySums& sums, float factor, int through,
                                        const Operand& to, std::int64_t dim, bool is_even) const {
    const int first_row = warp() / kKeyColumnWarps * kWarpKeys + (lane() >> 2);
    const int first_column = warp() % kKeyColumnWarps * kKeyColumns;
    const int num_keys = unit().seqlen_k - unit().first_key;
    T* data =
        static_cast<T*>(to.data) +
        row_offset(to, unit().batch_idx, unit().sequence.row_k + unit().first_key, unit().kv_head);
#pragma unroll
    for (int n = 0; n < 2 * kKeyBlocks; ++n) {
      const int row = first_row + 8 * n;
#pragma unroll
      for (int c = 0; c < kKeyColumnBlocks; ++c) {
        // Adding +0 gives an exact zero one sign.
        const float x = fmaf(sums[n / 2][c][n % 2 * 2], factor, 0.0f);
        const float y = fmaf(sums[n / 2][c][n % 2 * 2 + 1], factor, 0.0f);
        const int column = first_column + 8 * c + 2 * (lane() & 3);
        if constexpr (kIsFloat) {
          if (row < num_keys) store_floats(data + row * to.stride_seq, dim, column, x, y, is_even);
        } else {
          const int piece = column / 8 ^ SwizzleRows::of(row);
          *reinterpret_cast<u32*>(backward_memory + through + row * kRowBytes + piece * 16 +
                                  column % 8 * 2) = Pair<T>::pack(x, y);
        }
      }
    }
    if constexpr (!kIsFloat) {
      constexpr int kCopied = kKeys / kTile.warps;
      const int row = warp() * kCopied + lane();
      __syncthreads();
      copy_rows<T, kDim, kCopied>(
          backward_memory + through + warp() * kCopied * kRowBytes, data, row * to.stride_seq,
          __ballot_sync(Base::kAll, lane() < kCopied && row < num_keys), dim, is_even);
    }
  }

  KeySums dk_, dv_;
};

template <class T, bool kIsGeneral, class Shape>
__global__ void __launch_bounds__(Shape::kTile.threads(), Shape::kTile.min_ctas)
    backward(const __grid_constant__ BackwardParams params) {
  for (std::int64_t unit = blockIdx.x; unit < params.order.num_units(); unit += gridDim.x) {
    Gradients<T, kIsGeneral, Shape>(params).run(unit);
    __syncthreads();
  }
}

}  // namespace headrace::cuda::sm80::bwd
