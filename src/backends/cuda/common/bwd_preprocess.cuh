// The kernels of bwd_preprocess.h.
#pragma once

#include <cfloat>
#include <type_traits>

#include "backends/cuda/common/constants.h"
#include "backends/cuda/common/element.cuh"
#include "backends/cuda/common/padded_block.cuh"
#include "backends/cuda/device/barrier.cuh"

namespace headrace::cuda {

inline constexpr int kPreprocessThreads = 256;
// CTAs per SM: one CTA's loads are in flight while the other waits for its own.
inline constexpr int kPreprocessCtas = 2;
inline constexpr int kDsinksThreads = 512;
// Lanes that share a row, 16 bytes each per load: a warp reads 128 bytes of each of four rows.
inline constexpr int kLanesPerRow = 8;
inline constexpr int kRowStride = kPreprocessThreads / kLanesPerRow;
inline constexpr int kRowsPerLane = static_cast<int>(kRowPadding) / kRowStride;
static_assert(kRowsPerLane <= kLanesPerRow);  // a lane stores a row

__device__ inline std::int64_t lse_offset(const LseOperand& x, const PaddedBlock& block, int row) {
  return block.batch_idx * x.stride_batch + block.head * x.stride_head +
         (block.sequence.row_q + block.first_row + row) * x.stride_q;
}

struct BwdPreprocessParams {
  Sizes sizes;
  Lengths lengths;
  Operand out, dout;
  LseOperand lse, dlse;
  SinkArgs sinks;
  BwdRows rows;
  float lse_scale, delta_scale;
  const KvAbsMax* kv_abs_max;
};
struct KvAbsMaxParams {
  Sizes sizes;
  Lengths lengths;
  Operand k, v;
  KvAbsMax* kv_abs_max;
};
struct ConvertDqParams {
  Sizes sizes;
  Lengths lengths;
  Operand dq;
  const float* dq_accum;
  std::int64_t dq_accum_cols;
  float scale;
  bool is_aligned;  // to 16 bytes
};
struct DsinksParams {
  Sizes sizes;
  SinkArgs sinks;
  const float *delta, *lse;
  float lse_scale, delta_scale;
  float* dsinks;  // [num_heads]
  std::int64_t dsinks_stride;
};

// 16 bytes of a row, as words: with 16-bit elements the compiler would use one register each.
template <class T>
struct alignas(16) Chunk {
  static constexpr int kElements = 16 / static_cast<int>(sizeof(T)), kPairs = kElements / 2;
  unsigned words[4];
  // Elements 2 i and 2 i + 1.
  __device__ __forceinline__ float2 pair(int i) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return {__uint_as_float(words[2 * i]), __uint_as_float(words[2 * i + 1])};
    } else if constexpr (std::is_same_v<T, __half>) {
      __half2 both;
      memcpy(&both, &words[i], sizeof both);
      return __half22float2(both);
    } else {
      return {__uint_as_float(words[i] << 16), __uint_as_float(words[i] & 0xffff0000u)};
    }
  }
};
// kIsWholeChunks: rows are whole aligned chunks. Otherwise elements past `dim` are 0.
template <class T, bool kIsWholeChunks>
__device__ __forceinline__ Chunk<T> load_chunk(const T* row, std::int64_t dim, int chunk) {
  if constexpr (kIsWholeChunks) {
    return reinterpret_cast<const Chunk<T>*>(row)[chunk];
  } else {
    constexpr int kElements = Chunk<T>::kElements;
    T some[kElements];
#pragma unroll
    for (int i = 0; i < kElements; ++i)
      some[i] = chunk * kElements + i < dim ? row[chunk * kElements + i] : T(0.0f);
    Chunk<T> x;
    memcpy(x.words, some, sizeof some);
    return x;
  }
}

// max |K| and max |V| over all keys of a KV head, per warp. load() is issued after the loads of the
// rows, largest() reduces once those have arrived.
class KvAbsMaxLoader {
 public:
  __device__ __forceinline__ void load(const BwdPreprocessParams& c, const PaddedBlock& block) {
    // The only wait for kv_abs_max_kernel. The first block of every sequence is filled, so at least
    // one CTA reaches this wait; a kernel that waits for this one therefore also waits for that
    // one.
    griddep_wait();
    const Sizes& p = c.sizes;
    const unsigned group =
        static_cast<unsigned>(p.num_heads) / static_cast<unsigned>(p.num_kv_heads);
    const unsigned kv_head = static_cast<unsigned>(block.head) / group;
    num_chunks_ = static_cast<int>(num_key_chunks(p));
    bounds_ = c.kv_abs_max + (block.batch_idx * p.num_kv_heads + kv_head) * num_chunks_;
    if (lane() < num_chunks_) first_ = bounds_[lane()];
  }
  __device__ __forceinline__ KvAbsMax largest() const {
    // Non-negative floats compare like their bits, and NaN is the largest.
    unsigned k = __float_as_uint(first_.k), v = __float_as_uint(first_.v);
#pragma unroll 1
    for (int i = lane() + 32; i < num_chunks_; i += 32) {
      k = max(k, __float_as_uint(bounds_[i].k));
      v = max(v, __float_as_uint(bounds_[i].v));
    }
    return {__uint_as_float(__reduce_max_sync(0xffffffffu, k)),
            __uint_as_float(__reduce_max_sync(0xffffffffu, v))};
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) & 31; }
  const KvAbsMax* bounds_;
  int num_chunks_;
  KvAbsMax first_{};
};

// Of a row or of a lane's part of it: rowsum(dO * O), and sum |dO|.
struct RowSums {
  float delta = 0.0f, abs_dout = 0.0f;
};

// Partial sums of kRows rows, first, first + kRowStride, ... All rows are loaded before the first
// is used; `meanwhile` runs between the loads and their use. The order of the sums is fixed.
template <class T, bool kIsWholeChunks, bool kIsFixedPoint, int kRows, class Meanwhile>
__device__ __forceinline__ void compute_delta(const BwdPreprocessParams& c,
                                              const PaddedBlock& block, int first, int lane,
                                              RowSums* sums, Meanwhile meanwhile) {
  const auto row_of = [&](const Operand& x) {
    const std::int64_t packed = block.sequence.row_q + block.first_row;
    return static_cast<const T*>(x.data) + row_offset(x, block.batch_idx, packed, block.head) +
           first * x.stride_seq;
  };
  const Operand &out = c.out, &dout = c.dout;
  const std::int64_t dim = c.sizes.head_dim_v;
  const T *out_row = row_of(out), *dout_row = row_of(dout);
  const int chunks = static_cast<int>(ceil_div<std::int64_t>(dim, Chunk<T>::kElements));
  for (int first_chunk = 0; first_chunk < chunks; first_chunk += kLanesPerRow) {
    const int chunk = first_chunk + lane;
    Chunk<T> x[kRows]{}, y[kRows]{};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (chunk >= chunks || first + i * kRowStride >= block.num_rows) continue;
      const std::int64_t row = i * kRowStride;
      x[i] = load_chunk<T, kIsWholeChunks>(dout_row + row * dout.stride_seq, dim, chunk);
      y[i] = load_chunk<T, kIsWholeChunks>(out_row + row * out.stride_seq, dim, chunk);
    }
    if (first_chunk == 0) meanwhile();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < Chunk<T>::kPairs; ++j) {
        const float2 a = x[i].pair(j), b = y[i].pair(j);
        sum = fmaf(a.y, b.y, fmaf(a.x, b.x, sum));
        if constexpr (kIsFixedPoint) sums[i].abs_dout += fabsf(a.x) + fabsf(a.y);
      }
      sums[i].delta += sum;
    }
  }
}
// Sums each row over the lanes that share it; lanes i and i + 4 get row i.
__device__ __forceinline__ float row_sum(const float (&x)[kRowsPerLane], int lane) {
  static_assert(kRowsPerLane == 4 && kLanesPerRow == 8);
  const auto traded = [](float kept, float given, int step) {
    return kept + __shfl_xor_sync(0xffffffffu, given, step);
  };
  const bool is_odd = (lane & 1) != 0, is_upper = (lane & 2) != 0;
  const float low = traded(is_odd ? x[1] : x[0], is_odd ? x[0] : x[1], 1);
  const float high = traded(is_odd ? x[3] : x[2], is_odd ? x[2] : x[3], 1);
  const float one = traded(is_upper ? high : low, is_upper ? low : high, 2);
  return traded(one, one, 4);
}

// Upper bound of the sum of P in a row; a sink takes the rest of 1.
__device__ __forceinline__ float max_p_sum(const BwdPreprocessParams& c, const PaddedBlock& block,
                                           float lse) {
  if (!c.sinks.has_sinks) return 1.0f;
  const float sink = c.sinks.sinks[block.head * c.sinks.stride];
  constexpr float kRoundings = 0x1p-18f;  // rounding errors of an lse of 1 and of the exponentials
  return fminf(1.0f, 1.0f - expf(sink - lse) + kRoundings * (1.0f + fabsf(lse)));
}
__device__ __forceinline__ float dq_fixed_point_scale(const BwdPreprocessParams& c,
                                                      const PaddedBlock& block,
                                                      const KvAbsMax& keys, const RowSums& sums,
                                                      float delta, float lse) {
  // P is rounded, and the rounding error of a large lse scales it.
  const float slack = 1.01f + 0x1p-20f * fabsf(lse);
  const float bound =
      (sums.abs_dout * keys.v + fabsf(delta)) * keys.k * slack * max_p_sum(c, block, lse);
  if (!(bound < HUGE_VALF)) return NAN;
  constexpr int kBias = 127, kMost = 126;  // 1 / 2^126 is not subnormal
  const int exponent = static_cast<int>(__float_as_uint(bound) >> 23) - kBias + 1;
  return __uint_as_float(static_cast<unsigned>(min(kFixedPointBits - exponent, kMost) + kBias)
                         << 23);
}

// -inf past the last row.
__device__ __forceinline__ float load_lse(const BwdPreprocessParams& c, const PaddedBlock& block,
                                          int row) {
  if (row >= block.num_rows) return -HUGE_VALF;
  return static_cast<const float*>(c.lse.data)[lse_offset(c.lse, block, row)];
}
// Stores delta and lse of a row, in the lane that has its sums.
template <bool kIsFixedPoint>
__device__ __forceinline__ void store_row(const BwdPreprocessParams& c, const PaddedBlock& block,
                                          int row, const KvAbsMax& keys, const RowSums& sums,
                                          float lse) {
  float delta = sums.delta;
  const LseOperand& dlse = c.dlse;
  const bool is_empty = lse == -HUGE_VALF;
  if (!is_empty && dlse.data != nullptr)
    delta -= static_cast<const float*>(dlse.data)[lse_offset(dlse, block, row)];
  const std::int64_t to = padded_offset(c.sizes, block.head, block.padded_row) + row;
  c.rows.delta[to] = is_empty ? 0.0f : delta * c.delta_scale;
  // Clamped, so that a finite lse stays finite.
  c.rows.lse[to] = is_empty ? copysignf(HUGE_VALF, c.lse_scale)
                            : fminf(fmaxf(lse * c.lse_scale, -FLT_MAX), FLT_MAX);
  if constexpr (kIsFixedPoint) {
    const bool has_weight = fabsf(lse) != HUGE_VALF;  // +inf: the sink takes all of P
    const float scale = has_weight ? dq_fixed_point_scale(c, block, keys, sums, delta, lse) : 1.0f;
    c.rows.dq_scale[dq_scale_index(to)] = static_cast<std::uint16_t>(__float_as_uint(scale) >> 16);
  }
}

__device__ __forceinline__ void clear_dq(const BwdPreprocessParams& c, const PaddedBlock& block) {
  if (c.rows.dq_accum == nullptr) return;
  const std::int64_t row = padded_offset(c.sizes, block.head, block.padded_row);
  auto* dq = reinterpret_cast<float4*>(c.rows.dq_accum + row * c.rows.dq_accum_cols);
  const int count = static_cast<int>(kRowPadding * c.rows.dq_accum_cols / 4);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kPreprocessThreads)
    dq[i] = {0.0f, 0.0f, 0.0f, 0.0f};
}

// kIsFixedPoint: also writes dq_scale.
template <class T, bool kIsWholeChunks, bool kIsFixedPoint>
__global__ void __launch_bounds__(kPreprocessThreads, kPreprocessCtas)
    bwd_preprocess(const __grid_constant__ BwdPreprocessParams c, std::int64_t num_blocks) {
  const int lane = static_cast<int>(threadIdx.x) % kLanesPerRow;
  const int first = static_cast<int>(threadIdx.x) / kLanesPerRow,
            own_row = first + lane * kRowStride;
  for (std::int64_t idx = blockIdx.x; idx < num_blocks; idx += gridDim.x) {
    const PaddedBlock block = padded_block(c.sizes, c.lengths, idx, threadIdx.x == 0);
    if (!block.is_filled) continue;
    KvAbsMaxLoader bounds;
    float lse = 0.0f;
    const auto meanwhile = [&] {
      if (lane < kRowsPerLane) lse = load_lse(c, block, own_row);
      if constexpr (kIsFixedPoint) bounds.load(c, block);
      clear_dq(c, block);
    };
    RowSums sums[kRowsPerLane];
    if constexpr (kIsWholeChunks) {
      compute_delta<T, true, kIsFixedPoint, kRowsPerLane>(c, block, first, lane, sums, meanwhile);
    } else {
      meanwhile();
#pragma unroll
      for (int i = 0; i < kRowsPerLane; ++i)
        compute_delta<T, false, kIsFixedPoint, 1>(c, block, first + i * kRowStride, lane, &sums[i],
                                                  [] {});
    }
    const auto summed = [&](float RowSums::*of) {
      return row_sum({sums[0].*of, sums[1].*of, sums[2].*of, sums[3].*of}, lane);
    };
    RowSums own_sums{.delta = summed(&RowSums::delta)};
    KvAbsMax keys{};
    if constexpr (kIsFixedPoint) {
      own_sums.abs_dout = summed(&RowSums::abs_dout);
      keys = bounds.largest();
    }
    if (lane < kRowsPerLane) store_row<kIsFixedPoint>(c, block, own_row, keys, own_sums, lse);
  }
}

// Running maximum of |element|, two 16-bit elements per word. Without sign bits f16 and bf16
// compare like integers, and NaN is the largest.
template <class T>
__device__ __forceinline__ unsigned abs_max(unsigned largest, const Chunk<T>& x) {
#pragma unroll
  for (const unsigned word : x.words) largest = __vmaxu2(largest, word & 0x7fff7fffu);
  return largest;
}
// Maximum over the CTA, as floats.
template <class T>
__device__ __forceinline__ KvAbsMax cta_abs_max(unsigned k, unsigned v) {
  constexpr int kWarps = kPreprocessThreads / 32;
  __shared__ unsigned of_warp[2][kWarps];
  k = __reduce_max_sync(0xffffffffu, max(k & 0xffffu, k >> 16));
  v = __reduce_max_sync(0xffffffffu, max(v & 0xffffu, v >> 16));
  if (threadIdx.x % 32 == 0) {
    of_warp[0][threadIdx.x / 32] = k;
    of_warp[1][threadIdx.x / 32] = v;
  }
  __syncthreads();
  const auto number = [](const unsigned(&halves)[kWarps]) {
    unsigned most = 0;
#pragma unroll
    for (const unsigned half : halves) most = max(most, half);
    const auto bits = static_cast<unsigned short>(most);
    T x;
    memcpy(&x, &bits, sizeof x);
    return load_real(&x, 0);
  };
  return {number(of_warp[0]), number(of_warp[1])};
}

// One CTA per chunk of keys: the grid is (num_kv_heads, num_key_chunks, batch).
template <class T>
__global__ void __launch_bounds__(kPreprocessThreads)
    kv_abs_max_kernel(const __grid_constant__ KvAbsMaxParams c) {
  griddep_launch_dependents();
  const Sizes& p = c.sizes;
  const std::int64_t kv_head = blockIdx.x, b = blockIdx.z;
  const int lane = static_cast<int>(threadIdx.x) % kLanesPerRow;
  const int chunks_k = static_cast<int>(p.head_dim) / Chunk<T>::kElements;
  const int chunks_v = static_cast<int>(p.head_dim_v) / Chunk<T>::kElements;
  const Sequence sequence = device_sequence(p, c.lengths, b, false);
  const std::int64_t first = blockIdx.y * kRowPadding + threadIdx.x / kLanesPerRow;
  const auto row_of = [&](const Operand& x) {
    return static_cast<const T*>(x.data) + row_offset(x, b, sequence.row_k + first, kv_head);
  };
  const T *k = row_of(c.k), *v = row_of(c.v);
  unsigned largest_k = 0, largest_v = 0;
  for (int chunk = lane; chunk < max(chunks_k, chunks_v); chunk += kLanesPerRow) {
    // All rows are loaded before the first is used.
    Chunk<T> x[kRowsPerLane]{}, y[kRowsPerLane]{};
#pragma unroll
    for (int i = 0; i < kRowsPerLane; ++i) {
      if (first + i * kRowStride >= sequence.seqlen_k) continue;
      const std::int64_t row = i * kRowStride;
      if (chunk < chunks_k) x[i] = load_chunk<T, true>(k + row * c.k.stride_seq, 0, chunk);
      if (chunk < chunks_v) y[i] = load_chunk<T, true>(v + row * c.v.stride_seq, 0, chunk);
    }
#pragma unroll
    for (int i = 0; i < kRowsPerLane; ++i) {
      largest_k = abs_max(largest_k, x[i]);
      largest_v = abs_max(largest_v, y[i]);
    }
  }
  const KvAbsMax bound = cta_abs_max<T>(largest_k, largest_v);
  if (threadIdx.x == 0)
    c.kv_abs_max[(b * p.num_kv_heads + kv_head) * gridDim.y + blockIdx.y] = bound;
}

// Offset of the four sums of a chunk in a block of rows.
__device__ __forceinline__ std::int64_t dq_accum_offset(const ConvertDqParams& c, int row,
                                                        int chunk) {
  return row / 8 * 8 * c.dq_accum_cols + chunk / 4 * 128 + row % 8 * 16 + chunk % 4 * 4;
}

// Stores two columns of a row.
template <class T>
__device__ inline void store_columns(T* to, std::int64_t dim, int column, const float* from,
                                     bool is_aligned) {
  constexpr int kCount = 2;
  if (is_aligned && column + kCount <= dim) {
    struct alignas(kCount * sizeof(T)) Whole {
      T x[kCount];
    } whole;
#pragma unroll
    for (int i = 0; i < kCount; ++i) store_real(whole.x, i, from[i]);
    *reinterpret_cast<Whole*>(to + column) = whole;
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    if (column + i < dim) store_real(to, column + i, from[i]);
}

template <class T>
__global__ void __launch_bounds__(kPreprocessThreads)
    convert_dq_kernel(const __grid_constant__ ConvertDqParams c, std::int64_t num_blocks) {
  const float scale = c.scale;
  const int chunks = static_cast<int>(c.dq_accum_cols / 4);
  for (std::int64_t idx = blockIdx.x; idx < num_blocks; idx += gridDim.x) {
    const PaddedBlock block = padded_block(c.sizes, c.lengths, idx, false);
    if (block.num_rows <= 0) continue;
    const float* from =
        c.dq_accum + padded_offset(c.sizes, block.head, block.padded_row) * c.dq_accum_cols;
    const Operand& dq = c.dq;
    T* to = static_cast<T*>(dq.data) +
            row_offset(dq, block.batch_idx, block.sequence.row_q + block.first_row, block.head);
    for (int i = static_cast<int>(threadIdx.x); i < block.num_rows * chunks;
         i += kPreprocessThreads) {
      const int row = i / chunks, chunk = i % chunks;
      const auto sums = *reinterpret_cast<const float4*>(from + dq_accum_offset(c, row, chunk));
      // Adding +0 turns -0 into +0.
      const float x[4] = {fmaf(sums.x, scale, 0.0f), fmaf(sums.y, scale, 0.0f),
                          fmaf(sums.z, scale, 0.0f), fmaf(sums.w, scale, 0.0f)};
      T* row_to = to + row * dq.stride_seq;
      const int column = chunk / 4 * 16 + chunk % 4 * 2;
      store_columns(row_to, c.sizes.head_dim, column, x, c.is_aligned);
      store_columns(row_to, c.sizes.head_dim, column + 8, x + 2, c.is_aligned);
    }
  }
}

// One CTA per head. A sink is one more score of every row, with V = 0.
__global__ void __launch_bounds__(kDsinksThreads)
    dsinks_kernel(const __grid_constant__ DsinksParams c) {
  __shared__ double partial[kDsinksThreads / 32];
  const Sizes& p = c.sizes;
  const std::int64_t head = blockIdx.x;
  const float sink = c.sinks.sinks[head * c.sinks.stride];
  const float to_log2 = c.lse_scale == kLog2E ? 1.0f : kLog2E / c.lse_scale;
  const float* delta = c.delta + padded_offset(p, head, 0);
  const float* lse = c.lse + padded_offset(p, head, 0);
  const std::int64_t num_rows = isfinite(sink) ? first_padded_row(p, p.batch, p.total_q) : 0;
  double sum = 0;
  for (std::int64_t row = threadIdx.x; row < num_rows; row += kDsinksThreads)
    // Rounded like the product that made the lse.
    sum -= static_cast<double>(exp2f((__fmul_rn(sink, c.lse_scale) - lse[row]) * to_log2) *
                               (delta[row] * c.delta_scale));
  for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kDsinksThreads / 32; ++warp) sum += partial[warp];
  c.dsinks[head * c.dsinks_stride] = static_cast<float>(sum + 0.0);
}

}  // namespace headrace::cuda
