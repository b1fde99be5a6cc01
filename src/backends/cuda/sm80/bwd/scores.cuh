// P and dS of a tile, shared by the main kernel and dbias: P = exp(S - lse), dS = P (dP - D), with
// S = Q K^T and dP = dO V^T. Fragments are those of the forward: a warp holds some query rows x
// some keys in registers.
#pragma once

#include <type_traits>

#include "backends/cuda/common/scores.cuh"
#include "backends/cuda/sm80/bwd/operands.cuh"
#include "backends/cuda/sm80/bwd/work_tile.cuh"

namespace headrace::cuda::sm80::bwd {

extern __shared__ __align__(1024) unsigned char dynamic_smem[];

__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
__device__ __forceinline__ u32 smem(int offset) {
  return smem_address(dynamic_smem) + static_cast<u32>(offset);
}

template <class T, bool kIsGeneral, class Shape>
class ScoreGrads {
 public:
  __device__ explicit ScoreGrads(const GradParams& params)
      : params_(params), sizes_(params.sizes) {}

  static constexpr Tile kTile = Shape::kTile;
  static constexpr bool kIsFloat = std::is_same_v<T, float>;
  static constexpr int kDim = kTile.dim, kRows = kTile.rows, kKeys = kTile.keys;
  static constexpr int kThreads = kTile.threads();
  static constexpr SmemPlan kSmem = smem_plan(kTile, sizeof(T), kIsGeneral);
  static constexpr int kRowBytes = kSmem.row_bytes, kScoreBytes = kSmem.score_bytes;
  static constexpr int kMmaSteps = kRowBytes / 32;  // over the head dim
  static constexpr int kQueryBytes = kRows * kRowBytes;
  // A warp's part of S and dP.
  static constexpr int kWarpRows = kRows / (kTile.warps / kTile.score_warps);
  static constexpr int kWarpKeys = kKeys / kTile.score_warps;
  static constexpr int kRowBlocks = kWarpRows / 16, kKeyBlocks = kWarpKeys / 8;
  static constexpr unsigned kFullMask = 0xffffffffu;
  using Copy = CopyPartition<T, kDim, kThreads>;
  using Scores = float[kRowBlocks][kKeyBlocks][4];
  static_assert(sizeof(ScoreRow) == kScoreRowBytes && kRowBlocks <= 2);

  // A q-block: kRows rows of a head from first_row on, and the stage of its Q, lse and delta.
  struct QBlock {
    std::int64_t head;
    int first_row, stage;
  };

  static __device__ __forceinline__ int warp_row() {
    return warp() % (kTile.warps / kTile.score_warps) * kWarpRows;
  }
  static __device__ __forceinline__ int warp_key() {
    return warp() / (kTile.warps / kTile.score_warps) * kWarpKeys;
  }
  static __device__ __forceinline__ WorkTile& work() {
    return *reinterpret_cast<WorkTile*>(dynamic_smem + kSmem.work_tile);
  }
  static __device__ __forceinline__ ScoreRow& score_row(int row) {
    return reinterpret_cast<ScoreRow*>(dynamic_smem + kSmem.score_rows)[row];
  }
  static __device__ __forceinline__ u32 q_of(int stage) {
    return smem(kSmem.q) + static_cast<u32>(stage * kQueryBytes);
  }

  static __device__ __forceinline__ u32 dout_of(int stage) {
    return smem(kSmem.dout) + static_cast<u32>(stage % (kTile.async_warps ? 2 : 1) * kQueryBytes);
  }

  // ---- loads
  __device__ __forceinline__ void load(const T* from, std::int64_t stride, std::int64_t dim,
                                       bool is_even, int num_rows, u32 to) const {
    from += Copy::first() * stride + Copy::chunk() * Copy::kElements;
    load_tile<T, kDim, kRows, kThreads, SwizzleRows>(to, from, stride, dim, min(num_rows, kRows),
                                                     params_.is_aligned, is_even);
  }
  // Loads a q-block of Q or dO. `first`: the sequence's first row, head 0.
  __device__ __forceinline__ void load_rows(const void* first, const Operand& x, const QBlock& at,
                                            std::int64_t dim, bool is_even, u32 to) const {
    const std::int64_t offset = at.head * x.stride_head + at.first_row * x.stride_seq;
    load(static_cast<const T*>(first) + offset, x.stride_seq, dim, is_even,
         work().seqlen_q - at.first_row, to);
  }
  // Loads K or V, kRows keys at a time.
  __device__ void load_keys(const Operand& x, std::int64_t dim, u32 to) const {
    static_assert(kKeys % kRows == 0);
    const int num_keys = work().seqlen_k - work().first_key;
#pragma unroll 1
    for (int key = 0; key < kKeys; key += kRows)
      load(static_cast<const T*>(x.data) +
               row_offset(x, work().batch_idx, work().sequence.row_k + work().first_key + key,
                          work().kv_head),
           x.stride_seq, dim, false, num_keys - key, to + static_cast<u32>(key * kRowBytes));
  }
  // Loads K and V. With v_in_registers V passes through the shared memory of Q.
  __device__ void load_keys_and_values() {
    load_keys(params_.k, sizes_.head_dim, smem(kSmem.k));
    load_keys(params_.v, sizes_.head_dim_v, smem(kTile.v_in_registers ? kSmem.q : kSmem.v));
    cp_async_commit_group();
    if constexpr (kTile.v_in_registers) {
      cp_async_wait_group<0>();
      __syncthreads();
      const u32 from = ldmatrix_address_two_steps<kRowBytes>(
          smem(kSmem.q) + static_cast<u32>(warp_key() * kRowBytes), lane());
#pragma unroll
      for (int step = 0; step < kMmaSteps; step += 2)
        ldmatrix_x4(v_[step / 2], advance_swizzled(from, step));
      __syncthreads();
    }
  }
  // Zeroes the padding columns of Q and dO, which the loads never write.
  __device__ void clear_pad_columns() const {
    if (params_.is_even_k && sizes_.head_dim < kDim)
      clear_chunks<T, kDim, kRows * kTile.q_stages, kThreads, SwizzleRows>(smem(kSmem.q),
                                                                           sizes_.head_dim);
    if (params_.is_even_v && sizes_.head_dim_v < kDim)
      clear_chunks<T, kDim, kRows*(kTile.async_warps ? 2 : 1), kThreads, SwizzleRows>(
          smem(kSmem.dout), sizes_.head_dim_v);
  }
  __device__ __forceinline__ std::int64_t padded_offset_of(const QBlock& at) const {
    return at.head * work().head_rows + work().padded_row + at.first_row;
  }
  // Q, lse and delta.
  __device__ __forceinline__ void load_q(const QBlock& at) const {
    load_rows(work().q, params_.q, at, sizes_.head_dim, params_.is_even_k, q_of(at.stage));
    constexpr int kChunks = kRows / 4;
    const int idx = static_cast<int>(threadIdx.x) % kChunks;
    if (threadIdx.x < 2 * kChunks) {
      const bool is_delta = threadIdx.x >= kChunks;
      cp_async_cg_16(smem(kSmem.lse_delta) +
                         static_cast<u32>(((2 * at.stage + is_delta) * kChunks + idx) * 16),
                     (is_delta ? params_.delta : params_.lse) + padded_offset_of(at) + 4 * idx);
    }
  }
  __device__ __forceinline__ void load_dout(const QBlock& at) const {
    load_rows(work().dout, params_.dout, at, sizes_.head_dim_v, params_.is_even_v,
              dout_of(at.stage));
  }
  // Rows past the end take the ScoreRow of the last row.
  __device__ void write_score_rows(const QBlock& at) const {
    if constexpr (kIsGeneral) {
      const int row = static_cast<int>(threadIdx.x);
      if (row < kRows)
        score_row(row) = make_score_row(params_.scores, work().sequence, work().batch_idx, at.head,
                                        min(at.first_row + row, work().seqlen_q - 1));
    }
  }

  // d += A B. `keys`: address of the warp's first key.
  template <class Product, class LoadA>
  static __device__ __forceinline__ void multiply_keys(LoadA load_a, u32 keys, Scores& d) {
    if constexpr (kKeyBlocks == 1) {
      const u32 from = ldmatrix_address_two_steps<kRowBytes>(keys, lane());
      u32 two_steps[4];
      Product::add(
          load_a,
          [&](int step, int, u32(&b)[4]) {
            if (step % 2 == 0) ldmatrix_x4(two_steps, advance_swizzled(from, step));
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

  // ---- S and dP of the warp's rows and keys
  __device__ __forceinline__ void compute_s_dp(const QBlock& at, Scores& s, Scores& dp) const {
    using Product = TileGemm<T, kRowBlocks, kKeyBlocks, kMmaSteps>;
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
    if constexpr (kTile.v_in_registers) {
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

  // ---- turns S into P (times the dropout scale) and dP into dS, in place
  template <bool kWithSoftcapGrad>
  __device__ __forceinline__ void compute_p_ds(const QBlock& at, Scores& s, Scores& dp) const {
    const int last_row = min(at.first_row + kRows, work().seqlen_q);
    const bool is_unmasked =
        at.first_row >= work().rows.unmasked_begin && last_row <= work().rows.unmasked_end;
    const auto* lse_delta =
        reinterpret_cast<const float*>(dynamic_smem + kSmem.lse_delta) + at.stage * 2 * kRows;
    for_rows<kRowBlocks>([&](auto b, auto half) {
      constexpr int h = half();
      const int row = warp_row() + 16 * b() + 8 * h + (lane() >> 2);
      const float lse = lse_delta[row], delta = lse_delta[kRows + row];
      [[maybe_unused]] float softcap_grad[kKeyBlocks][2], dropout_scale[kKeyBlocks][2];
      if constexpr (kIsGeneral) {
        if constexpr (kWithSoftcapGrad) softcap_grads<h>(s[b()], softcap_grad);
        dropout_scales<h>(row, dropout_scale);
        const ScoreColumns columns =
            score_columns(work().first_key + warp_key(), lane() & 3, work().seqlen_k);
        apply_score_mods<T, h>(params_.scores, work().sequence, score_row(row), columns, s[b()]);
      }
      if (!is_unmasked) mask_keys<h>(at.first_row + row, s[b()]);
#pragma unroll
      for (int n = 0; n < 2 * kKeyBlocks; ++n) {
        float &x = s[b()][n / 2][2 * h + n % 2], &y = dp[b()][n / 2][2 * h + n % 2];
        const float prob = probability(x, lse);
        if constexpr (kIsGeneral) {
          x = prob * dropout_scale[n / 2][n % 2];
          y = prob * fmaf(y, dropout_scale[n / 2][n % 2], -delta);
          if constexpr (kWithSoftcapGrad) y *= softcap_grad[n / 2][n % 2];
        } else {
          x = prob;
          y = prob * (y - delta);
        }
      }
    });
  }

 private:
  // With float the lse stays in natural units: the rounding error of a conversion to log2 would be
  // as large as all other errors together.
  __device__ __forceinline__ float probability(float s, float lse) const {
    const float scale = kIsGeneral ? 1.0f : params_.scores.params.scale;
    if constexpr (kIsFloat) return ex2_approx_ftz(fmaf(s, scale, -lse) * kLog2E);
    return ex2_approx_ftz(fmaf(s, scale * kLog2E, -lse));
  }

  // Derivative of the softcap, 1 - tanh^2, computed as 4 e / (1 + e)^2 with e = exp(-2 |x|): in the
  // saturated range the difference would cancel.
  template <int kHalf>
  __device__ __forceinline__ void softcap_grads(const float (&s)[kKeyBlocks][4],
                                                float (&softcap_grad)[kKeyBlocks][2]) const {
    const bool has_cap = params_.scores.params.has_softcap();
    const float factor = -2.0f * kLog2E * params_.scores.params.scale_over_softcap;
#pragma unroll
    for (int n = 0; n < 2 * kKeyBlocks; ++n) {
      float& x = softcap_grad[n / 2][n % 2];
      x = 1.0f;
      if (!has_cap) continue;
      const float e = ex2_approx_ftz(-fabsf(s[n / 2][2 * kHalf + n % 2] * factor));
      x = __fdividef(4.0f * e, (1.0f + e) * (1.0f + e));
    }
  }

  // Dropout scale of each element, 0 or 1 / keep probability. A Philox word covers 32 keys, of
  // which a warp may own a part.
  template <int kHalf>
  __device__ __forceinline__ void dropout_scales(int row,
                                                 float (&dropout_scale)[kKeyBlocks][2]) const {
    constexpr int kBlocks = kKeyBlocks < 4 ? 4 : kKeyBlocks;
    const int first_key = work().first_key + warp_key();
    u32 bits = kFullMask;
    if (params_.scores.params.has_dropout()) {
      float all[kBlocks][4];
#pragma unroll
      for (int n = 0; n < 2 * kBlocks; ++n) all[n / 2][2 * kHalf + n % 2] = 1.0f;
      apply_dropout<kHalf>(params_.scores, score_row(row), first_key - first_key % 32, lane() & 3,
                           all);
      bits = 0;
#pragma unroll
      for (int n = 0; n < 2 * kBlocks; ++n)
        bits |= all[n / 2][2 * kHalf + n % 2] == 0.0f ? 0u : 1u << n;
      bits >>= first_key % 32 / 8 * 2;
    }
#pragma unroll
    for (int n = 0; n < 2 * kKeyBlocks; ++n)
      dropout_scale[n / 2][n % 2] =
          (bits >> n & 1u) != 0 ? params_.scores.params.keep_factor : 0.0f;
  }

  template <int kHalf>
  __device__ __forceinline__ void mask_keys(int row, float (&s)[kKeyBlocks][4]) const {
    const int first_key = work().first_key + warp_key() + 2 * (lane() & 3);
    const int begin = row + work().band.begin - first_key;
    const int end = min(row + work().band.end, work().seqlen_k) - first_key;
#pragma unroll
    for (int j = 0; j < kKeyBlocks; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (8 * j + i < begin || 8 * j + i >= end) s[j][2 * kHalf + i] = -HUGE_VALF;
  }

  const GradParams& params_;
  const Sizes& sizes_;
  u32 v_[kTile.v_in_registers ? kMmaSteps / 2 : 1][4];
};

}  // namespace headrace::cuda::sm80::bwd
