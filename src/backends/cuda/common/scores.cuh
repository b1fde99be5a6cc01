// General scores: softcap, ALiBi, bias, bool mask, tree mask and dropout, on accumulator fragments.
// Scale, causal mask, window and sink are plain. The fragments are those of mma.sync and of a
// warp's 16 rows of wgmma: with g = lane / 4 and t = lane % 4, s[j][0] and s[j][1] are columns 8 j
// + 2 t and 8 j + 2 t + 1 of row g, s[j][2] and s[j][3] the same columns of row g + 8.
//
// Feature branches are outside the loops over elements. Nothing depends on the row tile, so the
// bits of a row do not depend on it.
#pragma once

#include "backends/cuda/common/element.cuh"
#include "backends/cuda/common/kernel_args.h"
#include "core/philox.h"

namespace headrace::cuda {

// Per-row inputs of the scores: 40 bytes, for registers or shared memory. Rows past the end take
// the values of a valid row.
struct ScoreRow {
  std::int64_t q_idx;
  std::int64_t bias, mask;  // element offset of key 0
  std::int64_t tree;        // offset of the row's first word
  float alibi_slope;
  std::uint32_t batch_head;  // batch_idx * num_heads + head
};

__device__ inline std::int64_t score_row_offset(const ScoreOperand& x, std::int64_t batch_idx,
                                                std::int64_t head, std::int64_t row) {
  return batch_idx * x.stride_batch + head * x.stride_head + row * x.stride_q;
}

__device__ inline float alibi_slope(const AlibiArgs& args, std::int64_t batch_idx,
                                    std::int64_t head) {
  return args.slopes[batch_idx * args.stride_batch + head * args.stride_head];
}

__device__ inline ScoreRow make_score_row(const ScoreArgs& args, const Sequence& sequence,
                                          std::int64_t batch_idx, std::int64_t head,
                                          std::int64_t q_idx) {
  const std::int64_t row =
      sequence.row_q + q_idx;  // ragged: bias and mask are indexed by packed rows
  ScoreRow x;
  x.q_idx = q_idx;
  x.bias = score_row_offset(args.bias, batch_idx, head, row);
  x.mask = score_row_offset(args.mask, batch_idx, head, row);
  x.tree = batch_idx * args.tree_stride_batch + row * args.tree_stride_q;
  x.alibi_slope = args.params.has_alibi ? alibi_slope(args.alibi, batch_idx, head) : 0.0f;
  x.batch_head = static_cast<std::uint32_t>(batch_idx * args.params.num_heads + head);
  return x;
}

// A thread's columns: its first key and the number of keys from there to the end. Keys past the end
// are not read and their scores are unchanged.
struct ScoreColumns {
  std::int64_t key;
  int count;
};
__device__ __forceinline__ ScoreColumns score_columns(std::int64_t first_key, int lane_in_quad,
                                                      std::int64_t seqlen_k) {
  const std::int64_t key = first_key + 2 * lane_in_quad;
  return {key, static_cast<int>(min(seqlen_k - key, std::int64_t{1} << 30))};
}

// tanh within 3 ulp: below kTanhPolyMax a polynomial (own fit, relative error 3e-9), above it
// 1 - 2 / (exp(2 x) + 1) with the fast exponential and division.
inline constexpr float kTanhPolyMax = 0.6f;
__device__ __forceinline__ float tanh_poly(float x) {
  const float square = x * x;
  float series = fmaf(-0x1.830bfap-8f, square, 0x1.54e018p-6f);
  series = fmaf(series, square, -0x1.b89edap-5f);
  series = fmaf(series, square, 0x1.1109dcp-3f);
  series = fmaf(series, square, -0x1.55553ep-2f);
  return fmaf(series, square * x, x);
}
__device__ __forceinline__ float tanh_exp(float x) {
  const float size = 1.0f - __fdividef(2.0f, __expf(2.0f * fabsf(x)) + 1.0f);
  return copysignf(size, x);
}

// softcap * tanh(scale * x / softcap). Most scores are far below the cap: if all scores of the warp
// are small, the warp skips the exponential. Which formula a score gets depends on its value alone.
template <int kHalf, int kBlocks>
__device__ __forceinline__ void apply_softcap(const ScoreParams& score_params,
                                              float (&s)[kBlocks][4]) {
  bool is_any_large = false;
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float& x = s[j][2 * kHalf + i];
      x *= score_params.scale_over_softcap;
      is_any_large |= !(fabsf(x) < kTanhPolyMax);
    }
  }
  if (!__any_sync(0xffffffffu, is_any_large)) [[likely]] {
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = s[j][2 * kHalf + i];
        x = score_params.softcap * tanh_poly(x);
      }
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float& x = s[j][2 * kHalf + i];
      x = score_params.softcap * (fabsf(x) < kTanhPolyMax ? tanh_poly(x) : tanh_exp(x));
    }
  }
}

// Two adjacent elements.
__device__ inline float2 load_pair(const float* x) { return *reinterpret_cast<const float2*>(x); }
__device__ inline float2 load_pair(const __half* x) {
  return __half22float2(*reinterpret_cast<const __half2*>(x));
}
__device__ inline float2 load_pair(const __nv_bfloat16* x) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(x));
}

// s * scale + bias. kHalf 0: row g; 1: row g + 8.
template <int kHalf, class E, int kBlocks>
__device__ __forceinline__ void add_bias_row(const E* from, std::int64_t stride_k, int count,
                                             float scale, float (&s)[kBlocks][4]) {
  const bool is_paired =
      stride_k == 1 && reinterpret_cast<std::uintptr_t>(from) % (2 * sizeof(E)) == 0;
  if (is_paired) {
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      float2 pair = {0.0f, 0.0f};
      if (8 * j + 1 < count) {
        pair = load_pair(from + 8 * j);
      } else if (8 * j < count) {
        pair.x = load_real(from, 8 * j);
      }
      s[j][2 * kHalf] = fmaf(s[j][2 * kHalf], scale, pair.x);
      s[j][2 * kHalf + 1] = fmaf(s[j][2 * kHalf + 1], scale, pair.y);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float& x = s[j][2 * kHalf + i];
      x = fmaf(x, scale, 8 * j + i < count ? load_real(from, (8 * j + i) * stride_k) : 0.0f);
    }
  }
}

template <int kHalf, int kBlocks>
__device__ __forceinline__ void apply_mask(const std::uint8_t* keep, std::int64_t stride_k,
                                           int count, float (&s)[kBlocks][4]) {
  const bool is_paired = stride_k == 1 && reinterpret_cast<std::uintptr_t>(keep) % 2 == 0;
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    bool keeps[2] = {true, true};
    if (is_paired && 8 * j + 1 < count) {
      const uchar2 pair = *reinterpret_cast<const uchar2*>(keep + 8 * j);
      keeps[0] = pair.x != 0;
      keeps[1] = pair.y != 0;
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (8 * j + i < count) keeps[i] = keep[(8 * j + i) * stride_k] != 0;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (!keeps[i]) s[j][2 * kHalf + i] = -HUGE_VALF;
  }
}

// Key j is visible if bit j - (seqlen_k - seqlen_q) of the query's words is set, or if j is
// smaller.
template <int kHalf, int kBlocks>
__device__ __forceinline__ void apply_tree_mask(const std::uint32_t* words, std::int64_t first_bit,
                                                int count, float (&s)[kBlocks][4]) {
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::int64_t bit = first_bit + 8 * j + i;
      if (8 * j + i < count && bit >= 0 && (words[bit / 32] >> (bit % 32) & 1u) == 0)
        s[j][2 * kHalf + i] = -HUGE_VALF;
    }
  }
}

// Softcap and ALiBi. Returns the scale that is still to be applied: softmax_scale or 1.
template <int kHalf, int kBlocks>
__device__ __forceinline__ float apply_softcap_and_alibi(const ScoreParams& score_params,
                                                         const Sequence& sequence,
                                                         const ScoreRow& row, ScoreColumns columns,
                                                         float (&s)[kBlocks][4]) {
  float scale = score_params.scale;
  if (score_params.has_softcap()) {
    apply_softcap<kHalf>(score_params, s);
    scale = 1;
  }
  if (score_params.has_alibi == 0) return scale;
  const std::int64_t diagonal = row.q_idx + diagonal_shift(score_params.is_top_left != 0,
                                                           sequence.seqlen_q, sequence.seqlen_k);
  const auto distance = static_cast<float>(columns.key - diagonal);
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float& x = s[j][2 * kHalf + i];
      const float slope = row.alibi_slope * fabsf(distance + static_cast<float>(8 * j + i));
      x = fmaf(x, scale, -slope);
    }
  }
  return 1;
}

template <int kHalf, int kBlocks>
__device__ __forceinline__ void scale_scores(float scale, float (&s)[kBlocks][4]) {
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    s[j][2 * kHalf] *= scale;
    s[j][2 * kHalf + 1] *= scale;
  }
}

// A bias is float or T, the dtype of q. Returns the scale that is still to be applied.
template <class T, int kHalf, int kBlocks>
__device__ __forceinline__ float apply_bias(const ScoreOperand& bias, const ScoreRow& row,
                                            ScoreColumns columns, float scale,
                                            float (&s)[kBlocks][4]) {
  if (bias.data == nullptr) return scale;
  const std::int64_t from = row.bias + columns.key * bias.stride_k;
  if (bias.dtype == DType::f32) {
    add_bias_row<kHalf>(static_cast<const float*>(bias.data) + from, bias.stride_k, columns.count,
                        scale, s);
  } else {
    add_bias_row<kHalf>(static_cast<const T*>(bias.data) + from, bias.stride_k, columns.count,
                        scale, s);
  }
  return 1;
}

template <int kHalf, int kBlocks>
__device__ __forceinline__ void apply_masks(const ScoreArgs& args, const Sequence& sequence,
                                            const ScoreRow& row, ScoreColumns columns,
                                            float (&s)[kBlocks][4]) {
  if (args.mask.data != nullptr)
    apply_mask<kHalf>(static_cast<const std::uint8_t*>(args.mask.data) + row.mask +
                          columns.key * args.mask.stride_k,
                      args.mask.stride_k, columns.count, s);
  if (args.params.has_tree_mask)
    apply_tree_mask<kHalf>(args.tree_mask + row.tree,
                           columns.key - (sequence.seqlen_k - sequence.seqlen_q), columns.count, s);
}

// Turns q.k into scores in natural units: scale, softcap, ALiBi, bias, masks.
template <class T, int kHalf, int kBlocks>
__device__ __forceinline__ void apply_score_mods(const ScoreArgs& args, const Sequence& sequence,
                                                 const ScoreRow& row, ScoreColumns columns,
                                                 float (&s)[kBlocks][4]) {
  float scale = apply_softcap_and_alibi<kHalf>(args.params, sequence, row, columns, s);
  scale = apply_bias<T, kHalf>(args.bias, row, columns, scale, s);
  if (scale != 1) scale_scores<kHalf>(scale, s);
  apply_masks<kHalf>(args, sequence, row, columns, s);
}

// Zeroes dropped probabilities. `first_key` is that of the tile, a multiple of 16. The scale of the
// kept ones is applied in the row epilogue.
template <int kHalf, int kBlocks>
__device__ __forceinline__ void apply_dropout(const ScoreArgs& args, const ScoreRow& row,
                                              std::int64_t first_key, int lane_in_quad,
                                              float (&p)[kBlocks][4]) {
  const DropoutRow random{.seed = args.dropout_seed,
                          .offset = args.dropout_offset,
                          .batch_head = row.batch_head,
                          .query = static_cast<std::uint32_t>(row.q_idx)};
  const bool begins_at_16 = first_key % 32 != 0;  // never if the tile has a multiple of 32 keys
  PhiloxWords words;
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    const std::int64_t key = first_key + 8 * j;
    const bool is_begin = (kBlocks % 4 != 0 && begins_at_16 ? j + 2 : j) % 4 == 0;
    if (j == 0 || is_begin)
      words = random.group(key / 64, static_cast<int>(key % 64 / 32), lane_in_quad);
    const std::uint32_t word =
        kBlocks % 4 != 0 && begins_at_16 ? words.word[(j + 2) % 4] : words.word[j % 4];
    if ((word & 0xFFFFu) >= args.params.keep_threshold) p[j][2 * kHalf] = 0.0f;
    if (word >> 16 >= args.params.keep_threshold) p[j][2 * kHalf + 1] = 0.0f;
  }
}

}  // namespace headrace::cuda
