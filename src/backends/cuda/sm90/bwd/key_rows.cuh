// A warpgroup with 64 keys: what it computes of S^T and dP^T, element by element, and where its
// results go. A row of a thread is a key, first_key_ and first_key_ + 8, and its columns are
// queries.
#pragma once

#include "backends/cuda/device/reduce.cuh"
#include "backends/cuda/device/wgmma.cuh"
#include "backends/cuda/sm90/bwd/load.cuh"
#include "backends/cuda/sm90/element.cuh"

namespace headrace::cuda::sm90::bwd {

template <Tile kTile, class Element>
class KeyRows {
 public:
  // `group`: of the 64 keys in the CTA's.
  __device__ __forceinline__ KeyRows(const Params& p, u32 smem, const KeyBlock& keys, int group)
      : p_(p),
        smem_(smem),
        keys_(keys),
        group_(group),
        lane_(static_cast<int>(threadIdx.x) & 31),
        warp_(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5 & 3, 0)),
        first_key_(keys.first_key + kGroupKeys * group_ + 16 * warp_ + lane_ / 4) {}

 protected:
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr BarrierPlan kBarriers = barrier_plan(kTile);
  static constexpr int kDim = kTile.head_dim, kDimV = kTile.head_dim_v;
  static constexpr int kKeys = kTile.keys, kQueries = kTile.queries;
  static constexpr int kSlabQ = kQueries * kRowBytes, kSlabK = kKeys * kRowBytes;
  using StageQ = Stage<stages_q(kTile)>;
  using StageDout = Stage<stages_dout(kTile)>;
  using StageDs = Stage<kStagesDs>;
  using Scores = Wgmma<typename Element::Operand, kQueries>;
  using Elements = float[kQueries / 2];  // of S^T, dP^T
  using Packed = u32[kQueries / 16][4];  // of P^T, dS^T: fragments for the next product

  __device__ __forceinline__ u32 barrier(int i) const {
    return smem_ + kSmem.offset_barriers + 8 * i;
  }
  __device__ __forceinline__ u32 q_address(int step) const {
    return smem_ + kSmem.offset_q + StageQ(step).index * kSmem.q;
  }
  __device__ __forceinline__ u32 dout_address(int step) const {
    return smem_ + kSmem.offset_dout + StageDout(step).index * kSmem.dout;
  }
  __device__ __forceinline__ u32 ds_address(int step) const {
    return smem_ + kSmem.offset_ds + StageDs(step).index * kSmem.ds;
  }
  // This thread's two columns of each group of eight.
  __device__ __forceinline__ u32 lse_address(int step) const {
    return smem_ + kSmem.offset_lse + StageQ(step).index * kSmem.stat + 8 * (lane_ & 3);
  }
  __device__ __forceinline__ u32 d_address(int step) const {
    return smem_ + kSmem.offset_d + StageDout(step).index * kSmem.stat + 8 * (lane_ & 3);
  }

  // ---- what has come
  __device__ __forceinline__ void take_k() {
    mbarrier_wait(barrier(kBarriers.k_full), 0);
    clear_tail<num_slabs(kDim)>(kSmem.offset_k, kKeys, keys_.seqlen_k - keys_.first_key);
  }
  __device__ __forceinline__ void take_v() {
    mbarrier_wait(barrier(kBarriers.v_full), 0);
    clear_tail<num_slabs(kDimV)>(kSmem.offset_v, kKeys, keys_.seqlen_k - keys_.first_key);
  }
  __device__ __forceinline__ void take_q(int step, const Step& at) {
    const StageQ stage(step);
    mbarrier_wait(barrier(kBarriers.q_full + stage.index), stage.parity);
    clear_tail<num_slabs(kDim)>(kSmem.offset_q + stage.index * kSmem.q, kQueries,
                                keys_.seqlen_q - at.block * kQueries);
  }
  __device__ __forceinline__ void take_dout(int step, const Step& at) {
    const StageDout stage(step);
    mbarrier_wait(barrier(kBarriers.dout_full + stage.index), stage.parity);
    clear_tail<num_slabs(kDimV)>(kSmem.offset_dout + stage.index * kSmem.dout, kQueries,
                                 keys_.seqlen_q - at.block * kQueries);
  }
  // Rows of another sequence, behind the end of this one, become zeros: a NaN there times a weight
  // of 0 would be one. Each warpgroup does it for itself.
  template <int kSlabs>
  __device__ __forceinline__ void clear_tail(int offset, int rows, int count) {
    if (!p_.rows.problem.is_ragged || count >= rows) [[likely]]
      return;
    const int thread = static_cast<int>(threadIdx.x) & 127;
#pragma unroll 1
    for (int i = max(count, 0) * 8 + thread; i < rows * 8; i += 128)
#pragma unroll
      for (int slab = 0; slab < kSlabs; ++slab)
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(smem_ + offset + i * 16 +
                                                                      slab * rows * kRowBytes),
                     "r"(0)
                     : "memory");
    fence_proxy_async();
    named_barrier_sync(kGroupBarrier + static_cast<int>(threadIdx.x >> 7), 128);
  }

  // ---- products
  // What follows from it is computed in every step: the compiler would keep it in registers, of
  // which there are none.
  static __device__ __forceinline__ u32 not_hoisted(u32 x) {
    asm volatile("" : "+r"(x));
    return x;
  }
  // S^T = K Q^T, dP^T = V dO^T: the warpgroup's rows of K or V, a block of queries.
  template <int kColumns>
  __device__ __forceinline__ void start_scores(Elements& to, int keys, u32 queries) {
    wgmma_fence();
    const u64 a = wgmma_descriptor(not_hoisted(smem_ + keys + group_ * kGroupKeys * kRowBytes), 16);
    const u64 b = wgmma_descriptor(queries, 16);
#pragma unroll
    for (int i = 0; i < kColumns / 16; ++i)
      Scores::template ss<Major::k>(to, wgmma_advance(a, i % 4 * 32 + i / 4 * kSlabK),
                                    wgmma_advance(b, i % 4 * 32 + i / 4 * kSlabQ), i != 0);
    wgmma_commit();
  }
  // dV += P^T dO, dK += dS^T Q. With `adds` 0 they begin. At most 128 columns at a time: a wider
  // instruction reads no less, and wants more registers than some launches begin with.
  template <int kColumns>
  static __device__ __forceinline__ void add_product(float (&to)[kColumns / 2],
                                                     const Packed& weights, u32 queries, int adds) {
    constexpr int kWidth = kColumns > 192 ? 128 : kColumns;
    using Sums = Wgmma<typename Element::Operand, kWidth>;
    static_assert(kColumns % kWidth == 0);
#pragma unroll
    for (int part = 0; part < kColumns / kWidth; ++part) {
      const u64 b = wgmma_descriptor(queries + part * (kWidth / kSlabColumns) * kSlabQ, kSlabQ);
      auto& sums = reinterpret_cast<float(&)[kWidth / 2]>(to[part * (kWidth / 2)]);
#pragma unroll
      for (int i = 0; i < kQueries / 16; ++i)
        Sums::template rs<Major::mn>(sums, weights[i], wgmma_advance(b, i * 2048),
                                     i == 0 ? adds : 1);
    }
  }

  // ---- elements
  // S^T to P^T, with masks.
  __device__ __forceinline__ void make_p(Elements& s, int step, const Step& at) {
    wgmma_settle(s);
    mask(s, at);
#pragma unroll
    for (int j = 0; j < kQueries / 8; ++j) {
      const float2 lse = load_shared2(lse_address(step) + 32 * j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& x = s[4 * j + 2 * r];
        float& y = s[4 * j + 2 * r + 1];
        x = exp2_approx(fmaf(x, p_.scale_log2, -lse.x));
        y = exp2_approx(fmaf(y, p_.scale_log2, -lse.y));
      }
    }
  }
  // By lengths, causal mask and window. Queries behind the end have an lse of +inf.
  __device__ __forceinline__ void mask(Elements& s, const Step& at) {
    const int query = at.block * kQueries, first = keys_.first_key;
    const bool is_full = first + kKeys <= min(keys_.seqlen_k, query + keys_.right + 1) &&
                         first >= query + kQueries - 1 + keys_.left;
    if (is_full) [[likely]]
      return;
    const int column = query + 2 * (lane_ & 3);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = first_key_ + 8 * r;
      const u32 sees = key < keys_.seqlen_k ? columns_below(key - keys_.left + 1 - column) &
                                                  ~columns_below(key - keys_.right - column)
                                            : 0;
#pragma unroll
      for (int i = 0; i < kQueries / 4; ++i) {
        float& x = s[4 * (i / 2) + 2 * r + i % 2];
        x = (sees >> i & 1) != 0 ? x : -INFINITY;
      }
    }
  }
  // dP^T to dS^T = P^T (dP^T - D), for the fragment of groups j and j + 1 of eight queries. p(j,
  // r): two neighbours of P^T, of row r.
  template <class P>
  static __device__ __forceinline__ void multiply_by_p(Elements& dp, int j, u32 d_address, P p) {
#pragma unroll
    for (int k = j; k < j + 2; ++k) {
      const float2 d = load_shared2(d_address + 32 * k);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 x = p(k, r);
        float* y = &dp[4 * k + 2 * r];
        y[0] = x.x * (y[0] - d.x);
        y[1] = x.y * (y[1] - d.y);
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
  // Fragments of dS^T become rows of dS, [queries, 64 keys of the warpgroup], for dQ. Of the 8 x 8
  // blocks that stmatrix takes: queries of lane / 16, keys of lane / 8; 16 queries further is the
  // same place under the swizzle.
  __device__ __forceinline__ u32 ds_place(int step) const {
    const int row = (lane_ >> 4) * 8 + (lane_ & 7), chunk = 2 * warp_ + (lane_ >> 3 & 1);
    return ds_address(step) + group_ * kSlabQ +
           swizzle128(static_cast<u32>(row * kRowBytes + chunk * 16));
  }

  // ---- dQ
  // Number of the block of dQ.
  __device__ __forceinline__ std::int64_t dq_block(const Step& at) const {
    const Problem& problem = p_.rows.problem;
    const int head = keys_.kv_head * p_.group + at.head;
    const std::int64_t row = first_padded_row(problem, keys_.batch_idx, keys_.row_q);
    return padded_index(problem, head, row) / kQueries + at.block;
  }
  // Part `part` of it, 64 x 64, from where this thread's numbers begin.
  __device__ __forceinline__ float* dq_address(const Step& at, int part) const {
    return p_.rows.dq + dq_block(at) * (kQueries * kDim) + part * kDqPart + (threadIdx.x & 127) * 4;
  }
  static __device__ __forceinline__ void send_dq(float* to, const float* from) {
#pragma unroll
    for (int j = 0; j < kDqGroups; ++j)
      reduce_add4(to + j * 512, from[4 * j], from[4 * j + 1], from[4 * j + 2], from[4 * j + 3]);
  }
  // In turn: before a warpgroup sends its part, and some time after, when its numbers have arrived
  // anyway.
  __device__ __forceinline__ std::uint32_t* turn_address(const Step& at) const {
    return p_.turns + dq_block(at) * 2 + group_;
  }
  __device__ __forceinline__ void wait_for_turn(const Step& at) const {
    if ((threadIdx.x & 127) == 0) {
      const int turn = turn_at<kTile>(p_, keys_, at.block);
      // Beyond it: lengths out of bounds let sequences share blocks, and nobody may wait for ever.
      while (static_cast<int>(load_acquire(turn_address(at))) < turn) {
      }
    }
    named_barrier_sync(kGroupBarrier + static_cast<int>(threadIdx.x >> 7), 128);
  }
  __device__ __forceinline__ void pass_turn(const Step& at) const {
    named_barrier_sync(kGroupBarrier + static_cast<int>(threadIdx.x >> 7), 128);
    if ((threadIdx.x & 127) == 0) add_release(turn_address(at), 1);
  }

  // ---- dK and dV
  template <int kColumns>
  __device__ __forceinline__ void store(const Operand& to, std::int64_t dim,
                                        const float (&x)[kColumns / 2], float factor) const {
    const int mine = lane_ & 1, chunks = static_cast<int>(dim) / 8;
    const std::int64_t batch = p_.rows.problem.is_ragged ? 0 : keys_.batch_idx;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = first_key_ + 8 * r;
      auto* row = static_cast<typename Element::Stored*>(to.data) +
                  row_offset(to, batch, std::int64_t{keys_.row_k} + key, keys_.kv_head);
      // Of an even group of eight columns for even lanes, of an odd one for odd lanes.
      auto* half =
          reinterpret_cast<HalfChunk*>(reinterpret_cast<Chunk*>(row) + mine) + (lane_ >> 1 & 1);
#pragma unroll
      for (int j = 0; j < kColumns / 8; j += 2) {
        const auto pack = [&](int block) {
          // Adding +0 gives an exact zero one sign.
          return Element::pack(x[4 * block + 2 * r] * factor + 0.0f,
                               x[4 * block + 2 * r + 1] * factor + 0.0f);
        };
        const HalfChunk both = traded_with_neighbour(pack(j), pack(j + 1), lane_);
        if (key < keys_.seqlen_k && j + mine < chunks) half[2 * j] = both;
      }
    }
  }
  __device__ __forceinline__ void store_dk(const float (&dk)[kDim / 2]) const {
    store<kDim>(p_.rows.args.gradients.dk, p_.rows.problem.head_dim, dk, p_.scale);
  }
  __device__ __forceinline__ void store_dv(const float (&dv)[kDimV / 2]) const {
    store<kDimV>(p_.rows.args.gradients.dv, p_.rows.problem.head_dim_v, dv, 1.0f);
  }
  template <int kCount>
  static __device__ __forceinline__ void clear(float (&x)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = 0.0f;
  }

  static constexpr int kGroupBarrier = 8;  // named barriers, one a warpgroup of the CTA

  const Params& p_;
  const u32 smem_;
  const KeyBlock& keys_;
  const int group_, lane_, warp_, first_key_;
};

}  // namespace headrace::cuda::sm90::bwd
