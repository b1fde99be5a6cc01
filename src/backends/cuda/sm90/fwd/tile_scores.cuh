// Scores of a consumer's 64 rows and a step's keys: from products to what the softmax takes.
#pragma once

#include "backends/cuda/sm90/fwd/dropout_masks.cuh"
#include "backends/cuda/sm90/fwd/epilogue.cuh"

namespace headrace::cuda::sm90 {

template <Tile kTile, class Element, ScoreMod kScoreMod>
class TileScores : public Epilogue<kTile, Element, kScoreMod> {
 public:
  using Base = Epilogue<kTile, Element, kScoreMod>;
  using typename Base::TileOrigin;

  __device__ __forceinline__ TileScores(const Params& p, const Maps& maps, u32 smem, int group)
      : Base(p, maps, smem, group), scale_log2_(kIsGeneral ? kLog2E : p.scale_log2) {
    if constexpr (kHasSoftcap) softcap_ = softcap_params(p.score_params);
  }

 protected:
  using Base::barrier;
  using Base::group_;
  using Base::group_row;
  using Base::head_of;
  using Base::keys_begin;
  using Base::keys_end;
  using Base::lane_;
  using Base::origin;
  using Base::p_;
  using Base::query_of;
  using Base::sequence_of;
  using Base::smem_;
  using Base::warp_;
  using Base::word;
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr BarrierPlan kBarriers = barrier_plan(kTile);
  static constexpr int kKeys = kTile.keys;
  static constexpr bool kIsGeneral = kScoreMod == ScoreMod::general;
  static constexpr bool kHasAlibi = kScoreMod == ScoreMod::alibi;
  static constexpr bool kHasSoftcap = kScoreMod == ScoreMod::softcap;
  static constexpr bool kHasBias = kScoreMod == ScoreMod::bias;
  static constexpr bool kHasDropout = kScoreMod == ScoreMod::dropout;
  // Rows that are computed again have others than the usual scores, in natural units (capped:
  // log2).
  static constexpr bool kHasExactScores = kHasAlibi || kHasSoftcap || kHasBias;

  // What the scores of the thread's two rows depend on, once a tile. Rows that do not exist take
  // those of one that does.
  __device__ __forceinline__ void load_score_rows(const WorkTile& work) {
    if constexpr (kHasAlibi) make_alibi_rows(work);
    if constexpr (kHasBias)
      if (p_.has_tma_bias != 0) return;
    if constexpr (kHasBias || kIsGeneral) make_score_rows(work);
  }
  __device__ __forceinline__ void make_score_rows(const WorkTile& work) {
    const TileOrigin at = origin(work);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = group_row(r), query = min(at.query + query_of(row), at.queries - 1);
      rows_[r] =
          make_score_row(p_.problem, p_.args, sequence_of(work), at.batch, head_of(at, row), query);
    }
  }
  __device__ __forceinline__ void make_alibi_rows(const WorkTile& work) {
    const TileOrigin at = origin(work);
    const int seqlen_k = word(work, kWordSeqlenK);
    const int shift = p_.is_top_left != 0 ? 0 : seqlen_k - at.queries;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = group_row(r), query = min(query_of(row), at.queries - 1 - at.query);
      const int diagonal = at.query + query + shift;
      const int left = diagonal - keys_begin(work, query),
                right = keys_end(work, query) - 1 - diagonal;
      const float natural = p_.args.alibi_slopes[at.batch * p_.args.alibi_stride_batch +
                                                 head_of(at, row) * p_.args.alibi_stride_head];
      const float slope = natural * kLog2E;
      const int distance = slope >= 0 ? max(0, max(-left, -right)) : max(abs(left), abs(right));
      alibi_.slope[r] = slope;
      alibi_.natural_slope[r] = natural;
      alibi_.max_term[r] = -slope * static_cast<float>(distance);
      alibi_.diagonal[r] = diagonal;
    }
    alibi_.first_diagonal =
        __reduce_min_sync(0xffffffffu, min(alibi_.diagonal[0], alibi_.diagonal[1]));
    alibi_.last_diagonal =
        __reduce_max_sync(0xffffffffu, max(alibi_.diagonal[0], alibi_.diagonal[1]));
  }
  // f(slopes of step n), which are Sloped<mixed?>.
  template <class F>
  __device__ __forceinline__ auto with_alibi(int n, F f) {
    const int first = n * kKeys;
    const bool is_right = first > alibi_.last_diagonal;
    const bool crosses_diagonal = !is_right && first + kKeys - 1 > alibi_.first_diagonal;
    AlibiBlock step;
    step.c = scale_log2_;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int distance = first + 2 * (lane_ & 3) - alibi_.diagonal[r];
      step.slope[r] = is_right ? -alibi_.slope[r] : alibi_.slope[r];
      step.distance[r] = static_cast<float>(distance);
      step.left[r] = columns_below(1 - distance);
    }
    if (crosses_diagonal) [[unlikely]]
      return f(AlibiScores<true>{step});
    return f(AlibiScores<false>{step});
  }
  // The bias that S of step n begins with, in units of products; zeros for exact scores.
  __device__ __forceinline__ void init_with_bias(const WorkTile& work, int n, bool is_exact) {
    if constexpr (!kHasBias) return;
    const float inverse_scale = __frcp_rn(p_.score_params.scale);
    if (is_exact) {
#pragma unroll
      for (float& x : s_) x = 0.0f;
    } else if (p_.has_tma_bias != 0) [[likely]] {
      load_bias_tile();
    } else {
      for_each_bias(work, n, [&](int i, float x) { s_[i] = x; });
    }
    if (is_exact) return;
#pragma unroll
    for (float& x : s_) x *= inverse_scale;
  }
  __device__ __forceinline__ void load_bias_tile() {
    mbarrier_wait(barrier(kBarriers.bias_full + group_), bias_parity_);
    bias_parity_ ^= 1;
    const u32 from = smem_ + kSmem.offset_bias + group_ * kSmem.bias_group + warp_ * 16 * 128;
    int lane = lane_;
    asm volatile("" : "+r"(lane));  // no addresses kept from step to step: there is no register
    const u32 place = swizzle128(static_cast<u32>((lane & 15) * 128 + (lane >> 4) * 16));
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      u32 x[4];
      ldmatrix_x4(x, from + i / 4 * kGroupRows * 128 + (place ^ static_cast<u32>(i % 4 * 32)));
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float2 pair = Element::unpack(x[k]);
        s_[8 * i + 2 * k] = pair.x;
        s_[8 * i + 2 * k + 1] = pair.y;
      }
    }
  }
  // Behind the products of S, which have consumed what take_bias() loaded.
  __device__ __forceinline__ void release_bias(bool is_exact) {
    if constexpr (!kHasBias) return;
    __syncwarp();
    if (!is_exact && p_.has_tma_bias != 0 && lane_ == 0)
      mbarrier_arrive(barrier(kBarriers.bias_empty + group_));
  }
  // f(number of an element, its bias), from memory.
  template <class F>
  __device__ __forceinline__ void for_each_bias(const WorkTile& work, int n, F f) {
    const ScoreOperand& bias = p_.args.bias;
    using Stored = typename Element::Stored;
    const int first = n * kKeys + 2 * (lane_ & 3), count = word(work, kWordSeqlenK) - first;
    if (bias.dtype == DType::f32) {
      for_each_bias_of(static_cast<const float*>(bias.data), first, count, f);
    } else {
      for_each_bias_of(static_cast<const Stored*>(bias.data), first, count, f);
    }
  }
  template <class E, class F>
  __device__ __forceinline__ void for_each_bias_of(const E* from, int first, int count, F f) {
    const std::int64_t stride = p_.args.bias.stride_k;
    const E* row[2] = {from + rows_[0].bias + first * stride,
                       from + rows_[1].bias + first * stride};
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i)  // behind the last key, which is hidden: that one's
      f(i, load_real(row[row_of(i)], min(column_of(i), count - 1) * stride));
  }
  // The accumulators of S in groups of four, as the code for fragments takes them.
  __device__ __forceinline__ auto blocks() -> float (&)[kKeys / 8][4] {
    return reinterpret_cast<float(&)[kKeys / 8][4]>(s_);
  }
  // A bias of pairs of 16 bits is brought while S is multiplied; others are read when S is there.
  __device__ __forceinline__ void prefetch_bias(const WorkTile& work, int n) {
    if constexpr (!kIsGeneral) return;
    has_bias_pairs_ = p_.has_bias_pairs != 0 && (n + 1) * kKeys <= word(work, kWordSeqlenK);
    if (!has_bias_pairs_) return;
    using Stored = typename Element::Stored;
    const std::int64_t key = std::int64_t{n} * kKeys + 2 * (lane_ & 3);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Stored* from = static_cast<const Stored*>(p_.args.bias.data) + rows_[r].bias + key;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
        bias_pairs_[r][j] = __ldg(reinterpret_cast<const u32*>(from + 8 * j));
    }
  }
  // Softcap, ALiBi, bias and masks of row r.
  template <int r>
  __device__ __forceinline__ void apply_general_scores(const WorkTile& work, int n) {
    const Sequence sequence = sequence_of(work);
    const ScoreColumns columns =
        score_columns(std::int64_t{n} * kKeys, lane_ & 3, sequence.seqlen_k);
    float scale = apply_softcap_and_alibi<r>(p_.problem, p_.score_params, sequence, rows_[r],
                                             columns, blocks());
    if (has_bias_pairs_) {
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
        const float2 pair = Element::unpack(bias_pairs_[r][j]);
        s_[4 * j + 2 * r] = fmaf(s_[4 * j + 2 * r], scale, pair.x);
        s_[4 * j + 2 * r + 1] = fmaf(s_[4 * j + 2 * r + 1], scale, pair.y);
      }
      scale = 1;
    } else {
      scale =
          apply_bias<typename Element::Stored, r>(p_.args.bias, rows_[r], columns, scale, blocks());
    }
    if (scale != 1) scale_scores<r>(scale, blocks());
    apply_masks<r>(p_.problem, p_.args, sequence, rows_[r], columns, blocks());
  }
  // Products become scores. True where some row of the tile may not see some key.
  __device__ __forceinline__ bool make_scores(const WorkTile& work, int n) {
    if constexpr (kIsGeneral) {
      apply_general_scores<0>(work, n);
      apply_general_scores<1>(work, n);
    }
    return mask(work, n) || kIsGeneral;
  }
  // For PreciseSoftmax: in units of 1 / exact_to_log2().
  __device__ __forceinline__ void make_exact_scores(const WorkTile& work, int n) {
    const float scale = p_.score_params.scale;
    if constexpr (kHasSoftcap) {
      mask(work, n);
      scale_for_softcap(softcap_, s_);
      const SoftcapScores<true> score{softcap_, visible_};
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) s_[i] = score.exponent(s_[i], 0.0f, i);
      return;
    }
    if constexpr (kHasBias) {
      if (p_.has_tma_bias != 0) make_score_rows(work);
      for_each_bias(work, n, [&](int i, float x) { s_[i] = fmaf(s_[i], scale, x); });
    }
    if constexpr (kHasAlibi) {
      const int first = n * kKeys + 2 * (lane_ & 3);
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        const int distance = abs(first + column_of(i) - alibi_.diagonal[row_of(i)]);
        const float slope = alibi_.natural_slope[row_of(i)];
        s_[i] = fmaf(s_[i], scale, -slope * static_cast<float>(distance));
      }
    }
    make_scores(work, n);
  }
  __device__ __forceinline__ float exact_to_log2() const {
    if constexpr (kHasSoftcap) return 1.0f;
    return kHasExactScores ? kLog2E : scale_log2_;
  }
  // Dropped weights become 0; the row's sum keeps them. With masks that were drawn: where packed.
  __device__ __forceinline__ void apply_dropout_masks(int n) {
    if constexpr (kHasDropout) load_dropout_masks();
    if (!kIsGeneral || p_.score_params.keep_threshold > 0xFFFFu) return;
    apply_dropout<0>(p_.args, p_.score_params, rows_[0], std::int64_t{n} * kKeys, lane_ & 3,
                     blocks());
    apply_dropout<1>(p_.args, p_.score_params, rows_[1], std::int64_t{n} * kKeys, lane_ & 3,
                     blocks());
  }
  __device__ __forceinline__ void load_dropout_masks() {
    mbarrier_wait(barrier(kBarriers.mask_full + dropout_stage_.stage), dropout_stage_.parity);
    const u32 from = smem_ + kSmem.offset_masks + dropout_stage_.stage * kSmem.mask_stage +
                     4 * (group_ * 128 + (threadIdx.x & 127));
    u32 all = 0;
#pragma unroll
    for (int block = 0; block < kKeys / 64; ++block)
      all ^= dropout_masks_[block] = load_shared(from + 4 * 128 * kTile.warpgroups * block);
    __syncwarp();
    const u32 empty = released_behind(all, barrier(kBarriers.mask_empty + dropout_stage_.stage));
    if (lane_ == 0) mbarrier_arrive(empty);
    dropout_stage_.next();
  }
  // By lengths, causal mask and window. False where every row sees every key.
  __device__ __forceinline__ bool mask(const WorkTile& work, int n) {
    if constexpr (kHasSoftcap) visible_[0] = visible_[1] = ~0u;
    if (n >= work.unmasked_begin && n < work.unmasked_end) [[likely]]
      return false;
    const int column = n * kKeys + 2 * (lane_ & 3);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = query_of(group_row(r));
      const u32 visible = columns_below(keys_end(work, query) - column) &
                          ~columns_below(keys_begin(work, query) - column);
      if constexpr (kHasSoftcap) {  // what is hidden has no score before the cap
        visible_[r] = visible;
      } else {
#pragma unroll
        for (int i = 0; i < kKeys / 4; ++i) {
          float& x = s_[4 * (i / 2) + 2 * r + i % 2];
          x = (visible >> i & 1) != 0 ? x : -INFINITY;
        }
      }
    }
    return true;
  }

  const float scale_log2_;  // of a product, or of a general score
  float s_[kKeys / 2];      // products, scores, weights
  ScoreRow rows_[2];
  AlibiRows alibi_;
  SoftcapParams softcap_;
  u32 visible_[2];                 // capped: the keys of the running step that a row sees
  u32 dropout_masks_[kKeys / 64];  // dropped: of the running step
  Ring<kMaskStages> dropout_stage_;
  bool has_bias_pairs_ = false;  // of the running step
  u32 bias_pairs_[2][kKeys / 8];
  u32 bias_parity_ = 0;
};

}  // namespace headrace::cuda::sm90
