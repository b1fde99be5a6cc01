// A tile of P and dS, as every kernel of the backward computes it: P = exp(S - lse) from the scores
// and the lse, dS = P (dP - D) from dP = dO V^T. Fragments are those of the forward: a warp has
// some rows of queries and some keys, in registers.
#pragma once

#include <type_traits>

#include "backends/cuda/common/scores.cuh"
#include "backends/cuda/sm80/bwd/multiply.cuh"
#include "backends/cuda/sm80/bwd/unit.cuh"

namespace headrace::cuda::sm80::bwd {

extern __shared__ __align__(1024) unsigned char backward_memory[];

template <class T, bool kIsGeneral, class Shape>
class ScoreGradients {
 public:
  __device__ explicit ScoreGradients(const BackwardParams& c)
      : c_(c), p_(c.rows.problem), args_(c.rows.args) {}

 protected:
  static constexpr BackwardTile kTile = Shape::kTile;
  static constexpr bool kIsFloat = std::is_same_v<T, float>;
  static constexpr int kDim = kTile.dim, kRows = kTile.rows, kKeys = kTile.keys;
  static constexpr int kThreads = kTile.threads();
  static constexpr BackwardSmem kSmem = backward_smem(kTile, sizeof(T), kIsGeneral);
  static constexpr int kRowBytes = kSmem.row_bytes, kScoreBytes = kSmem.score_bytes;
  static constexpr int kSteps = kRowBytes / 32;  // over the head dim
  static constexpr int kQueryBytes = kRows * kRowBytes;
  // Of a warp.
  static constexpr int kWarpRows = kRows / (kTile.warps / kTile.score_warps);
  static constexpr int kWarpKeys = kKeys / kTile.score_warps;
  static constexpr int kRowBlocks = kWarpRows / 16, kKeyBlocks = kWarpKeys / 8;
  static constexpr unsigned kAll = 0xffffffffu;
  using Mine = Share<T, kDim, kThreads>;
  using Scores = float[kRowBlocks][kKeyBlocks][4];
  static_assert(sizeof(ScoreRow) == kScoreRowBytes && kRowBlocks <= 2);

  // `rows` of a head from first_row on; stage of Q and of the rows' numbers.
  struct Step {
    std::int64_t head;
    int first_row, stage;
  };

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static __device__ __forceinline__ int warp_row() {
    return warp() % (kTile.warps / kTile.score_warps) * kWarpRows;
  }
  static __device__ __forceinline__ int warp_key() {
    return warp() / (kTile.warps / kTile.score_warps) * kWarpKeys;
  }
  static __device__ __forceinline__ u32 smem(int offset) {
    return smem_address(backward_memory) + static_cast<u32>(offset);
  }
  static __device__ __forceinline__ BackwardUnit& unit() {
    return *reinterpret_cast<BackwardUnit*>(backward_memory + kSmem.unit);
  }
  static __device__ __forceinline__ ScoreRow& score_row(int row) {
    return reinterpret_cast<ScoreRow*>(backward_memory + kSmem.score_rows)[row];
  }
  static __device__ __forceinline__ u32 q_of(int stage) {
    return smem(kSmem.q) + static_cast<u32>(stage * kQueryBytes);
  }

  static __device__ __forceinline__ u32 dout_of(int stage) {
    return smem(kSmem.dout) + static_cast<u32>(stage % (kTile.drifts ? 2 : 1) * kQueryBytes);
  }

  // ---- loads
  __device__ __forceinline__ void load(const T* from, std::int64_t stride, std::int64_t dim,
                                       bool is_even, int num_rows, u32 to) const {
    from += Mine::first() * stride + Mine::piece() * Mine::kElements;
    load_tile<T, kDim, kRows, kThreads, SwizzleRows>(to, from, stride, dim, min(num_rows, kRows),
                                                     c_.is_aligned, is_even);
  }
  // Of Q or dO, from the sequence's first row in the first head on.
  __device__ __forceinline__ void load_rows(const void* first, const Operand& x, const Step& at,
                                            std::int64_t dim, bool is_even, u32 to) const {
    const std::int64_t offset = at.head * x.stride_head + at.first_row * x.stride_seq;
    load(static_cast<const T*>(first) + offset, x.stride_seq, dim, is_even,
         unit().seqlen_q - at.first_row, to);
  }
  // Keys by the tile of rows, of which a tile of keys has one or more.
  __device__ void load_keys(const Operand& x, std::int64_t dim, u32 to) const {
    static_assert(kKeys % kRows == 0);
    const int num_keys = unit().seqlen_k - unit().first_key;
#pragma unroll 1
    for (int key = 0; key < kKeys; key += kRows)
      load(static_cast<const T*>(x.data) +
               row_offset(x, unit().batch_idx, unit().sequence.row_k + unit().first_key + key,
                          unit().kv_head),
           x.stride_seq, dim, false, num_keys - key, to + static_cast<u32>(key * kRowBytes));
  }
  // K, and V into registers where they hold it: that comes where Q will be.
  __device__ void load_keys_and_values() {
    load_keys(args_.k, p_.head_dim, smem(kSmem.k));
    load_keys(args_.v, p_.head_dim_v, smem(kTile.holds_v ? kSmem.q : kSmem.v));
    cp_async_commit_group();
    if constexpr (kTile.holds_v) {
      cp_async_wait_group<0>();
      __syncthreads();
      const u32 from = lane_address_two_steps<kRowBytes>(
          smem(kSmem.q) + static_cast<u32>(warp_key() * kRowBytes), lane());
#pragma unroll
      for (int step = 0; step < kSteps; step += 2) ldmatrix_x4(v_[step / 2], at_step(from, step));
      __syncthreads();
    }
  }
  // Zeros where rows of Q and dO are never written: columns that do not exist.
  __device__ void clear_columns() const {
    if (c_.is_even_k && p_.head_dim < kDim)
      clear_pieces<T, kDim, kRows * kTile.q_stages, kThreads, SwizzleRows>(smem(kSmem.q),
                                                                           p_.head_dim);
    if (c_.is_even_v && p_.head_dim_v < kDim)
      clear_pieces<T, kDim, kRows*(kTile.drifts ? 2 : 1), kThreads, SwizzleRows>(smem(kSmem.dout),
                                                                                 p_.head_dim_v);
  }
  __device__ __forceinline__ std::int64_t padded_index_of(const Step& at) const {
    return at.head * unit().head_rows + unit().padded_row + at.first_row;
  }
  // Q, lse and D.
  __device__ __forceinline__ void load_query(const Step& at) const {
    load_rows(unit().q, args_.q, at, p_.head_dim, c_.is_even_k, q_of(at.stage));
    constexpr int kPieces = kRows / 4;
    const int idx = static_cast<int>(threadIdx.x) % kPieces;
    if (threadIdx.x < 2 * kPieces) {
      const bool is_d = threadIdx.x >= kPieces;
      cp_async_cg_16(
          smem(kSmem.numbers) + static_cast<u32>(((2 * at.stage + is_d) * kPieces + idx) * 16),
          (is_d ? c_.rows.delta : c_.rows.lse) + padded_index_of(at) + 4 * idx);
    }
  }
  __device__ __forceinline__ void load_dout(const Step& at) const {
    load_rows(unit().dout, args_.gradients.dout, at, p_.head_dim_v, c_.is_even_v,
              dout_of(at.stage));
  }
  // Rows that do not exist take those of the last one.
  __device__ void write_score_rows(const Step& at) const {
    if constexpr (kIsGeneral) {
      const int row = static_cast<int>(threadIdx.x);
      if (row < kRows)
        score_row(row) = make_score_row(p_, args_, unit().sequence, unit().batch_idx, at.head,
                                        min(at.first_row + row, unit().seqlen_q - 1));
    }
  }

  // d += A B; the warp's keys begin at `keys`.
  template <class Product, class LoadA>
  static __device__ __forceinline__ void multiply_keys(LoadA load_a, u32 keys, Scores& d) {
    if constexpr (kKeyBlocks == 1) {
      const u32 from = lane_address_two_steps<kRowBytes>(keys, lane());
      u32 two_steps[4];
      Product::add(
          load_a,
          [&](int step, int, u32(&b)[4]) {
            if (step % 2 == 0) ldmatrix_x4(two_steps, at_step(from, step));
            b[0] = two_steps[step % 2 * 2];
            b[1] = two_steps[step % 2 * 2 + 1];
          },
          d);
    } else {
      const PlainOperand<kRowBytes> x(keys, lane());
      Product::add(
          load_a, [&](int step, int pair, u32(&b)[4]) { x.load_b(step, pair, b); }, d);
    }
  }

  // ---- the products of scores: S and dP of the warp's rows and keys
  __device__ __forceinline__ void find_products(const Step& at, Scores& s, Scores& dp) const {
    using Product = BackwardProduct<T, kRowBlocks, kKeyBlocks, kSteps>;
    const u32 row = static_cast<u32>(warp_row() * kRowBytes);
    const u32 key = static_cast<u32>(warp_key() * kRowBytes);
#pragma unroll
    for (int n = 0; n < 4 * kRowBlocks * kKeyBlocks; ++n)
      s[n / 4 / kKeyBlocks][n / 4 % kKeyBlocks][n % 4] =
          dp[n / 4 / kKeyBlocks][n / 4 % kKeyBlocks][n % 4] = 0.0f;
    const PlainOperand<kRowBytes> q(q_of(at.stage) + row, lane());
    const PlainOperand<kRowBytes> dout(dout_of(at.stage) + row, lane());
    const auto load_q = [&](int step, int block, u32(&a)[4]) { q.load_a(step, block, a); };
    const auto load_dout = [&](int step, int block, u32(&a)[4]) { dout.load_a(step, block, a); };
    multiply_keys<Product>(load_q, smem(kSmem.k) + key, s);
    if constexpr (kTile.holds_v) {
      Product::add(
          load_dout,
          [&](int step, int, u32(&b)[4]) {
            b[0] = v_[step / 2][step % 2 * 2];
            b[1] = v_[step / 2][step % 2 * 2 + 1];
          },
          dp);
    } else {
      multiply_keys<Product>(load_dout, smem(kSmem.v) + key, dp);
    }
  }

  // ---- S and dP become P (times what dropout multiplies with) and dS, as S and dP
  template <bool kWithSlope>
  __device__ __forceinline__ void find_gradients(const Step& at, Scores& s, Scores& dp) const {
    const int last_row = min(at.first_row + kRows, unit().seqlen_q);
    const bool is_whole =
        at.first_row >= unit().rows.whole_begin && last_row <= unit().rows.whole_end;
    const auto* numbers =
        reinterpret_cast<const float*>(backward_memory + kSmem.numbers) + at.stage * 2 * kRows;
    for_rows<kRowBlocks>([&](auto b, auto half) {
      constexpr int h = half();
      const int row = warp_row() + 16 * b() + 8 * h + (lane() >> 2);
      const float lse = numbers[row], d = numbers[kRows + row];
      [[maybe_unused]] float slope[kKeyBlocks][2], kept[kKeyBlocks][2];
      if constexpr (kIsGeneral) {
        if constexpr (kWithSlope) find_slopes<h>(s[b()], slope);
        find_kept<h>(row, kept);
        const ScoreColumns columns =
            score_columns(unit().first_key + warp_key(), lane() & 3, unit().seqlen_k);
        apply_score_mods<T, h>(p_, args_, c_.score_params, unit().sequence, score_row(row), columns,
                               s[b()]);
      }
      if (!is_whole) hide_keys<h>(at.first_row + row, s[b()]);
#pragma unroll
      for (int n = 0; n < 2 * kKeyBlocks; ++n) {
        float &x = s[b()][n / 2][2 * h + n % 2], &y = dp[b()][n / 2][2 * h + n % 2];
        const float prob = probability(x, lse);
        if constexpr (kIsGeneral) {
          x = prob * kept[n / 2][n % 2];
          y = prob * fmaf(y, kept[n / 2][n % 2], -d);
          if constexpr (kWithSlope) y *= slope[n / 2][n % 2];
        } else {
          x = prob;
          y = prob * (y - d);
        }
      }
    });
  }

  const BackwardParams& c_;
  const Problem& p_;
  const AttentionArgs& args_;

 private:
  // In float the lse is the natural one: to round it again would cost as much as all else.
  __device__ __forceinline__ float probability(float s, float lse) const {
    const float scale = kIsGeneral ? 1.0f : c_.score_params.scale;
    if constexpr (kIsFloat) return ex2_approx_ftz(fmaf(s, scale, -lse) * kLog2E);
    return ex2_approx_ftz(fmaf(s, scale * kLog2E, -lse));
  }

  // 1 - tanh^2 of the scores before the softcap, as 4 e / (1 + e)^2 with e = exp(-2 |x|): where the
  // cap is flat the difference would have no digits left.
  template <int kHalf>
  __device__ __forceinline__ void find_slopes(const float (&s)[kKeyBlocks][4],
                                              float (&slope)[kKeyBlocks][2]) const {
    const bool has_cap = has_softcap(p_);
    const float factor = -2.0f * kLog2E * c_.score_params.scale_over_softcap;
#pragma unroll
    for (int n = 0; n < 2 * kKeyBlocks; ++n) {
      float& x = slope[n / 2][n % 2];
      x = 1.0f;
      if (!has_cap) continue;
      const float e = ex2_approx_ftz(-fabsf(s[n / 2][2 * kHalf + n % 2] * factor));
      x = __fdividef(4.0f * e, (1.0f + e) * (1.0f + e));
    }
  }

  // What dropout multiplies with. Its words are those of 32 keys, of which a warp may have a part.
  template <int kHalf>
  __device__ __forceinline__ void find_kept(int row, float (&kept)[kKeyBlocks][2]) const {
    constexpr int kBlocks = kKeyBlocks < 4 ? 4 : kKeyBlocks;
    const int first_key = unit().first_key + warp_key();
    u32 bits = kAll;
    if (has_dropout(p_)) {
      float all[kBlocks][4];
#pragma unroll
      for (int n = 0; n < 2 * kBlocks; ++n) all[n / 2][2 * kHalf + n % 2] = 1.0f;
      apply_dropout<kHalf>(args_, c_.score_params, score_row(row), first_key - first_key % 32,
                           lane() & 3, all);
      bits = 0;
#pragma unroll
      for (int n = 0; n < 2 * kBlocks; ++n)
        bits |= all[n / 2][2 * kHalf + n % 2] == 0.0f ? 0u : 1u << n;
      bits >>= first_key % 32 / 8 * 2;
    }
#pragma unroll
    for (int n = 0; n < 2 * kKeyBlocks; ++n)
      kept[n / 2][n % 2] = (bits >> n & 1u) != 0 ? c_.score_params.keep_factor : 0.0f;
  }

  template <int kHalf>
  __device__ __forceinline__ void hide_keys(int row, float (&s)[kKeyBlocks][4]) const {
    const int first_key = unit().first_key + warp_key() + 2 * (lane() & 3);
    const int begin = row + unit().band.begin - first_key;
    const int end = min(row + unit().band.end, unit().seqlen_k) - first_key;
#pragma unroll
    for (int j = 0; j < kKeyBlocks; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (8 * j + i < begin || 8 * j + i >= end) s[j][2 * kHalf + i] = -HUGE_VALF;
  }

  u32 v_[kTile.holds_v ? kSteps / 2 : 1][4];
};

}  // namespace headrace::cuda::sm80::bwd
