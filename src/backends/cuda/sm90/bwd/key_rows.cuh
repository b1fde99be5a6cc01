// A warpgroup with 64 keys: waits, products, the elementwise work on S^T and dP^T, and its stores.
// The rows of a thread are keys first_key and first_key + 8, its columns are queries.
#pragma once

#include <type_traits>

#include "backends/cuda/common/scores.cuh"
#include "backends/cuda/device/reduce.cuh"
#include "backends/cuda/device/wgmma.cuh"
#include "backends/cuda/sm90/bwd/load.cuh"
#include "backends/cuda/sm90/element.cuh"

namespace headrace::cuda::sm90::bwd {

// A value: each schedule has one for its warpgroup.
template <class Variant>
struct KeyRows {
  using Element = typename Variant::Element;
  static constexpr Tile kTile = Variant::kTile;
  static constexpr bool kIsFixed = Variant::kIsFixed, kIsGeneral = Variant::kIsGeneral;
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr BarrierPlan kBarriers = barrier_plan(kTile);
  static constexpr int kDim = kTile.head_dim, kDimV = kTile.head_dim_v;
  static constexpr int kKeys = kTile.keys, kQueries = kTile.queries;
  static constexpr int kAtomQ = kQueries * kSwizzleRowBytes, kAtomK = kKeys * kSwizzleRowBytes;
  using StageQ = Stage<stages_q(kTile)>;
  using StageDout = Stage<stages_dout(kTile)>;
  using StageDs = Stage<kStagesDs>;
  using Scores = WgmmaM64K16<typename Element::Operand, kQueries>;
  // The specialized schedule computes dS from the 16-bit P. f16 loses digits below 2^-14, where
  // most of P is with more than a few hundred keys.
  static constexpr int kPLog2Scale =
      kTile.is_specialized && std::is_same_v<typename Element::Operand, F16> ? 14 : 0;
  static constexpr float kPUnit = 1.0f / (1 << kPLog2Scale);
  using Elements = float[kQueries / 2];  // of S^T, dP^T
  using Packed = u32[kQueries / 16][4];  // of P^T, dS^T: A fragments of the next product

  const Params& p;
  u32 smem;
  const KeyBlock& block;
  int group;  // index of its 64 keys in the CTA
  int lane, warp, first_key;

  __device__ __forceinline__ KeyRows(const Params& params, u32 smem_base, const KeyBlock& key_block,
                                     int warpgroup)
      : p(params),
        smem(smem_base),
        block(key_block),
        group(warpgroup),
        lane(static_cast<int>(threadIdx.x) & 31),
        warp(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5 & 3, 0)),
        first_key(key_block.first_key + kGroupKeys * group + 16 * warp + lane / 4) {}

  __device__ __forceinline__ u32 barrier(int i) const {
    return smem + kSmem.offset_barriers + 8 * i;
  }
  __device__ __forceinline__ u32 q_address(int iteration) const {
    return smem + kSmem.offset_q + StageQ(iteration).index * kSmem.q;
  }
  __device__ __forceinline__ u32 dout_address(int iteration) const {
    return smem + kSmem.offset_dout + StageDout(iteration).index * kSmem.dout;
  }
  __device__ __forceinline__ u32 ds_address(int iteration) const {
    return smem + kSmem.offset_ds + StageDs(iteration).index * kSmem.ds;
  }
  // This thread's two columns of each group of eight.
  __device__ __forceinline__ u32 lse_address(int iteration) const {
    return smem + kSmem.offset_lse + StageQ(iteration).index * kSmem.stat + 8 * (lane & 3);
  }
  __device__ __forceinline__ u32 d_address(int iteration) const {
    return smem + kSmem.offset_d + StageDout(iteration).index * kSmem.stat + 8 * (lane & 3);
  }

  // ---- waits
  __device__ __forceinline__ void wait_k() const {
    mbarrier_wait(barrier(kBarriers.k_full), 0);
    clear_tail<num_swizzle_atoms(kDim)>(kSmem.offset_k, kKeys, block.seqlen_k - block.first_key);
  }
  __device__ __forceinline__ void wait_v() const {
    mbarrier_wait(barrier(kBarriers.v_full), 0);
    clear_tail<num_swizzle_atoms(kDimV)>(kSmem.offset_v, kKeys, block.seqlen_k - block.first_key);
  }
  __device__ __forceinline__ void wait_q(int iteration, const QueryBlock& at) const {
    const StageQ stage(iteration);
    mbarrier_wait(barrier(kBarriers.q_full + stage.index), stage.parity);
    clear_tail<num_swizzle_atoms(kDim)>(kSmem.offset_q + stage.index * kSmem.q, kQueries,
                                        block.seqlen_q - at.block * kQueries);
  }
  __device__ __forceinline__ void wait_dout(int iteration, const QueryBlock& at) const {
    const StageDout stage(iteration);
    mbarrier_wait(barrier(kBarriers.dout_full + stage.index), stage.parity);
    clear_tail<num_swizzle_atoms(kDimV)>(kSmem.offset_dout + stage.index * kSmem.dout, kQueries,
                                         block.seqlen_q - at.block * kQueries);
  }
  // Zeros the rows beyond the end of the sequence, which belong to another one: 0 * NaN would be
  // NaN. Each warpgroup does it for itself.
  template <int kAtoms>
  __device__ __forceinline__ void clear_tail(int offset, int rows, int count) const {
    if (!p.blocks.sizes.is_ragged || count >= rows) [[likely]]
      return;
    const int thread = static_cast<int>(threadIdx.x) & 127;
#pragma unroll 1
    for (int i = max(count, 0) * 8 + thread; i < rows * 8; i += 128)
#pragma unroll
      for (int atom = 0; atom < kAtoms; ++atom)
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(
                         smem + offset + i * 16 + atom * rows * kSwizzleRowBytes),
                     "r"(0)
                     : "memory");
    fence_proxy_async();
    bar_sync(kGroupBarrier + static_cast<int>(threadIdx.x >> 7), 128);
  }

  // ---- products
  // Values derived from it are computed in every iteration. nvcc would keep them in registers, of
  // which there are none left.
  static __device__ __forceinline__ u32 not_hoisted(u32 x) {
    asm volatile("" : "+r"(x));
    return x;
  }
  // S^T += K Q^T, dP^T += V dO^T: the warpgroup's rows of K or V, a query block.
  template <int kColumns>
  __device__ __forceinline__ void issue_scores(Elements& to, int keys, u32 queries) const {
    wgmma_fence();
    const u64 a =
        wgmma_descriptor(not_hoisted(smem + keys + group * kGroupKeys * kSwizzleRowBytes), 16);
    const u64 b = wgmma_descriptor(queries, 16);
#pragma unroll
    for (int i = 0; i < kColumns / 16; ++i)
      Scores::template ss<Major::k>(to, wgmma_descriptor_advance(a, i % 4 * 32 + i / 4 * kAtomK),
                                    wgmma_descriptor_advance(b, i % 4 * 32 + i / 4 * kAtomQ), 1);
    wgmma_commit_group();
  }
  // dV += P^T dO, dK += dS^T Q; overwrites with `scale_d` 0. At most 128 columns at a time: a wider
  // instruction reads no fewer bytes, and needs more registers than some launches start with.
  template <int kColumns>
  static __device__ __forceinline__ void issue_product(float (&to)[kColumns / 2],
                                                       const Packed& p_frag, u32 queries,
                                                       int scale_d) {
    constexpr int kWidth = kColumns > 192 ? 128 : kColumns;
    using Sums = WgmmaM64K16<typename Element::Operand, kWidth>;
    static_assert(kColumns % kWidth == 0);
#pragma unroll
    for (int part = 0; part < kColumns / kWidth; ++part) {
      const u64 b = wgmma_descriptor(queries + part * (kWidth / kSwizzleAtomCols) * kAtomQ, kAtomQ);
      auto& sums = reinterpret_cast<float(&)[kWidth / 2]>(to[part * (kWidth / 2)]);
#pragma unroll
      for (int i = 0; i < kQueries / 16; ++i)
        Sums::template rs<Major::mn>(sums, p_frag[i], wgmma_descriptor_advance(b, i * 2048),
                                     i == 0 ? scale_d : 1);
    }
  }

  // ---- elements
  // Initializes the accumulators of S^T with the columns' -lse / scale, those of dP^T with -D. So
  // the exponentials and dS do not wait for shared memory.
  static __device__ __forceinline__ void init_columns(Elements& x, u32 address) {
#pragma unroll
    for (int j = 0; j < kQueries / 8; ++j) {
      const float2 both = load_shared2(address + 32 * j);
      x[4 * j] = x[4 * j + 2] = both.x;
      x[4 * j + 1] = x[4 * j + 3] = both.y;
    }
  }
  // Initializes S^T. Bias and ALiBi are added here, where their loads have free registers and the
  // exponentials are unchanged.
  __device__ __forceinline__ void init_scores(Elements& s, int iteration,
                                              const QueryBlock& at) const {
    if constexpr (kIsGeneral) {
      if (has_softcap()) {
        clear(s);
      } else {
        load_bias(s, at);
        add_alibi(s, at);
        add_lse(s, iteration);
      }
    } else {
      init_columns(s, lse_address(iteration));
    }
  }
  __device__ __forceinline__ int query_head(const QueryBlock& at) const {
    return block.kv_head * p.blocks.group + at.head;
  }
  __device__ __forceinline__ int first_query(const QueryBlock& at) const {
    return at.block * kQueries + 2 * (lane & 3);
  }
  // Scores become (score - lse) / scale, in units of the product.
  __device__ __forceinline__ void add_lse(Elements& s, int iteration) const {
#pragma unroll
    for (int j = 0; j < kQueries / 8; ++j) {
      const float2 lse = load_shared2(lse_address(iteration) + 32 * j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float &x = s[4 * j + 2 * r], &y = s[4 * j + 2 * r + 1];
        x = (x + lse.x) * p.inverse_scale;
        y = (y + lse.y) * p.inverse_scale;
      }
    }
  }
  __device__ __forceinline__ void load_bias(Elements& s, const QueryBlock& at) const {
    const ScoreOperand& bias = p.bias;
    clear(s);
    if (bias.data == nullptr) return;
    const std::int64_t first =
        score_row_offset(bias, block.batch_idx, query_head(at), block.row_q + first_query(at)) +
        first_key * bias.stride_k;
    if (bias.dtype == DType::f32) {
      load_bias(s, at, static_cast<const float*>(bias.data) + first, bias);
    } else {
      load_bias(s, at, static_cast<const typename Element::Stored*>(bias.data) + first, bias);
    }
  }
  template <class E>
  __device__ __forceinline__ void load_bias(Elements& s, const QueryBlock& at, const E* from,
                                            const ScoreOperand& bias) const {
    const int queries = block.seqlen_q - first_query(at);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (first_key + 8 * r >= block.seqlen_k) continue;
      const E* x = from + 8 * r * bias.stride_k;
#pragma unroll
      for (int j = 0; j < kQueries / 8; ++j, x += 8 * bias.stride_q)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (8 * j + i < queries) s[4 * j + 2 * r + i] = load_real(x, i * bias.stride_q);
    }
  }
  __device__ __forceinline__ void add_alibi(Elements& s, const QueryBlock& at) const {
    if (p.alibi.slopes == nullptr) return;
    const float slope = alibi_slope(p.alibi, block.batch_idx, query_head(at));
    const int diagonal = block.right - p.blocks.window_right;
    const auto distance = static_cast<float>(first_key - diagonal - first_query(at));
#pragma unroll
    for (int i = 0; i < kQueries / 2; ++i) {
      const auto further = static_cast<float>(8 * (i / 2 % 2) - 8 * (i / 4) - i % 2);
      s[i] = fmaf(-slope, fabsf(distance + further), s[i]);
    }
  }
  __device__ __forceinline__ bool has_softcap() const {
    return kIsGeneral && p.score_params.softcap != 0.0f;
  }
  __device__ __forceinline__ void apply_softcap_and_lse(Elements& s, int iteration) const {
    auto& blocks = reinterpret_cast<float(&)[kQueries / 8][4]>(s);
    apply_softcap<0>(p.score_params, blocks);
    apply_softcap<1>(p.score_params, blocks);
    add_lse(s, iteration);
  }
  // Multiplies groups j and j + 1 of eight queries of `x` by 1 - tanh^2, with the score from P: it
  // is ln P + lse.
  __device__ __forceinline__ void multiply_by_softcap_gradient(Elements& x, const Elements& probs,
                                                               int iteration, int j) const {
    constexpr float kLeast = 0x1p-126f;
#pragma unroll
    for (int k = j; k < j + 2; ++k) {
      const float2 lse = load_shared2(lse_address(iteration) + 32 * k);
#pragma unroll
      for (int i = 4 * k; i < 4 * k + 4; ++i) {
        const float log_p = (__log2f(fmaxf(probs[i], kLeast)) - kPLog2Scale) * kLn2;
        const float tanh = (log_p - (i % 2 == 0 ? lse.x : lse.y)) * p.inverse_softcap;
        // Where P is 0 the score is unknown and dS is 0: any finite value is right.
        x[i] *= fmaxf(fmaf(-tanh, tanh, 1.0f), 0.0f);
      }
    }
  }
  // volatile: nvcc does not move it behind other work.
  static __device__ __forceinline__ float exp2_in_place(float x) {
    asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
  }
  // S^T - lse / scale becomes P^T 2^kPLog2Scale, with masks.
  __device__ __forceinline__ void make_p(Elements& s, int iteration, const QueryBlock& at) const {
    warpgroup_fence_operand(s);
    if (has_softcap()) apply_softcap_and_lse(s, iteration);
    mask(s, at);
#pragma unroll
    for (int i = 0; i < kQueries / 2; ++i)
      s[i] = exp2_in_place(fmaf(s[i], p.scale_log2, float{kPLog2Scale}));
  }
  // Lengths, causal mask and window. Queries beyond the end have an lse of +inf.
  __device__ __forceinline__ void mask(Elements& s, const QueryBlock& at) const {
    const int query = at.block * kQueries, first = block.first_key;
    const bool is_full = first + kKeys <= min(block.seqlen_k, query + block.right + 1) &&
                         first >= query + kQueries - 1 + block.left;
    if (is_full) [[likely]]
      return;
    const int column = query + 2 * (lane & 3);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = first_key + 8 * r;
      const u32 sees = key < block.seqlen_k ? columns_below(key - block.left + 1 - column) &
                                                  ~columns_below(key - block.right - column)
                                            : 0;
#pragma unroll
      for (int i = 0; i < kQueries / 4; ++i) {
        float& x = s[4 * (i / 2) + 2 * r + i % 2];
        x = (sees >> i & 1) != 0 ? x : -INFINITY;
      }
    }
  }
  // dP^T - D becomes dS^T = P^T (dP^T - D), for groups j and j + 1 of eight queries. p(j, r): two
  // neighbours of P^T in row r.
  template <class P>
  static __device__ __forceinline__ void multiply_by_p(Elements& dp, int j, P p) {
#pragma unroll
    for (int k = j; k < j + 2; ++k) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 x = p(k, r);
        dp[4 * k + 2 * r] *= x.x;
        dp[4 * k + 2 * r + 1] *= x.y;
      }
    }
  }
  static __device__ __forceinline__ void pack(u32 (&to)[4], const Elements& from, int i) {
#pragma unroll
    for (int k = 0; k < 4; ++k) to[k] = Element::pack(from[8 * i + 2 * k], from[8 * i + 2 * k + 1]);
  }
  static __device__ __forceinline__ void pack(Packed& to, const Elements& from) {
#pragma unroll
    for (int i = 0; i < kQueries / 16; ++i) pack(to[i], from, i);
  }
  // Where stmatrix.trans writes fragments of dS^T as rows of dS, [queries, 64 keys of the
  // warpgroup], for dQ. Of its 8 x 8 blocks: queries by lane / 16, keys by lane / 8. 16 queries
  // further the swizzle is the same.
  __device__ __forceinline__ u32 ds_write_address(int iteration) const {
    const int row = (lane >> 4) * 8 + (lane & 7), chunk = 2 * warp + (lane >> 3 & 1);
    return ds_address(iteration) + group * kAtomQ +
           swizzle128(static_cast<u32>(row * kSwizzleRowBytes + chunk * 16));
  }

  // ---- dQ
  // Fixed-point scales of this thread's two rows of a part, as a packed pair.
  __device__ __forceinline__ u32 dq_scales(const QueryBlock& at, int part) const {
    if constexpr (kIsFixed) {
      constexpr Tile kTile = Variant::kTile;  // a member of the class has no place on the device
      const std::int64_t row = std::int64_t{at.padded} * kQueries +
                               dq_place(kTile, part, static_cast<int>(threadIdx.x) & 127).row;
      u32 both;
      // volatile: the load is issued here and not where it is used.
      asm volatile("ld.global.nc.u32 %0, [%1];"
                   : "=r"(both)
                   : "l"(p.rows.dq_scale + dq_scale_index(row)));
      return both;
    } else {
      return 0;
    }
  }
  // Adds part `part`, 64 x 64, of a dQ block to the accumulator in global memory. In fixed point
  // the cooperative schedule adds the constant `zero`; with zero = 0 the contribution (of zeros) is
  // not counted.
  __device__ __forceinline__ void reduce_dq(const QueryBlock& at, int part,
                                            const float (&x)[4 * kDqGroups], u32 scales,
                                            float zero = kFixedMagic) const {
    float* const to = p.rows.dq_accum + std::int64_t{at.padded} * (kQueries * kDim) +
                      part * kDqPart + (threadIdx.x & 127) * (kIsFixed ? 2 : 4);
    if constexpr (kIsFixed) {
      const float2 scale = Bf16Element::unpack(scales);
      u64 pairs[2 * kDqGroups];
#pragma unroll
      for (int i = 0; i < 2 * kDqGroups; ++i) {
        const float factor = i % 2 == 0 ? scale.x : scale.y;
        const float first = x[2 * i] * factor, second = x[2 * i + 1] * factor;
        // Specialized: no warpgroup waits for this one, so conversions are free beside the
        // exponentials of the others.
        pairs[i] = kTile.is_specialized ? cvt_fixed_point_pair(first, second)
                                        : fixed_point_pair(first, second, zero);
        red_add_u64(to + i * 256, pairs[i]);
      }
      if constexpr (!kTile.is_specialized) fix_overflowed_dq(to, pairs, zero);
    } else {
#pragma unroll
      for (int j = 0; j < kDqGroups; ++j)
        red_add_v4_f32(to + j * 512, x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]);
    }
  }
  // Adds what pairs with a value beyond 2^22 lack. They are rare, and have other sign or exponent
  // bits than `zero`. The correction follows the first additions, so that these do not wait for the
  // comparison. It is decided per warp, so that there is no divergent branch.
  static __device__ __forceinline__ void fix_overflowed_dq(float* to,
                                                           const u64 (&pairs)[2 * kDqGroups],
                                                           float zero) {
    u32 differ = 0;
#pragma unroll
    for (int i = 0; i < 2 * kDqGroups; i += 2)
      differ = lop3_or(differ, overflow_bits(pairs[i], zero), overflow_bits(pairs[i + 1], zero));
    if (!__any_sync(0xffffffffu, differ >> 23 != 0)) [[likely]]
      return;
#pragma unroll
    for (int i = 0; i < 2 * kDqGroups; ++i)
      red_add_u64(to + i * 256, reconverted_pair(pairs[i]) - pairs[i]);
  }
  // ---- dK and dV
  template <int kColumns>
  __device__ __forceinline__ void store(const Operand& to, std::int64_t dim,
                                        const float (&x)[kColumns / 2], float factor) const {
    const int mine = lane & 1, chunks = static_cast<int>(dim) / 8;
    const std::int64_t batch = p.blocks.sizes.is_ragged ? 0 : block.batch_idx;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = first_key + 8 * r;
      auto* row = static_cast<typename Element::Stored*>(to.data) +
                  row_offset(to, batch, std::int64_t{block.row_k} + key, block.kv_head);
      // Even lanes write the even groups of eight columns, odd lanes the odd ones.
      auto* half =
          reinterpret_cast<HalfChunk*>(reinterpret_cast<Chunk*>(row) + mine) + (lane >> 1 & 1);
#pragma unroll
      for (int j = 0; j < kColumns / 8; j += 2) {
        const auto pack = [&](int block) {
          // Adding +0 turns -0 into +0.
          return Element::pack(x[4 * block + 2 * r] * factor + 0.0f,
                               x[4 * block + 2 * r + 1] * factor + 0.0f);
        };
        const HalfChunk both = exchange_with_neighbour_lane(pack(j), pack(j + 1), lane);
        if (key < block.seqlen_k && j + mine < chunks) half[2 * j] = both;
      }
    }
  }
  __device__ __forceinline__ void store_dk(const float (&dk)[kDim / 2]) const {
    store<kDim>(p.dk, p.blocks.sizes.head_dim, dk, p.scale);
  }
  __device__ __forceinline__ void store_dv(const float (&dv)[kDimV / 2]) const {
    store<kDimV>(p.dv, p.blocks.sizes.head_dim_v, dv, kPUnit);
  }
  template <int kCount>
  static __device__ __forceinline__ void clear(float (&x)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = 0.0f;
  }

  static constexpr int kGroupBarrier = 8;  // named barriers, one for each warpgroup of the CTA
};

}  // namespace headrace::cuda::sm90::bwd
