// The kernels of backward_rows.h.
#pragma once

#include <cfloat>

#include "backends/cuda/common/element.cuh"
#include "backends/cuda/common/padded_part.cuh"

namespace headrace::cuda {

inline constexpr int kRowsThreads = 256;
inline constexpr int kSinkThreads = 512;
// Lanes that share a row, 16 bytes each at a time: a warp reads 128 bytes of four rows.
inline constexpr int kLanesOfRow = 8;

__device__ inline std::int64_t lse_offset(const LseOperand& x, const PaddedPart& part, int row) {
  return part.batch_idx * x.stride_batch + part.head * x.stride_head +
         (part.sequence.row_q + part.first_row + row) * x.stride_q;
}

// The part of a row product that piece `piece` (16 bytes) gives. The order of the sum is the same
// for every alignment.
template <class T>
__device__ inline float dot_piece(const T* a, const T* b, std::int64_t dim, int piece,
                                  bool is_aligned) {
  constexpr int kElements = 16 / static_cast<int>(sizeof(T));
  const int first = piece * kElements, count = min(static_cast<int>(dim) - first, kElements);
  float sum = 0.0f;
  if (is_aligned && count == kElements) {
    alignas(16) T x[kElements], y[kElements];
    *reinterpret_cast<uint4*>(x) = *reinterpret_cast<const uint4*>(a + first);
    *reinterpret_cast<uint4*>(y) = *reinterpret_cast<const uint4*>(b + first);
#pragma unroll
    for (int i = 0; i < kElements; ++i) sum = fmaf(load_real(x, i), load_real(y, i), sum);
  } else {
    for (int i = 0; i < count; ++i)
      sum = fmaf(load_real(a, first + i), load_real(b, first + i), sum);
  }
  return sum;
}

template <class T>
__device__ inline float find_d(const BackwardRows& c, const PaddedPart& part, int row, int lane) {
  constexpr int kElements = 16 / static_cast<int>(sizeof(T));
  const Problem& p = c.problem;
  const std::int64_t packed = part.sequence.row_q + part.first_row + row;
  const T* out = static_cast<const T*>(c.args.out.data) +
                 row_offset(c.args.out, part.batch_idx, packed, part.head);
  const Operand& gradient = c.args.gradients.dout;
  const T* dout = static_cast<const T*>(gradient.data) +
                  row_offset(gradient, part.batch_idx, packed, part.head);
  const int num_pieces = static_cast<int>(p.head_dim_v + kElements - 1) / kElements;
  float sum = 0.0f;
  for (int piece = lane; piece < num_pieces; piece += kLanesOfRow)
    sum += dot_piece(dout, out, p.head_dim_v, piece, p.alignment >= kWholeAlignment);
  return sum;
}

template <class T>
__global__ void __launch_bounds__(kRowsThreads)
    prepare_rows(const __grid_constant__ BackwardRows c, std::int64_t num_parts) {
  const int lane = static_cast<int>(threadIdx.x) % kLanesOfRow;
  const int first = static_cast<int>(threadIdx.x) / kLanesOfRow;
  for (std::int64_t idx = blockIdx.x; idx < num_parts; idx += gridDim.x) {
    const PaddedPart part = part_of(c, idx, threadIdx.x == 0);
    if (!part.is_filled) continue;
    const std::int64_t to = padded_index(c.problem, part.head, part.padded_row);
    for (int row = first; row < kRowPadding; row += kRowsThreads / kLanesOfRow) {
      const bool exists = row < part.num_rows;
      float d = exists ? find_d<T>(c, part, row, lane) : 0.0f;
      for (int step = 1; step < kLanesOfRow; step *= 2) d += __shfl_xor_sync(0xffffffffu, d, step);
      if (lane == 0) {
        const LseOperand &lse = c.args.lse, &dlse = c.args.gradients.dlse;
        const float of_row =
            exists ? static_cast<const float*>(lse.data)[lse_offset(lse, part, row)] : -HUGE_VALF;
        const bool is_empty = of_row == -HUGE_VALF;
        if (!is_empty && dlse.data != nullptr)
          d -= static_cast<const float*>(dlse.data)[lse_offset(dlse, part, row)];
        c.d[to + row] = is_empty ? 0.0f : d;
        // A finite lse stays finite.
        c.lse[to + row] =
            is_empty ? HUGE_VALF : fminf(fmaxf(of_row * c.lse_factor, -FLT_MAX), FLT_MAX);
      }
    }
    if (c.dq == nullptr) continue;
    auto* dq = reinterpret_cast<float4*>(c.dq + to * c.dq_floats);
    for (std::int64_t i = threadIdx.x; i < kRowPadding * c.dq_floats / 4; i += kRowsThreads)
      dq[i] = {0.0f, 0.0f, 0.0f, 0.0f};
  }
}

// Where four sums of a row begin.
__device__ __forceinline__ std::int64_t sums_offset(const BackwardRows& c, int row, int piece) {
  if (c.dq_order == SumsOrder::rows) return row * c.dq_floats + 4 * piece;
  return row / 8 * 8 * c.dq_floats + piece / 4 * 128 + row % 8 * 16 + piece % 4 * 4;
}

// kCount columns of a row.
template <int kCount, class T>
__device__ inline void store_columns(T* to, std::int64_t dim, int column, const float* from,
                                     bool is_aligned) {
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
__global__ void __launch_bounds__(kRowsThreads)
    finish_dq(const __grid_constant__ BackwardRows c, std::int64_t num_parts) {
  const Problem& p = c.problem;
  const auto scale = static_cast<float>(p.softmax_scale);
  const bool is_in_rows = c.dq_order == SumsOrder::rows;
  const bool is_aligned = p.alignment >= kWholeAlignment;
  const int pieces = static_cast<int>(c.dq_floats / 4);
  for (std::int64_t idx = blockIdx.x; idx < num_parts; idx += gridDim.x) {
    const PaddedPart part = part_of(c, idx, false);
    const float* from = c.dq + padded_index(p, part.head, part.padded_row) * c.dq_floats;
    const Operand& dq = c.args.gradients.dq;
    T* to = static_cast<T*>(dq.data) +
            row_offset(dq, part.batch_idx, part.sequence.row_q + part.first_row, part.head);
    for (int i = static_cast<int>(threadIdx.x); i < part.num_rows * pieces; i += kRowsThreads) {
      const int row = i / pieces, piece = i % pieces;
      const auto sums = *reinterpret_cast<const float4*>(from + sums_offset(c, row, piece));
      // Adding +0 gives an exact zero one sign.
      const float x[4] = {fmaf(sums.x, scale, 0.0f), fmaf(sums.y, scale, 0.0f),
                          fmaf(sums.z, scale, 0.0f), fmaf(sums.w, scale, 0.0f)};
      T* row_to = to + row * dq.stride_seq;
      if (is_in_rows) {
        store_columns<4>(row_to, p.head_dim, 4 * piece, x, is_aligned);
      } else {
        const int column = piece / 4 * 16 + piece % 4 * 2;
        store_columns<2>(row_to, p.head_dim, column, x, is_aligned);
        store_columns<2>(row_to, p.head_dim, column + 8, x + 2, is_aligned);
      }
    }
  }
}

// A CTA a head: a sink is one more score of every row, whose V is zero.
__global__ void __launch_bounds__(kSinkThreads)
    sink_gradients(const __grid_constant__ BackwardRows c) {
  __shared__ double parts[kSinkThreads / 32];
  const Problem& p = c.problem;
  const std::int64_t head = blockIdx.x;
  const float sink = c.args.sinks[head * c.args.sinks_stride];
  const float to_log2 = c.lse_factor == 1.0f ? kLog2E : 1.0f;
  const float* d = c.d + padded_index(p, head, 0);
  const float* lse = c.lse + padded_index(p, head, 0);
  const std::int64_t num_rows = isfinite(sink) ? first_padded_row(p, p.batch, p.total_q) : 0;
  double sum = 0;
  for (std::int64_t row = threadIdx.x; row < num_rows; row += kSinkThreads)
    // The product is rounded as that of the lse was.
    sum -=
        static_cast<double>(exp2f((__fmul_rn(sink, c.lse_factor) - lse[row]) * to_log2) * d[row]);
  for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kSinkThreads / 32; ++warp) sum += parts[warp];
  c.args.gradients.dsinks[head * c.args.gradients.dsinks_stride] = static_cast<float>(sum + 0.0);
}

}  // namespace headrace::cuda
