// Attention forward on mma.sync and cp.async (Dao, FlashAttention-2, 2023). A CTA takes a tile of
// rows of one (batch entry, KV head) and loops over k-blocks: S in registers, online softmax, P as
// the A operand of P V. GQA heads are packed: a row is a (query, head of the group) pair, row =
// q_idx * group_size + head_in_group, so that few queries of many heads fill a tile.
// The bits of a row depend only on its own keys: k-blocks begin at multiples of their size, and a
// k-block that a row does not see leaves the row unchanged.
#pragma once

#include <type_traits>

#include "backends/cuda/common/constants.h"
#include "backends/cuda/common/row_epilogue.cuh"
#include "backends/cuda/common/scores.cuh"
#include "backends/cuda/sm80/fwd/load_pages.cuh"
#include "backends/cuda/sm80/fwd/softmax.cuh"
#include "backends/cuda/sm80/mma_tile.cuh"
#include "backends/cuda/sm80/store.cuh"

namespace headrace::cuda::sm80::fwd {

extern __shared__ __align__(1024) unsigned char dynamic_smem[];

template <class T, bool kIsGeneral, bool kReadsPages, class Shape>
class Forward {
  static constexpr Tile kTile = Shape::kTile;
  static constexpr bool kIsFloat = std::is_same_v<T, float>;
  static constexpr int kDim = kTile.dim, kRows = kTile.rows(), kThreads = kTile.threads();
  static constexpr int kKeys = kTile.keys, kKeyBlocks = kKeys / 8;
  static constexpr int kRowBlocks = kTile.row_blocks, kWarpRows = 16 * kRowBlocks;
  static constexpr int kRowBytes = kDim * static_cast<int>(sizeof(T)), kMmaSteps = kRowBytes / 32;
  static constexpr int kOutBlocks = kDim / 8;
  static constexpr SmemPlan kSmem = smem_plan(kTile, sizeof(T), kIsGeneral);
  static constexpr unsigned kFullMask = 0xffffffffu;
  using Mma = TileMma<T, kDim, kRowBlocks, kKeyBlocks>;
  using SwizzleV = typename Mma::SwizzleV;
  using Copy = CopyPartition<T, kDim, kThreads>;
  static_assert(kWarpRows <= 32 && sizeof(ScoreRow) == kScoreRowBytes);

  // P = 2^kPShift exp(s - row max). With f16 the shift keeps small P representable, and sums of P V
  // stay far below the largest float. With bf16 and float a sum of large V may overflow although
  // its mean does not. Such rows are recomputed with smaller P (bf16) or V (float). Rows with a NaN
  // are recomputed too: a genuine NaN is reproduced, but with float an infinite Q or K gives its
  // exact result only in the recompute pass, which does not split it into tf32 parts.
  static constexpr float kPShift = std::is_same_v<T, __half> ? 15.0f : 0.0f;
  static constexpr float kRecomputePShift = -20.0f, kRecomputeVScale = 0x1p-20f;
  static constexpr bool kMayOverflow = !std::is_same_v<T, __half>;

 public:
  __device__ explicit Forward(const Params& c) : c_(c), sizes_(c.split.sizes) {}

  __device__ void run(std::int64_t work_idx) {
    if (threadIdx.x == 0) decode_work_tile(c_, kTile, work_idx, work());
    __syncthreads();
    if (work().num_rows == 0) return;
    find_k_blocks();
    if constexpr (kIsGeneral) write_score_rows();
    clear_pad_columns();
    bool is_complete = false;
#pragma unroll 1
    for (is_recompute_ = false; !is_complete; is_recompute_ = true) {
      mainloop();
      is_complete = epilogue();
    }
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static __device__ __forceinline__ u32 smem(int offset) {
    return smem_address(dynamic_smem) + static_cast<u32>(offset);
  }
  static __device__ __forceinline__ WorkTile& work() {
    return *reinterpret_cast<WorkTile*>(dynamic_smem + kSmem.work_tile);
  }
  static __device__ __forceinline__ ScoreRow& score_row(int row) {
    return reinterpret_cast<ScoreRow*>(dynamic_smem + kSmem.rows)[row];
  }

  // ---- rows and visible keys
  __device__ __forceinline__ RowCoord row_coord(int row) const {
    const int idx = work().first_row + row, query = c_.by_group.divide(idx);
    return {query, idx - query * c_.group};
  }
  __device__ __forceinline__ std::int64_t head_of(const RowCoord& row) const {
    return work().kv_head * c_.group + row.head;
  }
  __device__ __forceinline__ KeySpan visible_span(int q_idx) const {
    const KeyRange x = visible_keys(c_.window, q_idx, work().seqlen_q, work().seqlen_k);
    return {max(static_cast<int>(x.begin), work().split_begin),
            min(static_cast<int>(x.end), work().split_end)};
  }
  // Lane l handles row l of the warp; past the end it takes the last row of the tile.
  __device__ __forceinline__ RowCoord lane_row_coord() const {
    return row_coord(min(warp() * kWarpRows + lane(), work().num_rows - 1));
  }

  // Bounds of visible keys never decrease from row to row: four rows, one per lane, give all.
  __device__ void find_k_blocks() {
    const int num_rows = work().num_rows, first_row = warp() * kWarpRows;
    const int last_row = min(first_row + kWarpRows, num_rows) - 1;
    const int row = lane() == 0   ? 0
                    : lane() == 1 ? num_rows - 1
                    : lane() == 2 ? first_row
                                  : last_row;
    const KeySpan keys = visible_span(row_coord(max(min(row, num_rows - 1), 0)).q_idx);
    const auto begin_of = [&](int from) { return __shfl_sync(kFullMask, keys.begin, from); };
    const auto end_of = [&](int from) { return __shfl_sync(kFullMask, keys.end, from); };
    const auto above = [](int key) { return (key + kKeys - 1) / kKeys; };
    const int first = begin_of(0) / kKeys;
    KBlocks x{begin_of(2) / kKeys - first,
              above(end_of(3)) - first,
              above(begin_of(3)) - first,
              max(end_of(2), 0) / kKeys - first,
              first,
              max(above(end_of(1)) - first, 0)};
    if (first_row >= num_rows || end_of(3) <= begin_of(2)) x.visible_end = 0;
    if (lane() == 0) k_blocks() = x;
    __syncwarp();
  }
  static __device__ __forceinline__ KBlocks& k_blocks() { return work().warps[warp()]; }

  __device__ void write_score_rows() {
    const RowCoord row = lane_row_coord();
    if (lane() < kWarpRows)
      score_row(warp() * kWarpRows + lane()) =
          make_score_row(c_.scores, work().sequence, work().batch_idx, head_of(row), row.q_idx);
    __syncwarp();
  }

  // ---- loads
  // A warp loads its own rows of Q. Lane r holds the offset of row r.
  __device__ void load_q_tile() const {
    constexpr int kChunks = Copy::kChunks;
    const RowCoord mine = lane_row_coord();
    const std::int64_t offset =
        row_offset(c_.q, work().batch_idx, work().sequence.row_q + mine.q_idx, head_of(mine));
    const int num_rows = work().num_rows - warp() * kWarpRows;
    const u32 q_tile = smem(kSmem.q) + static_cast<u32>(warp() * kWarpRows * kRowBytes);
    // body(shared address, global address, valid elements)
    const auto for_chunk = [&](int round, auto body) {
      const int i = 32 * round + lane(), row = i / kChunks, chunk = i % kChunks;
      body(q_tile + static_cast<u32>(row * kRowBytes + (chunk ^ SwizzleRows::of(row)) * 16),
           static_cast<const T*>(c_.q.data) + __shfl_sync(kFullMask, offset, row) +
               chunk * Copy::kElements,
           row < num_rows ? Copy::count_of(sizes_.head_dim, chunk) : 0);
    };
    constexpr int kRounds = kWarpRows * kChunks / 32;
    if (c_.is_aligned) {
#pragma unroll 8
      for (int round = 0; round < kRounds; ++round)
        for_chunk(round, [](u32 to, const T* from, int count) {
          cp_async_cg_16(to, from, count * static_cast<int>(sizeof(T)));
        });
    } else {
#pragma unroll 1
      for (int round = 0; round < kRounds; ++round) for_chunk(round, copy_chunk<T>);
    }
    cp_async_commit_group();
  }
  __device__ __forceinline__ void load_q_fragments(int step, u32 (&q)[kRowBlocks][4]) const {
    const u32 q_tile = smem(kSmem.q) + static_cast<u32>(warp() * kWarpRows * kRowBytes);
    const u32 at = advance_swizzled(ldmatrix_address_rows_first<kRowBytes>(q_tile, lane()), step);
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b)
      ldmatrix_x4(q[b], at + static_cast<u32>(16 * b * kRowBytes));
  }

  static __device__ __forceinline__ int first_key_of(int k_block) {
    return (k_blocks().first_block + k_block) * kKeys;
  }
  __device__ __forceinline__ u32 stage_of(int k_block) const {
    return static_cast<u32>(k_block % kTile.stages * kSmem.tile_bytes);
  }
  template <class Swizzle>
  __device__ __forceinline__ void load_kv(const Operand& x, std::int64_t offset, std::int64_t dim,
                                          bool is_even, int smem_offset, int k_block) const {
    const int key = first_key_of(k_block);
    const u32 to = smem(smem_offset) + stage_of(k_block);
    const T* data = static_cast<const T*>(x.data) + offset + Copy::chunk() * Copy::kElements;
    if (kReadsPages && c_.pages.block_table != nullptr)
      return load_pages<T, kDim, kKeys, kThreads, Swizzle>(to, {data, x, key, dim}, c_, work());
    load_tile<T, kDim, kKeys, kThreads, Swizzle>(
        to, data + (key + Copy::first()) * x.stride_seq, x.stride_seq, dim,
        min(work().seqlen_k - key, kKeys), c_.is_aligned, is_even);
  }
  __device__ __forceinline__ void load_k(int k_block) const {
    load_kv<SwizzleRows>(c_.k, work().k_offset, sizes_.head_dim, c_.is_even_k, kSmem.k, k_block);
  }
  __device__ __forceinline__ void load_v(int k_block) const {
    load_kv<SwizzleV>(c_.v, work().v_offset, sizes_.head_dim_v, c_.is_even_v, kSmem.v, k_block);
  }
  __device__ void clear_pad_columns() const {
    constexpr int kAllKeys = kKeys * kTile.stages;
    if (c_.is_even_k && sizes_.head_dim < kDim)
      clear_chunks<T, kDim, kAllKeys, kThreads, SwizzleRows>(smem(kSmem.k), sizes_.head_dim);
    if (c_.is_even_v && sizes_.head_dim_v < kDim)
      clear_chunks<T, kDim, kAllKeys, kThreads, SwizzleV>(smem(kSmem.v), sizes_.head_dim_v);
  }

  // ---- the main loop
  __device__ __forceinline__ void mainloop() {
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
      for (int n = 0; n < 4 * kOutBlocks; ++n) o_[b][n / 4][n % 4] = 0.0f;
      max_[b][0] = max_[b][1] = -HUGE_VALF;
      sum_[b][0] = sum_[b][1] = 0.0f;
    }
    const int num_blocks = k_blocks().num_blocks;
    if (num_blocks == 0) return;
    load_q_tile();
    load_k(0);
    if constexpr (kTile.stages == 2) load_v(0);
    cp_async_commit_group();
    if constexpr (kTile.q_in_registers) {
      cp_async_wait_group<1>();
      __syncwarp();
#pragma unroll
      for (int step = 0; step < kMmaSteps; ++step) load_q_fragments(step, q_[step]);
    }
#pragma unroll 1
    for (int k_block = 0; k_block < num_blocks; ++k_block) {
      float s[kRowBlocks][kKeyBlocks][4];
      cp_async_wait_group<0>();
      __syncthreads();
      const KBlocks mine = k_blocks();
      // The votes make the conditions warp-uniform for the compiler.
      const bool is_visible =
          __any_sync(kFullMask, k_block >= mine.visible_begin && k_block < mine.visible_end);
      const bool is_unmasked =
          __any_sync(kFullMask, k_block >= mine.unmasked_begin && k_block < mine.unmasked_end);
      if constexpr (kTile.stages == 2) {
        if (k_block + 1 < num_blocks) {
          load_k(k_block + 1);
          load_v(k_block + 1);
        }
        cp_async_commit_group();
        if (is_visible) {
          compute_scores(k_block, s);
          online_softmax(k_block, is_unmasked, s);
        }
      } else {
        load_v(k_block);
        cp_async_commit_group();
        if (is_visible) compute_scores(k_block, s);
        cp_async_wait_group<0>();
        __syncthreads();
        if (k_block + 1 < num_blocks) load_k(k_block + 1);
        cp_async_commit_group();
        if (is_visible) online_softmax(k_block, is_unmasked, s);
      }
      if (is_visible)
        Mma::pv(smem(kSmem.v) + stage_of(k_block), lane(), is_recompute_ ? kRecomputeVScale : 1.0f,
                s, o_);
    }
  }

  __device__ __forceinline__ void compute_scores(int k_block,
                                                 float (&s)[kRowBlocks][kKeyBlocks][4]) const {
    const u32 k_tile = smem(kSmem.k) + stage_of(k_block);
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b)
#pragma unroll
      for (int n = 0; n < 4 * kKeyBlocks; ++n) s[b][n / 4][n % 4] = 0.0f;
    if constexpr (kIsFloat) {
      if (is_recompute_) {
        Mma::qk_fma(smem(kSmem.q) + static_cast<u32>(warp() * kWarpRows * kRowBytes), k_tile,
                    lane(), s);
        return;
      }
    }
    const auto load_q = [&](int step, u32(&q)[kRowBlocks][4]) {
      if constexpr (kTile.q_in_registers) {
#pragma unroll
        for (int n = 0; n < 4 * kRowBlocks; ++n) q[n / 4][n % 4] = q_[step][n / 4][n % 4];
      } else {
        load_q_fragments(step, q);
      }
    };
    Mma::qk(k_tile, lane(), load_q, s);
  }

  // S becomes P; row max, sum and O are updated.
  __device__ __forceinline__ void online_softmax(int k_block, bool is_unmasked,
                                                 float (&s)[kRowBlocks][kKeyBlocks][4]) {
    const int first_key = first_key_of(k_block);
    if constexpr (kIsGeneral) apply_mods(first_key, s);
    if (!is_unmasked) mask_keys(first_key, s);
    float rescale[kRowBlocks][2], row_max_ref[kRowBlocks][2];
    bool is_changed = false, is_large = false;
    for_rows<kRowBlocks>([&](auto b, auto half) {
      const RowMaxUpdate step =
          update_row_max<kIsFloat, half()>(s[b()], scale_log2(), p_shift(), max_[b()][half()]);
      rescale[b()][half()] = step.rescale;
      row_max_ref[b()][half()] = step.row_max_ref;
      is_changed |= step.rescale != 1.0f;
      is_large |= step.is_large;
    });
    if (__any_sync(kFullMask, is_changed)) {  // otherwise all factors are 1
#pragma unroll
      for (int b = 0; b < kRowBlocks; ++b) {
        sum_[b][0] *= rescale[b][0];
        sum_[b][1] *= rescale[b][1];
#pragma unroll
        for (int n = 0; n < 4 * kOutBlocks; ++n) o_[b][n / 4][n % 4] *= rescale[b][n % 4 / 2];
      }
    }
    if (kIsFloat || __any_sync(kFullMask, is_large)) {
      for_rows<kRowBlocks>([&](auto b, auto half) {
        subtract_row_max<kIsFloat, half()>(max_[b()][half()], p_shift(), s[b()],
                                           row_max_ref[b()][half()]);
      });
    }
    const float scale = scale_log2();
    float sum[kRowBlocks][2] = {};
#pragma unroll
    for (int j = 0; j < kKeyBlocks; ++j)  // in the order in which P V consumes them
      for_rows<kRowBlocks>([&](auto b, auto half) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& x = s[b()][j][2 * half() + i];
          x = ex2_approx_ftz(fmaf(x, scale, -row_max_ref[b()][half()]));
          sum[b()][half()] += x;
        }
      });
    for_rows<kRowBlocks>([&](auto b, auto half) { sum_[b()][half()] += sum[b()][half()]; });
    if constexpr (kIsGeneral) drop_probs(first_key, s);
  }

  __device__ __forceinline__ float scale_log2() const {
    return kIsGeneral ? kLog2E : kLog2E * c_.scores.params.scale;
  }
  __device__ __forceinline__ float p_shift() const {
    return std::is_same_v<T, __nv_bfloat16> && is_recompute_ ? kRecomputePShift : kPShift;
  }

  // Causal mask, window, end of the sequence or of the split.
  __device__ __forceinline__ void mask_keys(int first_key,
                                            float (&s)[kRowBlocks][kKeyBlocks][4]) const {
    const KeySpan keys = visible_span(lane_row_coord().q_idx);
    const int begin = max(keys.begin - first_key, 0), end = min(keys.end - first_key, kKeys);
    for_rows<kRowBlocks>([&](auto b, auto half) {
      const int row = 16 * b() + 8 * half() + (lane() >> 2), shift = 2 * (lane() & 3);
      const int from = __shfl_sync(kFullMask, begin, row) - shift;
      const int to = __shfl_sync(kFullMask, end, row) - shift;
#pragma unroll
      for (int j = 0; j < kKeyBlocks; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (8 * j + i < from || 8 * j + i >= to) s[b()][j][2 * half() + i] = -HUGE_VALF;
    });
  }
  __device__ __forceinline__ void apply_mods(std::int64_t first_key,
                                             float (&s)[kRowBlocks][kKeyBlocks][4]) const {
    const ScoreColumns columns = score_columns(first_key, lane() & 3, work().seqlen_k);
    for_rows<kRowBlocks>([&](auto b, auto half) {
      apply_score_mods<T, half()>(c_.scores, work().sequence, score_row(local_row(b(), half())),
                                  columns, s[b()]);
    });
  }
  __device__ __forceinline__ void drop_probs(std::int64_t first_key,
                                             float (&s)[kRowBlocks][kKeyBlocks][4]) const {
    if (!c_.scores.params.has_dropout()) return;
    for_rows<kRowBlocks>([&](auto b, auto half) {
      apply_dropout<half()>(c_.scores, score_row(local_row(b(), half())), first_key, lane() & 3,
                            s[b()]);
    });
  }

  static __device__ __forceinline__ int local_row(int b, int half) {
    return warp() * kWarpRows + 16 * b + 8 * half + (lane() >> 2);
  }

  // ---- epilogue
  // Row statistics: reduced over the quad of a row and moved to the lane of the row.
  struct RowStats {
    float max, sum;
    bool is_finite;
  };
  __device__ __forceinline__ RowStats gather_row_stats() const {
    RowStats mine{0.0f, 0.0f, true};
    for_rows<kRowBlocks>([&](auto b, auto half) {
      float sum = sum_[b()][half()], zeros = 0.0f;  // 0 * Inf and 0 * NaN are NaN
      if (kMayOverflow) {
#pragma unroll
        for (int c = 0; c < kOutBlocks; ++c)
          zeros += 0.0f * (o_[b()][c][2 * half()] + o_[b()][c][2 * half() + 1]);
      }
#pragma unroll
      for (int step = 1; step < 4; step *= 2) {
        sum += __shfl_xor_sync(kFullMask, sum, step);
        zeros += __shfl_xor_sync(kFullMask, zeros, step);
      }
      const int from = 4 * (lane() % 8);
      const float row_max = __shfl_sync(kFullMask, max_[b()][half()], from);
      sum = __shfl_sync(kFullMask, sum, from);
      zeros = __shfl_sync(kFullMask, zeros, from);
      if (lane() / 8 == 2 * b() + half()) mine = {row_max, sum, zeros == 0.0f};
    });
    return mine;
  }

  // False (for all threads) if a row must be recomputed.
  __device__ bool epilogue() {
    const RowStats mine = gather_row_stats();
    const int row = warp() * kWarpRows + lane();
    const bool exists = lane() < kWarpRows && row < work().num_rows;
    const bool is_done = exists && (is_recompute_ ? needs_recompute_ : mine.is_finite);
    needs_recompute_ = exists && !is_recompute_ && !mine.is_finite;
    const unsigned done = __ballot_sync(kFullMask, is_done);
    const float row_max_ref = fmaf(mine.max, scale_log2(), -p_shift());
    const float max_score = kIsGeneral ? mine.max : mine.max * c_.scores.params.scale;
    const float v_factor = kIsFloat && is_recompute_ ? 1.0f / kRecomputeVScale : 1.0f;
    if (work().is_split) {
      store_o_partial(mine.sum == 0.0f ? 0.0f : v_factor / mine.sum,
                      {row_max_ref, mine.sum, max_score, 0.0f}, done);
    } else {
      const RowCoord at = lane_row_coord();
      const std::int64_t head = head_of(at), q_row = work().sequence.row_q + at.q_idx;
      const RowEpilogue end = row_epilogue(c_.split.rows.sinks, c_.scores.params.keep_factor, head,
                                           row_max_ref, mine.sum, max_score);
      if (is_done) store_lse(c_.split.rows.lse, work().batch_idx, head, q_row, end.lse);
      store_rows(end.factor * v_factor, row_offset(c_.split.out, work().batch_idx, q_row, head),
                 done);
    }
    return !kMayOverflow || is_recompute_ || __syncthreads_or(needs_recompute_) == 0;
  }

  // `factor` and `offset` are those of the lane's row; `done`: bit mask of the rows to store.
  // 16-bit rows are staged in the warp's own rows of Q and stored in whole 16-byte chunks.
  __device__ __forceinline__ void store_rows(float factor, std::int64_t offset,
                                             unsigned done) const {
    T* out = static_cast<T*>(c_.split.out.data);
    for_rows<kRowBlocks>([&](auto b, auto half) {
      const int row = 16 * b() + 8 * half() + (lane() >> 2), t = lane() & 3;
      const float row_factor = __shfl_sync(kFullMask, factor, row);
      [[maybe_unused]] T* to = out;
      if constexpr (kIsFloat) to += __shfl_sync(kFullMask, offset, row);
#pragma unroll
      for (int c = 0; c < kOutBlocks; ++c) {
        // Adding +0 turns -0 into +0.
        const float x = fmaf(o_[b()][c][2 * half()], row_factor, 0.0f);
        const float y = fmaf(o_[b()][c][2 * half() + 1], row_factor, 0.0f);
        if constexpr (kIsFloat) {
          if (done >> row & 1u)
            store_floats(to, sizes_.head_dim_v, 8 * c + 2 * t, x, y, c_.is_even_v);
        } else {
          const int at = kSmem.q + (warp() * kWarpRows + row) * kRowBytes + 4 * t;
          *reinterpret_cast<u32*>(dynamic_smem + at + (c ^ (row & 7)) * 16) = MmaOps<T>::pack(x, y);
        }
      }
    });
    if constexpr (!kIsFloat)
      copy_rows<T, kDim, kWarpRows>(dynamic_smem + kSmem.q + warp() * kWarpRows * kRowBytes, out,
                                    offset, done, sizes_.head_dim_v, c_.is_even_v);
  }

  // The normalised row of this split, its row_max_ref, sum and largest score.
  __device__ __forceinline__ void store_o_partial(float factor, float4 stats, unsigned done) const {
    const SplitLayout& x = c_.split.layout;
    const std::int64_t head_idx = work().batch_idx * sizes_.num_kv_heads + work().kv_head;
    float* split =
        c_.split.o_partial + (head_idx * x.max_splits + work().split_idx) * x.rows * x.row_floats;
    const int dim = static_cast<int>(x.row_floats) - 4, mine = warp() * kWarpRows + lane();
    if (done >> lane() & 1u) *reinterpret_cast<float4*>(split + mine * x.row_floats + dim) = stats;
    for_rows<kRowBlocks>([&](auto b, auto half) {
      const int row = 16 * b() + 8 * half() + (lane() >> 2), t = lane() & 3;
      const float row_factor = __shfl_sync(kFullMask, factor, row);
      float* to = split + (warp() * kWarpRows + row) * x.row_floats;
      const bool is_done = (done >> row & 1u) != 0;
#pragma unroll
      for (int c = 0; c < kOutBlocks; ++c)
        if (is_done && 8 * c + 2 * t < dim)
          *reinterpret_cast<float2*>(to + 8 * c + 2 * t) = {
              o_[b()][c][2 * half()] * row_factor, o_[b()][c][2 * half() + 1] * row_factor};
    });
  }

  const Params& c_;
  const Sizes& sizes_;
  u32 q_[kTile.q_in_registers ? kMmaSteps : 1][kRowBlocks][4];
  float o_[kRowBlocks][kOutBlocks][4];
  float max_[kRowBlocks][2], sum_[kRowBlocks][2];
  bool is_recompute_ = false, needs_recompute_ = false;  // needs_recompute_: the lane's row
};

template <class T, bool kIsGeneral, bool kReadsPages, class Shape>
__global__ void __launch_bounds__(Shape::kTile.threads(),
                                  kReadsPages && !kIsGeneral ? 1 : Shape::kTile.min_ctas)
    forward(const __grid_constant__ Params params) {
  for (std::int64_t i = blockIdx.x; i < params.order.num_tiles(); i += gridDim.x) {
    Forward<T, kIsGeneral, kReadsPages, Shape>(params).run(i);
    __syncthreads();
  }
}

}  // namespace headrace::cuda::sm80::fwd
