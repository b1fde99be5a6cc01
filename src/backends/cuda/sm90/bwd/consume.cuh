// The consumers: dK and dV of 64 keys a warpgroup, and dQ of the queries that the CTA meets.
//
// Everything is transposed: a warpgroup computes S^T = K Q^T and dP^T = V dO^T, so that P^T and dS^T
// come out of the tensor cores in the registers where dV = P^T dO and dK = dS^T Q want them. Only dS
// goes through shared memory, for dQ = dS K, which takes the keys of both warpgroups.
//
// The products of neighbouring steps overlap, so that the tensor cores have work while exponentials
// and dS are computed:
//   S(i + 1), dV(i), dK(i)   run under the exponentials of S(i + 1)
//   dP(i + 1), dQ(i)         run under dS(i + 1)
#pragma once

#include "backends/cuda/device/wgmma.cuh"
#include "backends/cuda/sm90/bwd/load.cuh"
#include "backends/cuda/sm90/element.cuh"

namespace headrace::cuda::sm90::bwd {

template <Tile kTile, class Element>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Params& p, const Maps& maps, u32 smem,
                                      const KeyBlock& keys)
      : p_(p),
        loader_(p, maps, smem, keys),
        smem_(smem),
        keys_(keys),
        group_(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 7, 0)),
        lane_(static_cast<int>(threadIdx.x) & 31),
        warp_(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5 & 3, 0)),
        first_key_(keys.first_key + kGroupKeys * group_ + 16 * warp_ + lane_ / 4) {}

  __device__ __forceinline__ void run(const Walk<kTile>& walk) {
    if (threadIdx.x == 0) loader_.start(walk);
    __syncwarp();
    mbarrier_wait(barrier(kBarriers.k_full), 0);
    clear_tail(kSmem.offset_k, kKeys, keys_.seqlen_k - keys_.first_key);
    Step now = walk.at(0);
    start_s(0, now);
    wgmma_wait<0>();
    make_p(0, now);
    mbarrier_wait(barrier(kBarriers.v_full), 0);
    clear_tail(kSmem.offset_v, kKeys, keys_.seqlen_k - keys_.first_key);
    take_dout(0, now);
    start_dp(0);
    wgmma_wait<0>();
    make_ds(0);
    announce_ds(0);
    const int last = walk.num_steps() - 1;
#pragma unroll 1
    for (int step = 0; step < last; ++step) {
      const Step next = walk.at(step + 1);
      start_s(step + 1, next);
      start_dv_dk(step);
      if (threadIdx.x == 0) loader_.ahead_q(step, walk);
      __syncwarp();
      wgmma_wait<1>();
      make_p(step + 1, next);
      take_dout(step + 1, next);  // its branches also keep the exponentials before the next wait
      end_dv_dk();
      start_dp(step + 1);
      start_dq(step);
      wgmma_wait<1>();
      make_ds(step + 1);
      end_dq();
      announce_ds(step + 1);
      send_dq(now);
      if (threadIdx.x == 0) loader_.ahead_dout(step, walk);
      __syncwarp();
      now = next;
    }
    start_dv_dk(last);
    end_dv_dk();
    start_dq(last);
    end_dq();
    send_dq(now);
    store(p_.rows.args.gradients.dv, p_.rows.problem.head_dim_v, dv_, 1.0f);
    store(p_.rows.args.gradients.dk, p_.rows.problem.head_dim, dk_, p_.scale);
  }

  // No query sees these keys.
  __device__ __forceinline__ void write_zeros() {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) dk_[i] = 0.0f;
    store(p_.rows.args.gradients.dv, p_.rows.problem.head_dim_v, dk_, 1.0f);
    store(p_.rows.args.gradients.dk, p_.rows.problem.head_dim, dk_, 1.0f);
  }

 private:
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr BarrierPlan kBarriers = barrier_plan();
  static constexpr int kDim = kTile.head_dim, kQueries = kTile.queries;
  static constexpr int kSlabQ = kQueries * kRowBytes, kSlabK = kKeys * kRowBytes;
  using Scores = Wgmma<typename Element::Operand, kQueries>;
  using Sums = Wgmma<typename Element::Operand, kDim>;
  using Dq = Wgmma<typename Element::Operand, kSlabColumns>;
  static_assert(kQueries * kDim == kWarpgroups * 128 * kDqRegisters);

  __device__ __forceinline__ u32 barrier(int i) const {
    return smem_ + kSmem.offset_barriers + 8 * i;
  }
  __device__ __forceinline__ u32 q_address(int step) const {
    return smem_ + kSmem.offset_q + Stage<kStagesQ>(step).index * kSmem.q;
  }
  __device__ __forceinline__ u32 dout_address(int step) const {
    return smem_ + kSmem.offset_dout + Stage<kStagesDout>(step).index * kSmem.q;
  }
  __device__ __forceinline__ u32 ds_address(int step) const {
    return smem_ + kSmem.offset_ds + Stage<kStagesDs>(step).index * kSmem.ds;
  }

  // Rows of another sequence, behind the end of this one, become zeros: a NaN there times a weight
  // of 0 would be one. Each warpgroup does it for itself.
  __device__ __forceinline__ void clear_tail(int offset, int rows, int count) {
    if (!p_.rows.problem.is_ragged || count >= rows) [[likely]]
      return;
    const int thread = static_cast<int>(threadIdx.x) & 127;
#pragma unroll 1
    for (int i = max(count, 0) * 8 + thread; i < rows * 8; i += 128)
#pragma unroll
      for (int slab = 0; slab < num_slabs(kTile); ++slab)
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(smem_ + offset + i * 16 +
                                                                      slab * rows * kRowBytes),
                     "r"(0)
                     : "memory");
    fence_proxy_async();
    named_barrier_sync(kClearBarrier + group_, 128);
  }
  __device__ __forceinline__ int queries_left(const Step& at) const {
    return keys_.seqlen_q - at.block * kQueries;
  }

  // ---- products
  // What follows from it is computed in every step: the compiler would keep it in registers, of
  // which there are none.
  static __device__ __forceinline__ u32 not_hoisted(u32 x) {
    asm volatile("" : "+r"(x));
    return x;
  }
  // S^T of a new block of queries.
  __device__ __forceinline__ void start_s(int step, const Step& at) {
    const Stage<kStagesQ> stage(step);
    mbarrier_wait(barrier(kBarriers.q_full + stage.index), stage.parity);
    clear_tail(kSmem.offset_q + stage.index * kSmem.q, kQueries, queries_left(at));
    start_scores(s_, kSmem.offset_k, q_address(step));
  }
  __device__ __forceinline__ void take_dout(int step, const Step& at) {
    const Stage<kStagesDout> stage(step);
    mbarrier_wait(barrier(kBarriers.dout_full + stage.index), stage.parity);
    clear_tail(kSmem.offset_dout + stage.index * kSmem.q, kQueries, queries_left(at));
  }
  __device__ __forceinline__ void start_dp(int step) {
    start_scores(dp_, kSmem.offset_v, dout_address(step));
  }
  __device__ __forceinline__ void start_scores(float (&to)[kQueries / 2], int keys, u32 queries) {
    wgmma_fence();
    const u64 a = wgmma_descriptor(not_hoisted(smem_ + keys + group_ * kGroupKeys * kRowBytes), 16);
    const u64 b = wgmma_descriptor(queries, 16);
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i)
      Scores::template ss<Major::k>(to, wgmma_advance(a, i % 4 * 32 + i / 4 * kSlabK),
                                    wgmma_advance(b, i % 4 * 32 + i / 4 * kSlabQ), i != 0);
    wgmma_commit();
  }
  // dV += P^T dO and dK += dS^T Q.
  __device__ __forceinline__ void start_dv_dk(int step) {
    wgmma_fence();
    const u64 dout = wgmma_descriptor(dout_address(step), kSlabQ);
#pragma unroll
    for (int i = 0; i < kQueries / 16; ++i)
      Sums::template rs<Major::mn>(dv_, weights_[i], wgmma_advance(dout, i * 2048),
                                   i == 0 ? step : 1);
    const u64 q = wgmma_descriptor(q_address(step), kSlabQ);
#pragma unroll
    for (int i = 0; i < kQueries / 16; ++i)
      Sums::template rs<Major::mn>(dk_, ds_[i], wgmma_advance(q, i * 2048), i == 0 ? step : 1);
    wgmma_commit();
  }
  __device__ __forceinline__ void end_dv_dk() {
    wgmma_wait<0>();
    wgmma_settle(dv_);
    wgmma_settle(dk_);
    wgmma_settle(weights_);
    wgmma_settle(ds_);
  }
  // dQ = dS K: the warpgroup's half of the rows, or of the columns.
  __device__ __forceinline__ void start_dq(int step) {
    named_barrier_sync(ds_barrier(step, group_ ^ 1), 256);
    wgmma_fence();
    const u32 row = splits_dq_rows(kTile) ? group_ * 64 * kRowBytes : 0;
    const u32 slab = splits_dq_rows(kTile) ? 0 : group_ * kSlabK;
    const u64 a = wgmma_descriptor(ds_address(step) + row, 16);
    const u64 b = wgmma_descriptor(not_hoisted(smem_ + kSmem.offset_k + slab), kSlabK);
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i)
      Dq::template ss<Major::mn>(dq_, wgmma_advance(a, i % 4 * 32 + i / 4 * kSlabQ),
                                 wgmma_advance(b, i * 2048), i != 0);
    wgmma_commit();
  }
  __device__ __forceinline__ void end_dq() {
    wgmma_wait<0>();
    wgmma_settle(dq_);
  }

  // ---- elements
  // S^T to P^T, with masks; a row of the thread is a key, its columns are queries.
  __device__ __forceinline__ void make_p(int step, const Step& at) {
    wgmma_settle(s_);
    const u32 stats = smem_ + kSmem.offset_lse + Stage<kStagesQ>(step).index * kSmem.stat +
                      8 * (lane_ & 3);
    mask(at);
#pragma unroll
    for (int j = 0; j < kQueries / 8; ++j) {
      const float2 lse = load_shared2(stats + 32 * j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& x = s_[4 * j + 2 * r];
        float& y = s_[4 * j + 2 * r + 1];
        x = exp2_approx(fmaf(x, p_.scale_log2, -lse.x));
        y = exp2_approx(fmaf(y, p_.scale_log2, -lse.y));
      }
    }
  }
  // dS^T = P^T (dP^T - D); both packed for dV and dK, dS written for dQ.
  __device__ __forceinline__ void make_ds(int step) {
    wgmma_settle(dp_);
    const u32 stats = smem_ + kSmem.offset_d + Stage<kStagesDout>(step).index * kSmem.stat +
                      8 * (lane_ & 3);
    const u32 to = ds_address(step) + group_ * kSlabQ;
    // Of the 8 x 8 blocks that stmatrix takes: queries of lane / 16, keys of lane / 8.
    const int row = (lane_ >> 4) * 8 + (lane_ & 7), chunk = 2 * warp_ + (lane_ >> 3 & 1);
    const u32 place = to + swizzle128(static_cast<u32>(row * kRowBytes + chunk * 16));
#pragma unroll
    for (int j = 0; j < kQueries / 8; ++j) {
      const float2 d = load_shared2(stats + 32 * j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = j % 2 * 2 + r;
        const float x = s_[4 * j + 2 * r], y = s_[4 * j + 2 * r + 1];
        weights_[j / 2][i] = Element::pack(x, y);
        ds_[j / 2][i] =
            Element::pack(x * (dp_[4 * j + 2 * r] - d.x), y * (dp_[4 * j + 2 * r + 1] - d.y));
      }
      // 16 rows further is the same place under the swizzle.
      if (j % 2 == 1) stmatrix_transposed(place + j / 2 * 16 * kRowBytes, ds_[j / 2]);
    }
    fence_proxy_async();
  }
  // dS is there, and this warpgroup's dQ has read the one before.
  __device__ __forceinline__ void announce_ds(int step) {
    named_barrier_arrive(ds_barrier(step, group_), 256);
  }

  // By lengths, causal mask and window. Queries behind the end have an lse of +inf.
  __device__ __forceinline__ void mask(const Step& at) {
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
        float& x = s_[4 * (i / 2) + 2 * r + i % 2];
        x = (sees >> i & 1) != 0 ? x : -INFINITY;
      }
    }
  }

  // ---- results
  // A block of dQ: [2 warpgroups][kDqGroups][128 threads][4], see dq_place().
  __device__ __forceinline__ void send_dq(const Step& at) {
    const Problem& problem = p_.rows.problem;
    const int head = keys_.kv_head * p_.group + at.head;
    const std::int64_t row =
        first_padded_row(problem, keys_.batch_idx, keys_.row_q) + at.block * kQueries;
    float* to = p_.rows.dq + padded_index(problem, head, row) * kDim +
                threadIdx.x / 128 * (128 * kDqRegisters) + (threadIdx.x & 127) * 4;
#pragma unroll
    for (int j = 0; j < kDqGroups; ++j)
      reduce_add4(to + j * 512, {dq_[4 * j], dq_[4 * j + 1], dq_[4 * j + 2], dq_[4 * j + 3]});
  }

  // Rows of the thread: keys first_key_ and first_key_ + 8.
  __device__ __forceinline__ void store(const Operand& to, std::int64_t dim,
                                        const float (&x)[kDim / 2], float factor) {
    const int mine = lane_ & 1, chunks = static_cast<int>(dim) / 8;
    const std::int64_t batch = p_.rows.problem.is_ragged ? 0 : keys_.batch_idx;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = first_key_ + 8 * r;
      auto* row = static_cast<typename Element::Stored*>(to.data) +
                  row_offset(to, batch, std::int64_t{keys_.row_k} + key, keys_.kv_head);
      // Of an even group of eight columns for even lanes, of an odd one for odd lanes.
      auto* half = reinterpret_cast<HalfChunk*>(reinterpret_cast<Chunk*>(row) + mine) +
                   (lane_ >> 1 & 1);
#pragma unroll
      for (int j = 0; j < kDim / 8; j += 2) {
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

  // Named barriers. A warpgroup can announce dS of a step before the other has waited for the one
  // before, so each stage has its own.
  static constexpr int kDsBarrier = 1, kClearBarrier = kDsBarrier + kStagesDs * kWarpgroups;
  static __device__ __forceinline__ int ds_barrier(int step, int group) {
    return kDsBarrier + Stage<kStagesDs>(step).index * kWarpgroups + group;
  }

  const Params& p_;
  const Loader<kTile> loader_;
  const u32 smem_;
  const KeyBlock& keys_;
  const int group_, lane_, warp_, first_key_;
  float s_[kQueries / 2], dp_[kQueries / 2];
  u32 weights_[kQueries / 16][4], ds_[kQueries / 16][4];
  float dk_[kDim / 2], dv_[kDim / 2], dq_[kDqRegisters];
};

}  // namespace headrace::cuda::sm90::bwd
