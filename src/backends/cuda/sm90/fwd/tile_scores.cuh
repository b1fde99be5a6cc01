// Scores of a consumer's 64 rows and a step's keys: from products to what the softmax takes.
#pragma once

#include "backends/cuda/sm90/fwd/drop_masks.cuh"
#include "backends/cuda/sm90/fwd/store.cuh"

namespace headrace::cuda::sm90 {

template <Tile kTile, class Element, Scores kScores>
class TileScores : public TileStore<kTile, Element, kScores> {
 public:
  using Base = TileStore<kTile, Element, kScores>;
  using typename Base::TilePlace;

  __device__ __forceinline__ TileScores(const Params& p, const Maps& maps, u32 smem, int group)
      : Base(p, maps, smem, group), to_log2_(kIsGeneral ? kLog2E : p.scale_log2) {
    if constexpr (kIsCapped) cap_ = cap_numbers(p.score_params);
  }

 protected:
  using Base::barrier;
  using Base::group_;
  using Base::group_row;
  using Base::head_of;
  using Base::keys_begin;
  using Base::keys_end;
  using Base::lane_;
  using Base::p_;
  using Base::place;
  using Base::query_of;
  using Base::sequence_of;
  using Base::smem_;
  using Base::warp_;
  using Base::word;
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr BarrierPlan kBarriers = barrier_plan(kTile);
  static constexpr int kKeys = kTile.keys;
  static constexpr bool kIsGeneral = kScores == Scores::general;
  static constexpr bool kIsSloped = kScores == Scores::sloped;
  static constexpr bool kIsCapped = kScores == Scores::capped;
  static constexpr bool kIsBiased = kScores == Scores::biased;
  static constexpr bool kIsDropped = kScores == Scores::dropped;
  // Rows that are computed again have others than the usual scores, in natural units (capped:
  // log2).
  static constexpr bool kHasExactScores = kIsSloped || kIsCapped || kIsBiased;

  // What the scores of the thread's two rows depend on, once a tile. Rows that do not exist take
  // those of one that does.
  __device__ __forceinline__ void find_score_rows(const Work& work) {
    if constexpr (kIsSloped) find_slopes(work);
    if constexpr (kIsBiased)
      if (p_.has_bias_boxes != 0) return;
    if constexpr (kIsBiased || kIsGeneral) make_score_rows(work);
  }
  __device__ __forceinline__ void make_score_rows(const Work& work) {
    const TilePlace at = place(work);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = group_row(r), query = min(at.query + query_of(row), at.queries - 1);
      rows_[r] =
          make_score_row(p_.problem, p_.args, sequence_of(work), at.batch, head_of(at, row), query);
    }
  }
  __device__ __forceinline__ void find_slopes(const Work& work) {
    const TilePlace at = place(work);
    const int seqlen_k = word(work, kWordKeys);
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
      sloped_.slope[r] = slope;
      sloped_.natural[r] = natural;
      sloped_.best[r] = -slope * static_cast<float>(distance);
      sloped_.diagonal[r] = diagonal;
    }
    sloped_.first_diagonal =
        __reduce_min_sync(0xffffffffu, min(sloped_.diagonal[0], sloped_.diagonal[1]));
    sloped_.last_diagonal =
        __reduce_max_sync(0xffffffffu, max(sloped_.diagonal[0], sloped_.diagonal[1]));
  }
  // f(slopes of step n), which are Sloped<mixed?>.
  template <class F>
  __device__ __forceinline__ auto with_slopes(int n, F f) {
    const int first = n * kKeys;
    const bool is_right = first > sloped_.last_diagonal;
    const bool is_mixed = !is_right && first + kKeys - 1 > sloped_.first_diagonal;
    SlopedStep step;
    step.c = to_log2_;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int distance = first + 2 * (lane_ & 3) - sloped_.diagonal[r];
      step.slope[r] = is_right ? -sloped_.slope[r] : sloped_.slope[r];
      step.distance[r] = static_cast<float>(distance);
      step.left[r] = columns_below(1 - distance);
    }
    if (is_mixed) [[unlikely]]
      return f(Sloped<true>{step});
    return f(Sloped<false>{step});
  }
  // The bias that S of step n begins with, in units of products; zeros for exact scores.
  __device__ __forceinline__ void begin_with_bias(const Work& work, int n, bool is_exact) {
    if constexpr (!kIsBiased) return;
    const float inverse_scale = __frcp_rn(p_.score_params.scale);
    if (is_exact) {
#pragma unroll
      for (float& x : s_) x = 0.0f;
    } else if (p_.has_bias_boxes != 0) [[likely]] {
      take_bias();
    } else {
      each_bias(work, n, [&](int i, float x) { s_[i] = x; });
    }
    if (is_exact) return;
#pragma unroll
    for (float& x : s_) x *= inverse_scale;
  }
  __device__ __forceinline__ void take_bias() {
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
    if constexpr (!kIsBiased) return;
    __syncwarp();
    if (!is_exact && p_.has_bias_boxes != 0 && lane_ == 0)
      mbarrier_arrive(barrier(kBarriers.bias_empty + group_));
  }
  // f(number of an element, its bias), from memory.
  template <class F>
  __device__ __forceinline__ void each_bias(const Work& work, int n, F f) {
    const ScoreOperand& bias = p_.args.bias;
    using Stored = typename Element::Stored;
    const int first = n * kKeys + 2 * (lane_ & 3), count = word(work, kWordKeys) - first;
    if (bias.dtype == DType::f32) {
      each_bias_of(static_cast<const float*>(bias.data), first, count, f);
    } else {
      each_bias_of(static_cast<const Stored*>(bias.data), first, count, f);
    }
  }
  template <class E, class F>
  __device__ __forceinline__ void each_bias_of(const E* from, int first, int count, F f) {
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
  __device__ __forceinline__ void fetch_bias(const Work& work, int n) {
    if constexpr (!kIsGeneral) return;
    has_bias_pairs_ = p_.has_bias_pairs != 0 && (n + 1) * kKeys <= word(work, kWordKeys);
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
  __device__ __forceinline__ void general_scores_of(const Work& work, int n) {
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
  __device__ __forceinline__ bool make_scores(const Work& work, int n) {
    if constexpr (kIsGeneral) {
      general_scores_of<0>(work, n);
      general_scores_of<1>(work, n);
    }
    return mask(work, n) || kIsGeneral;
  }
  // For PreciseSoftmax: in units of 1 / exact_to_log2().
  __device__ __forceinline__ void make_exact_scores(const Work& work, int n) {
    const float scale = p_.score_params.scale;
    if constexpr (kIsCapped) {
      mask(work, n);
      scale_for_cap(cap_, s_);
      const Capped<true> score{cap_, sees_};
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) s_[i] = score.exponent(s_[i], 0.0f, i);
      return;
    }
    if constexpr (kIsBiased) {
      if (p_.has_bias_boxes != 0) make_score_rows(work);
      each_bias(work, n, [&](int i, float x) { s_[i] = fmaf(s_[i], scale, x); });
    }
    if constexpr (kIsSloped) {
      const int first = n * kKeys + 2 * (lane_ & 3);
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        const int distance = abs(first + column_of(i) - sloped_.diagonal[row_of(i)]);
        const float slope = sloped_.natural[row_of(i)];
        s_[i] = fmaf(s_[i], scale, -slope * static_cast<float>(distance));
      }
    }
    make_scores(work, n);
  }
  __device__ __forceinline__ float exact_to_log2() const {
    if constexpr (kIsCapped) return 1.0f;
    return kHasExactScores ? kLog2E : to_log2_;
  }
  // Dropped weights become 0; the row's sum keeps them. With masks that were drawn: where packed.
  __device__ __forceinline__ void drop(int n) {
    if constexpr (kIsDropped) take_masks();
    if (!kIsGeneral || p_.score_params.keep_threshold > 0xFFFFu) return;
    apply_dropout<0>(p_.args, p_.score_params, rows_[0], std::int64_t{n} * kKeys, lane_ & 3,
                     blocks());
    apply_dropout<1>(p_.args, p_.score_params, rows_[1], std::int64_t{n} * kKeys, lane_ & 3,
                     blocks());
  }
  __device__ __forceinline__ void take_masks() {
    mbarrier_wait(barrier(kBarriers.mask_full + mask_stage_.stage), mask_stage_.parity);
    const u32 from = smem_ + kSmem.offset_masks + mask_stage_.stage * kSmem.mask_stage +
                     4 * (group_ * 128 + (threadIdx.x & 127));
    u32 all = 0;
#pragma unroll
    for (int block = 0; block < kKeys / 64; ++block)
      all ^= masks_[block] = load_shared(from + 4 * 128 * kTile.warpgroups * block);
    __syncwarp();
    const u32 empty = released_behind(all, barrier(kBarriers.mask_empty + mask_stage_.stage));
    if (lane_ == 0) mbarrier_arrive(empty);
    mask_stage_.next();
  }
  // By lengths, causal mask and window. False where every row sees every key.
  __device__ __forceinline__ bool mask(const Work& work, int n) {
    if constexpr (kIsCapped) sees_[0] = sees_[1] = ~0u;
    if (n >= work.full_begin && n < work.full_end) [[likely]]
      return false;
    const int column = n * kKeys + 2 * (lane_ & 3);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = query_of(group_row(r));
      const u32 sees = columns_below(keys_end(work, query) - column) &
                       ~columns_below(keys_begin(work, query) - column);
      if constexpr (kIsCapped) {  // what is hidden has no score before the cap
        sees_[r] = sees;
      } else {
#pragma unroll
        for (int i = 0; i < kKeys / 4; ++i) {
          float& x = s_[4 * (i / 2) + 2 * r + i % 2];
          x = (sees >> i & 1) != 0 ? x : -INFINITY;
        }
      }
    }
    return true;
  }

  const float to_log2_;  // of a product, or of a general score
  float s_[kKeys / 2];   // products, scores, weights
  ScoreRow rows_[2];
  SlopedRows sloped_;
  CapNumbers cap_;
  u32 sees_[2];            // capped: the keys of the running step that a row sees
  u32 masks_[kKeys / 64];  // dropped: of the running step
  Ring<kMaskStages> mask_stage_;
  bool has_bias_pairs_ = false;  // of the running step
  u32 bias_pairs_[2][kKeys / 8];
  u32 bias_parity_ = 0;
};

}  // namespace headrace::cuda::sm90
