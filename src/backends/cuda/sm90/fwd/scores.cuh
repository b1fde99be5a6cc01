// Scores of a consumer's 64 rows and a k-block, and their online softmax: what the kernel of each
// ScoreMod needs. `s` are the accumulators of S; they become scores, then P.
#pragma once

#include "backends/cuda/sm90/element.cuh"
#include "backends/cuda/sm90/fwd/dropout_masks.cuh"
#include "backends/cuda/sm90/fwd/score_policies.cuh"
#include "backends/cuda/sm90/fwd/tile_context.cuh"

namespace headrace::cuda::sm90::fwd {

template <int kCount>
__device__ __forceinline__ void rescale(float (&x)[kCount], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] *= factor[row_of(i)];
}

template <Tile kTile, class Element, ScoreMod kScoreMod>
class Scores {
 public:
  static constexpr int kKeys = kTile.keys;
  static constexpr bool kIsGeneral = kScoreMod == ScoreMod::general;
  static constexpr bool kHasAlibi = kScoreMod == ScoreMod::alibi;
  static constexpr bool kHasSoftcap = kScoreMod == ScoreMod::softcap;
  static constexpr bool kHasBias = kScoreMod == ScoreMod::bias;
  static constexpr bool kHasDropout = kScoreMod == ScoreMod::dropout;
  // Recomputed rows have other scores than the first pass, in natural units (softcap: log2).
  static constexpr bool kHasExactScores = kHasAlibi || kHasSoftcap || kHasBias;
  // Where the products take long enough, the maxima of conditional updates are free, and hostile
  // scores cost nothing: head_dim 256 loses 0.3 % with usual scores. 128 would lose 6 %, V of 128
  // columns with head_dim 192 lost 5 %.
  static constexpr bool kIsLazy =
      Element::kHasFloatRange && (kScoreMod != ScoreMod::plain || kTile.head_dim_v <= 128);
  // Few rows of 256 columns and their producers of pages leave no registers for them.
  static constexpr bool kHasBiasPairs = kIsGeneral && !(kTile.splits_keys && kTile.head_dim > 128);
  using S = float[kKeys / 2];
  using RowSoftmax = Softmax<kKeys, Element::kLog2Scale, Element::kRescaleThreshold>;

  __device__ __forceinline__ explicit Scores(const TileContext<kTile>& ctx)
      : ctx_(ctx), scale_log2_(kIsGeneral ? kLog2E : ctx.p.scale_log2) {
    if constexpr (kHasSoftcap) softcap_ = softcap_params(ctx.p.scores.params);
  }

  // ---- hooks of the main loop, in its order

  // Loads what the scores of the thread's two rows depend on, once a tile. Rows that do not exist
  // use a row that does.
  __device__ __forceinline__ void load_rows(const WorkTile& work) {
    if constexpr (kHasAlibi) load_alibi_rows(work);
    if constexpr (kHasBias)
      if (ctx_.p.has_tma_bias != 0) return;
    if constexpr (kHasBias || kIsGeneral) load_score_rows(work);
  }
  // With a bias S starts as bias / scale; zeros for exact scores.
  __device__ __forceinline__ void init_s(S& s, const WorkTile& work, int n, bool is_exact) {
    if constexpr (!kHasBias) return;
    const float inverse_scale = __frcp_rn(ctx_.p.scores.params.scale);
    if (is_exact) {
#pragma unroll
      for (float& x : s) x = 0.0f;
    } else if (ctx_.p.has_tma_bias != 0) [[likely]] {
      load_tma_bias(s);
    } else {
      for_each_bias(work, n, [&](int i, float x) { s[i] = x; });
    }
    if (is_exact) return;
#pragma unroll
    for (float& x : s) x *= inverse_scale;
  }
  // Behind the wgmmas of S, which have consumed what load_tma_bias() loaded.
  __device__ __forceinline__ void release_bias(bool is_exact) {
    if constexpr (!kHasBias) return;
    __syncwarp();
    if (!is_exact && ctx_.p.has_tma_bias != 0 && ctx_.lane == 0)
      mbarrier_arrive(ctx_.barrier(kBarriers.bias_empty + ctx_.group));
  }
  // General scores: a bias of aligned pairs of 16 bits is loaded beside the wgmmas of S. Any other
  // bias is loaded after them.
  __device__ __forceinline__ void prefetch_bias(const WorkTile& work, int n) {
    if constexpr (!kHasBiasPairs) return;
    has_bias_pairs_ = ctx_.p.has_bias_pairs != 0 &&
                      (n + 1) * kKeys <= ctx_.info(work, offsetof(TileInfo, seqlen_k));
    if (!has_bias_pairs_) return;
    using Stored = typename Element::Stored;
    const std::int64_t key = std::int64_t{n} * kKeys + 2 * (ctx_.lane & 3);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Stored* from =
          static_cast<const Stored*>(ctx_.p.scores.bias.data) + rows_[r].bias + key;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
        bias_pairs_[r][j] = __ldg(reinterpret_cast<const u32*>(from + 8 * j));
    }
  }
  // S becomes scores. (Those of softcap are masked in the softmax.)
  __device__ __forceinline__ void make_scores(S& s, const WorkTile& work, int n) {
    if constexpr (kIsGeneral) {
      apply_general_scores<0>(s, work, n);
      apply_general_scores<1>(s, work, n);
    }
    if constexpr (!kHasSoftcap)
      if (!sees_every_key(work, n)) [[unlikely]]
        mask(s, work, n);
  }
  // Scores become P: the first k-block of a tile.
  __device__ __forceinline__ void first_softmax(RowSoftmax& softmax, S& s, const WorkTile& work,
                                                int n) {
    if constexpr (kHasAlibi) {
      if constexpr (kIsLazy) {
        with_alibi(n, [&](const auto& alibi) {
          softmax.first_block(s, AlibiMax{scale_log2_, alibi_}, alibi);
        });
      } else {
        add_alibi(s, n);
        softmax.first_block(s, ScaledScores{1.0f}, ScaledScores{1.0f});
      }
    } else if constexpr (kHasSoftcap) {
      scale_for_softcap(softcap_, s);
      find_visible_keys(work, n);
      const SoftcapScores<true> score{softcap_, visible_};
      softmax.first_block(s, score, score);
    } else {
      const ScaledScores score{scale_log2_};
      softmax.first_block(s, score, score);
    }
  }
  // S, with general scores what make_scores() made of it, becomes P: any other k-block. If true, O
  // must be multiplied by `factor`.
  __device__ __forceinline__ bool online_softmax(RowSoftmax& softmax, S& s, const WorkTile& work,
                                                 int n, float (&factor)[2]) {
    if constexpr (kHasAlibi) {
      mask_and_init(softmax, AlibiMax{scale_log2_, alibi_}, s, work, n);
      return alibi_softmax(softmax, s, n, factor);
    } else if constexpr (kHasSoftcap) {
      const bool is_large = scale_for_softcap(softcap_, s);
      if (!sees_every_key(work, n) || __any_sync(0xffffffffu, is_large)) [[unlikely]] {
        find_visible_keys(work, n);
        const SoftcapScores<true> score{softcap_, visible_};
        if (kIsLazy && !sees_every_key(work, n)) softmax.init_max(s, score);
        return update(softmax, score, s, factor);
      }
      return update(softmax, SoftcapScores<false>{softcap_, visible_}, s, factor);
    } else {
      const ScaledScores score{scale_log2_};
      if constexpr (!kIsGeneral) {
        mask_and_init(softmax, score, s, work, n);
      } else if constexpr (kIsLazy) {
        softmax.init_max(s, score);
      }
      return update(softmax, score, s, factor);
    }
  }
  // Zeros dropped elements of P; the row sum keeps them. With masks of the mask warpgroup, only
  // loads those: drop_packed() applies them.
  __device__ __forceinline__ void apply_dropout(S& s, int n) {
    if constexpr (kHasDropout) load_dropout_masks();
    if constexpr (!kIsGeneral || kTile.splits_keys) return;  // few rows have no dropout
    if (!ctx_.p.scores.params.has_dropout()) return;
    const std::int64_t first_key = std::int64_t{n} * kKeys;
    cuda::apply_dropout<0>(ctx_.p.scores, rows_[0], first_key, ctx_.lane & 3, blocks(s));
    cuda::apply_dropout<1>(ctx_.p.scores, rows_[1], first_key, ctx_.lane & 3, blocks(s));
  }
  __device__ __forceinline__ void drop_packed(u32 (&p_frag)[kKeys / 16][4]) const {
    if constexpr (kHasDropout) {
#pragma unroll
      for (int i = 0; i < kKeys / 4; i += i % 16 == 7 ? 9 : 1) {
        u32 first, second;
        expand_bits(dropout_masks_[i / 16], i % 8, first, second);
        p_frag[i / 4][i % 4] &= ~first;
        p_frag[i / 4 + 2][i % 4] &= ~second;
      }
    }
  }

  // ---- recomputed rows
  // Scores for PreciseSoftmax, in units of 1 / exact_to_log2().
  __device__ __forceinline__ void make_exact_scores(S& s, const WorkTile& work, int n) {
    const float scale = ctx_.p.scores.params.scale;
    if constexpr (kHasSoftcap) {
      scale_for_softcap(softcap_, s);
      find_visible_keys(work, n);
      const SoftcapScores<true> score{softcap_, visible_};
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) s[i] = score.exponent(s[i], 0.0f, i);
      return;
    }
    if constexpr (kHasBias) {
      if (ctx_.p.has_tma_bias != 0) load_score_rows(work);
      for_each_bias(work, n, [&](int i, float x) { s[i] = fmaf(s[i], scale, x); });
    }
    if constexpr (kHasAlibi) {
      const int first = n * kKeys + 2 * (ctx_.lane & 3);
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        const int distance = abs(first + column_of(i) - alibi_.diagonal[row_of(i)]);
        const float slope = alibi_.natural_slope[row_of(i)];
        s[i] = fmaf(s[i], scale, -slope * static_cast<float>(distance));
      }
    }
    make_scores(s, work, n);
  }
  __device__ __forceinline__ float exact_to_log2() const {
    if constexpr (kHasSoftcap) return 1.0f;
    return kHasExactScores ? kLog2E : scale_log2_;
  }
  __device__ __forceinline__ float exact_to_natural() const {
    if constexpr (kHasSoftcap) return kLn2;
    return kHasExactScores || kIsGeneral ? 1.0f : ctx_.p.scores.params.scale;
  }

 private:
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr BarrierPlan kBarriers = barrier_plan(kTile);

  // ---- softmax
  template <class Score>
  __device__ __forceinline__ bool update(RowSoftmax& softmax, Score score, S& s,
                                         float (&factor)[2]) {
    if constexpr (!kIsLazy) return softmax.conditional_update(s, score, factor);
    if (!softmax.lazy_update(s, score, factor)) [[likely]]
      return false;
    rescale(s, factor);
    return true;
  }
  __device__ __forceinline__ bool alibi_softmax(RowSoftmax& softmax, S& s, int n,
                                                float (&factor)[2]) {
    if constexpr (!kIsLazy) {
      add_alibi(s, n);
      return softmax.conditional_update(s, ScaledScores{1.0f}, factor);
    }
    const bool moves =
        with_alibi(n, [&](const auto& alibi) { return softmax.lazy_update(s, alibi, factor); });
    if (!moves) [[likely]]
      return false;
    rescale(s, factor);
    return true;
  }

  // ---- masks: lengths, causal mask and window
  // Every row of the tile sees every key of the k-block.
  static __device__ __forceinline__ bool sees_every_key(const WorkTile& work, int n) {
    return n >= work.unmasked_begin && n < work.unmasked_end;
  }
  // The keys that row r sees: bit bit_of(i).
  __device__ __forceinline__ u32 visible_keys_of(const WorkTile& work, int n, int r) const {
    const int column = n * kKeys + 2 * (ctx_.lane & 3);
    const int query = ctx_.query_of(ctx_.group_row(r));
    return columns_below(ctx_.keys_end(work, query) - column) &
           ~columns_below(ctx_.keys_begin(work, query) - column);
  }
  __device__ __forceinline__ void mask(S& s, const WorkTile& work, int n) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const u32 visible = visible_keys_of(work, n, r);
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) {
        float& x = s[4 * (i / 2) + 2 * r + i % 2];
        x = (visible >> i & 1) != 0 ? x : -INFINITY;
      }
    }
  }
  // Masks, and row_max_ref of rows that see their first key here. One branch for both: nvcc 13.0
  // keeps the condition of a second one in a register, from before the products.
  template <class MaxScore>
  __device__ __forceinline__ void mask_and_init(RowSoftmax& softmax, MaxScore max_score, S& s,
                                                const WorkTile& work, int n) const {
    if (sees_every_key(work, n)) [[likely]]
      return;
    mask(s, work, n);
    if constexpr (kIsLazy) softmax.init_max(s, max_score);
  }
  // For softcap, whose masks are applied behind the cap: it would turn -inf into -softcap.
  __device__ __forceinline__ void find_visible_keys(const WorkTile& work, int n) {
    visible_[0] = visible_[1] = ~0u;
    if (sees_every_key(work, n)) return;
    visible_[0] = visible_keys_of(work, n, 0);
    visible_[1] = visible_keys_of(work, n, 1);
  }

  // ---- ALiBi
  __device__ __forceinline__ void load_alibi_rows(const WorkTile& work) {
    const Params& p = ctx_.p;
    const TileOrigin at = ctx_.origin(work);
    const int seqlen_k = ctx_.info(work, offsetof(TileInfo, seqlen_k));
    const int shift = p.tiles.is_top_left != 0 ? 0 : seqlen_k - at.seqlen_q;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = ctx_.group_row(r);
      const int query = min(ctx_.query_of(row), at.seqlen_q - 1 - at.query);
      const int diagonal = at.query + query + shift;
      const int left = diagonal - max(ctx_.keys_begin(work, query), work.k_block_min * kKeys);
      const int right = min(ctx_.keys_end(work, query), work.k_block_max * kKeys) - 1 - diagonal;
      const float natural_slope = alibi_slope(p.scores.alibi, at.batch, ctx_.head_of(at, row));
      const float slope = natural_slope * kLog2E;
      const int distance = slope >= 0 ? max(0, max(-left, -right)) : max(abs(left), abs(right));
      alibi_.slope[r] = slope;
      alibi_.natural_slope[r] = natural_slope;
      alibi_.max_term[r] = -slope * static_cast<float>(distance);
      alibi_.diagonal[r] = diagonal;
    }
    alibi_.first_diagonal =
        __reduce_min_sync(0xffffffffu, min(alibi_.diagonal[0], alibi_.diagonal[1]));
    alibi_.last_diagonal =
        __reduce_max_sync(0xffffffffu, max(alibi_.diagonal[0], alibi_.diagonal[1]));
  }
  // f(AlibiScores<crosses_diagonal?> of k-block n).
  template <class F>
  __device__ __forceinline__ auto with_alibi(int n, F f) {
    const int first = n * kKeys;
    const bool is_right = first > alibi_.last_diagonal;
    const bool crosses_diagonal = !is_right && first + kKeys - 1 > alibi_.first_diagonal;
    AlibiBlock block;
    block.c = scale_log2_;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int distance = first + 2 * (ctx_.lane & 3) - alibi_.diagonal[r];
      block.slope[r] = is_right ? -alibi_.slope[r] : alibi_.slope[r];
      block.distance[r] = static_cast<float>(distance);
      block.left[r] = columns_below(1 - distance);
    }
    if (crosses_diagonal) [[unlikely]]
      return f(AlibiScores<true>{block});
    return f(AlibiScores<false>{block});
  }
  __device__ __forceinline__ void add_alibi(S& s, int n) {
    with_alibi(n, [&](const auto& alibi) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) s[i] = alibi.value(s[i], i);
    });
  }

  // ---- bias
  __device__ __forceinline__ void load_score_rows(const WorkTile& work) {
    const TileOrigin at = ctx_.origin(work);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = ctx_.group_row(r);
      const int query = min(at.query + ctx_.query_of(row), at.seqlen_q - 1);
      rows_[r] = make_score_row(ctx_.p.scores, ctx_.sequence(work), at.batch, ctx_.head_of(at, row),
                                query);
    }
  }
  __device__ __forceinline__ void load_tma_bias(S& s) {
    mbarrier_wait(ctx_.barrier(kBarriers.bias_full + ctx_.group), bias_parity_);
    bias_parity_ ^= 1;
    const u32 from =
        ctx_.smem + kSmem.offset_bias + ctx_.group * kSmem.bias_group + ctx_.warp * 16 * 128;
    int lane = ctx_.lane;
    asm volatile("" : "+r"(lane));  // no addresses kept across k-blocks: there is no register
    const u32 place = swizzle128(static_cast<u32>((lane & 15) * 128 + (lane >> 4) * 16));
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      u32 x[4];
      ldmatrix_x4(x, from + i / 4 * kGroupRows * 128 + (place ^ static_cast<u32>(i % 4 * 32)));
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float2 pair = Element::unpack(x[k]);
        s[8 * i + 2 * k] = pair.x;
        s[8 * i + 2 * k + 1] = pair.y;
      }
    }
  }
  // f(index of an element, its bias), from global memory.
  template <class F>
  __device__ __forceinline__ void for_each_bias(const WorkTile& work, int n, F f) {
    const ScoreOperand& bias = ctx_.p.scores.bias;
    using Stored = typename Element::Stored;
    const int first = n * kKeys + 2 * (ctx_.lane & 3);
    const int count = ctx_.info(work, offsetof(TileInfo, seqlen_k)) - first;
    if (bias.dtype == DType::f32) {
      for_each_bias_of(static_cast<const float*>(bias.data), first, count, f);
    } else {
      for_each_bias_of(static_cast<const Stored*>(bias.data), first, count, f);
    }
  }
  template <class E, class F>
  __device__ __forceinline__ void for_each_bias_of(const E* from, int first, int count, F f) {
    const std::int64_t stride = ctx_.p.scores.bias.stride_k;
    const E* row[2] = {from + rows_[0].bias + first * stride,
                       from + rows_[1].bias + first * stride};
#pragma unroll
    for (int i = 0; i < kKeys / 2;
         ++i)  // beyond the last key, which is masked: the last key's bias
      f(i, load_real(row[row_of(i)], min(column_of(i), count - 1) * stride));
  }

  // ---- general scores: any combination of features
  // The accumulators in groups of four, as common/scores.cuh takes them.
  static __device__ __forceinline__ auto blocks(S& s) -> float (&)[kKeys / 8][4] {
    return reinterpret_cast<float(&)[kKeys / 8][4]>(s);
  }
  // Softcap, ALiBi, bias and masks of row r.
  template <int r>
  __device__ __forceinline__ void apply_general_scores(S& s, const WorkTile& work, int n) {
    const ScoreArgs& args = ctx_.p.scores;
    // With 256 columns the branch costs more registers than the loads.
    const bool reads_lengths = kTile.head_dim > 128 || args.params.has_alibi != 0 ||
                               args.params.has_tree_mask != 0 || args.mask.data != nullptr ||
                               !has_bias_pairs_;
    Sequence sequence{};
    if (reads_lengths) sequence = ctx_.sequence(work);
    const ScoreColumns columns =
        score_columns(std::int64_t{n} * kKeys, ctx_.lane & 3, sequence.seqlen_k);
    float scale = apply_softcap_and_alibi<r>(args.params, sequence, rows_[r], columns, blocks(s));
    if (kHasBiasPairs && has_bias_pairs_) {
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
        const float2 pair = Element::unpack(bias_pairs_[r][j]);
        s[4 * j + 2 * r] = fmaf(s[4 * j + 2 * r], scale, pair.x);
        s[4 * j + 2 * r + 1] = fmaf(s[4 * j + 2 * r + 1], scale, pair.y);
      }
      scale = 1;
    } else {
      scale =
          apply_bias<typename Element::Stored, r>(args.bias, rows_[r], columns, scale, blocks(s));
    }
    if (scale != 1) scale_scores<r>(scale, blocks(s));
    apply_masks<r>(args, sequence, rows_[r], columns, blocks(s));
  }

  // ---- dropout
  __device__ __forceinline__ void load_dropout_masks() {
    mbarrier_wait(ctx_.barrier(kBarriers.mask_full + mask_stage_.stage), mask_stage_.parity);
    const u32 from = ctx_.smem + kSmem.offset_masks + mask_stage_.stage * kSmem.mask_stage +
                     4 * (ctx_.group * 128 + (threadIdx.x & 127));
    u32 all = 0;
#pragma unroll
    for (int block = 0; block < kKeys / 64; ++block)
      all ^= dropout_masks_[block] = load_shared(from + 4 * 128 * kTile.warpgroups * block);
    __syncwarp();
    const u32 empty = released_behind(all, ctx_.barrier(kBarriers.mask_empty + mask_stage_.stage));
    if (ctx_.lane == 0) mbarrier_arrive(empty);
    mask_stage_.next();
  }

  const TileContext<kTile> ctx_;
  const float scale_log2_;  // of S, or of a general score
  ScoreRow rows_[2];
  AlibiRows alibi_;
  SoftcapParams softcap_;
  u32 visible_[2];                 // softcap: the keys of the current k-block that a row sees
  u32 dropout_masks_[kKeys / 64];  // of the current k-block
  Ring<kMaskStages> mask_stage_;
  bool has_bias_pairs_ = false;  // of the current k-block
  u32 bias_pairs_[2][kKeys / 8];
  u32 bias_parity_ = 0;
};

}  // namespace headrace::cuda::sm90::fwd
