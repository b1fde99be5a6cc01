// S of a k-block becomes P, by a warpgroup of the transposed kernels.
//
// Thread (warp w, g = lane / 4, t = lane % 4) has of S the keys 16 w + g and eight more of each 64,
// of rows 2 t and the next of each 8.
#pragma once

#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/sm90/element.cuh"
#include "backends/cuda/sm90/fwd/softmax.cuh"
#include "backends/cuda/sm90/fwd/transposed_rows.cuh"

namespace headrace::cuda::sm90::fwd {

template <Tile kTile, class Element>
class SplitSoftmax {
  static constexpr int kKeys = kTile.keys, kRows = kTile.transposed_rows, kKeyTiles = kKeys / 64;
  using Thread = TransposedThread<kRows>;
  static constexpr int kRegisters = Thread::kRegisters;
  // Rows of a thread; kSummed: the one whose P it adds.
  static constexpr int kMine = Thread::kMine, kTracked = kMine + 1;
  static constexpr int kLog2Scale = Element::kLog2Scale;
  static constexpr float kLargeP = kRescaleAboveSum / (kKeys / 4);  // so many sum to no more

 public:
  using Registers = float[kKeyTiles][kRegisters];  // S, then P
  static constexpr int kSummed = kMine;
  static constexpr bool kIsLazy =
      Element::kHasFloatRange && kTile.head_dim <= 128;  // as Scores::kIsLazy
  using Factors = float[kTracked];                       // of O and of the sums of rows

  // `barrier`: a named one, of the warpgroup.
  __device__ __forceinline__ SplitSoftmax(const Params& p, u32 smem, int barrier)
      : p_(p),
        barrier_(barrier),
        warp_(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5, 0) % 4),
        lane_(static_cast<int>(threadIdx.x) & 31),
        buffers_{smem},
        c_(p.scale_log2) {}

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (float& x : ref_) x = -INFINITY;
  }
  // row_max_ref of the row whose P the thread adds; of rows that are computed again the maximum.
  __device__ __forceinline__ float reference() const { return ref_[kSummed]; }

  // S of k-block n becomes P. Whether sums of the k-blocks to the right must be multiplied by
  // `factor` first.
  __device__ __forceinline__ bool update(Registers& s, const SplitItem& item, int n, bool is_first,
                                         bool is_precise, Factors& factor) {
    const bool is_masked = item.is_masked(n);
    if (is_masked) [[unlikely]]
      mask(s, item, n);
    if (is_precise) {
      precise_update(s, factor);
      return true;
    }
    bool moves = false;
    if constexpr (!kIsLazy) {
      moves = conditional_update(s, factor);
    } else if (is_first || (is_masked && any_row_is_new())) {
      exchange_max(s);
#pragma unroll
      for (int j = 0; j < kTracked; ++j)
        if (ref_[j] == -INFINITY) ref_[j] = __fmul_rn(exchanged(row_of(j), 0), c_) - kLog2Scale;
    }
    exponentiate(s);
    return moves;
  }
  // S of a k-block that all rows see, with references that stay.
  __device__ __forceinline__ void exponentiate(Registers& s) const {
#pragma unroll
    for (int i = 0; i < kKeyTiles * kRegisters; ++i) {
      const float ref = ref_[Thread::mine_of(i)] == -INFINITY ? 0.0f : ref_[Thread::mine_of(i)];
      float& x = s[i / kRegisters][i % kRegisters];
      x = ex2_approx_ftz(fmaf(x, c_, -ref));
    }
  }
  // Of a thread's P: lazy_update() must decide. Before the first k-block no sum can be too large.
  __device__ __forceinline__ bool is_large(const Registers& s, bool is_first) const {
    bool is_large = false;
#pragma unroll
    for (int i = 0; i < kKeyTiles * kRegisters; ++i)
      is_large |= !(s[i / kRegisters][i % kRegisters] <= kLargeP);
    return is_large && !is_first;
  }

  // P in shared memory, for sums and as the operand of the product.
  __device__ __forceinline__ void store(const Registers& s, int buffer) const {
#pragma unroll
    for (int i = 0; i < kKeyTiles * kMine; ++i) {
      const int tile = i / kMine, h = i % 2, j = i % kMine / 2 * 2;
      const float* x = s[tile] + Thread::register_of(j, h);
      store_shared2(buffers_.prob(buffer, tile * 64 + 16 * warp_ + g() + h * 8, row_of(j)), x[0],
                    x[1]);
    }
    pack(s, buffer);
  }

  // What the thread adds of P, which all threads have stored, and the largest of them.
  __device__ __forceinline__ float sum_of_probs(int buffer, float& max) const {
    return buffers_.sum_of_probs(buffer, warp_, lane_, max);
  }
  // Softmax::lazy_update() where some P is large, which all threads have stored. `thread_sum`,
  // `max`: sum_of_probs(). P is packed again.
  __device__ __forceinline__ void lazy_update(Registers& s, int buffer, float thread_sum, float max,
                                              Factors& factor) {
    exchange_ ^= 1;
    if (lane_ < kRows) {
      store_shared(buffers_.exchange(exchange_, warp_, lane_), __float_as_uint(thread_sum));
      store_shared(buffers_.exchange(exchange_, 4 + warp_, lane_), __float_as_uint(max));
    }
    sync();
#pragma unroll
    for (int j = 0; j < kTracked; ++j) {
      const bool grows = exchanged(row_of(j), 0) > kRescaleAboveSum;
      const float growth = grows ? fminf(__log2f(exchanged(row_of(j), 4)), 126.0f) : 0.0f;
      factor[j] = ex2_approx_ftz(-growth);
      ref_[j] += growth;
    }
#pragma unroll
    for (int i = 0; i < kKeyTiles * kRegisters; ++i)
      s[i / kRegisters][i % kRegisters] *= factor[Thread::mine_of(i)];
    pack(s, buffer);
  }

 private:
  // Softmax::conditional_update(), which before the first k-block is first_block().
  __device__ __forceinline__ bool conditional_update(const Registers& s, Factors& factor) {
    bool moves = false;
    exchange_max(s);
#pragma unroll
    for (int j = 0; j < kTracked; ++j) {
      const float max = __fmul_rn(exchanged(row_of(j), 0), c_);
      const bool grows =
          max - ref_[j] > static_cast<float>(kLog2Scale + Element::kRescaleThreshold);
      const float next = grows ? max - kLog2Scale : ref_[j];
      factor[j] = grows ? ex2_approx_ftz(ref_[j] - next) : 1.0f;
      ref_[j] = next;
      moves |= grows;
    }
    return __any_sync(0xffffffffu, moves);
  }
  // PreciseSoftmax::update(): ref_ is the maximum of the scores.
  __device__ __forceinline__ void precise_update(Registers& s, Factors& factor) {
    exchange_max(s);
#pragma unroll
    for (int j = 0; j < kTracked; ++j) {
      const float next = fmaxf(ref_[j], exchanged(row_of(j), 0));
      factor[j] = ref_[j] == next ? 1.0f : ex2_approx_ftz((ref_[j] - next) * c_);
      ref_[j] = next;
    }
#pragma unroll
    for (int i = 0; i < kKeyTiles * kRegisters; ++i) {
      const float ref = ref_[Thread::mine_of(i)] == -INFINITY ? 0.0f : ref_[Thread::mine_of(i)];
      float& x = s[i / kRegisters][i % kRegisters];
      x = ex2_approx_ftz(fmaf(x - ref, c_, static_cast<float>(Element::kPreciseLog2Scale)));
    }
  }

  __device__ __forceinline__ bool any_row_is_new() const {
    bool is_new = false;
#pragma unroll
    for (int j = 0; j < kMine; ++j) is_new |= ref_[j] == -INFINITY;
    return __any_sync(0xffffffffu, is_new);  // a warp has all rows
  }
  __device__ __forceinline__ void mask(Registers& s, const SplitItem& item, int n) {
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      const int query = row_of(j) * p_.tiles.pack_inverse >> 16,
                first = n * kKeys + 16 * warp_ + g();
      const int begin = max(0, item.left + query) - first;
      const int end = min(item.seqlen_k, item.right + query) - first;
#pragma unroll
      for (int i = 0; i < kKeyTiles * 2; ++i) {
        const int key = i / 2 * 64 + i % 2 * 8;
        if (key < begin || key >= end) s[i / 2][Thread::register_of(j, i % 2)] = -INFINITY;
      }
    }
  }

  // ---- rows, and their exchange between warps
  __device__ __forceinline__ int g() const { return lane_ >> 2; }
  __device__ __forceinline__ int row_of(int j) const { return row_of_thread<kRows>(j, lane_); }
  __device__ __forceinline__ void sync() const { bar_sync(barrier_, 128); }

  // exchanged(row, 0) is then the maximum of S.
  __device__ __forceinline__ void exchange_max(const Registers& s) {
    exchange_ ^= 1;
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      float max = -INFINITY;
#pragma unroll
      for (int i = 0; i < kKeyTiles * 2; ++i)
        max = fmaxf(max, s[i / 2][Thread::register_of(j, i % 2)]);
#pragma unroll
      for (int step = 4; step < 32; step *= 2)
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, step));
      if (lane_ < 4)
        store_shared(buffers_.exchange(exchange_, warp_, row_of(j)), __float_as_uint(max));
    }
    sync();
  }
  __device__ __forceinline__ float exchanged(int row, int first) const {
    float max = __uint_as_float(load_shared(buffers_.exchange(exchange_, first, row)));
#pragma unroll
    for (int i = 1; i < 4; ++i)
      max = fmaxf(max, __uint_as_float(load_shared(buffers_.exchange(exchange_, first + i, row))));
    return max;
  }

  __device__ __forceinline__ void pack(const Registers& s, int buffer) const {
#pragma unroll
    for (int i = 0; i < kKeyTiles * kMine; ++i) {
      const int tile = i / kMine, h = i % 2, j = i % kMine / 2 * 2;
      const float* x = s[tile] + Thread::register_of(j, h);
      const int key = tile * 64 + 16 * warp_ + g() + h * 8;
      store_shared(buffers_.packed(buffer) +
                       static_cast<u32>(j / 2 * kKeys * 16 + key * 16 + (lane_ & 3) * 4),
                   Element::pack(x[0], x[1]));
    }
  }

  const Params& p_;
  const int barrier_, warp_, lane_;
  const TransposedBuffers<kTile> buffers_;
  const float c_;
  int exchange_ = 0;  // of what warps exchange
  float ref_[kTracked];
};

}  // namespace headrace::cuda::sm90::fwd
