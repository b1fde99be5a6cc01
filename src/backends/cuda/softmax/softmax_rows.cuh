// Shared by the softmax kernels: offsets of rows, segments of a row in registers, reductions over
// the threads of a row.
#pragma once

#include "backends/cuda/common/element.cuh"
#include "backends/cuda/softmax/softmax.h"

namespace headrace::cuda::softmax {

// Element offsets of a row in kN operands.
template <int kN>
__device__ inline void offsets_of(const RowSpace& rows, std::int64_t row,
                                  const RowOperand* const (&operands)[kN],
                                  std::int64_t (&offsets)[kN]) {
  for (int n = 0; n < kN; ++n) offsets[n] = 0;
#pragma unroll
  for (int i = kMaxRowAxes - 1; i >= 0; --i) {
    if (i >= rows.num_axes) continue;
    const std::int64_t idx = i == 0 ? row : row % rows.sizes[i];
    if (i > 0) row /= rows.sizes[i];
#pragma unroll
    for (int n = 0; n < kN; ++n) offsets[n] += idx * operands[n]->strides[i];
  }
}

// Elements of one thread in a segment of lanes * kElems elements: vectors of kVec adjacent
// elements, interleaved among the lanes. kVec > 1 needs stride 1, 16-byte alignment and rows of
// whole vectors. `rest`: elements from the beginning of the segment to the end of the row; may
// exceed the segment.
template <class T, int kVec, int kElems>
struct RowSegment {
  struct alignas(kVec * sizeof(T)) Pack {
    T e[kVec];
  };
  static_assert(kElems % kVec == 0);

  // factor * element; `fill` past the end of the row. __fmul_rn keeps the product from being fused,
  // so that the largest element equals the maximum that is subtracted from it.
  static __device__ void load(const T* x, std::int64_t stride, int rest, int lane, int lanes,
                              float factor, float fill, float (&s)[kElems]) {
    if constexpr (kVec > 1) {
      const auto* packs = reinterpret_cast<const Pack*>(x);
#pragma unroll
      for (int v = 0; v < kElems / kVec; ++v) {
        const int idx = v * lanes + lane;
        if (idx * kVec < rest) {
          const Pack pack = packs[idx];
#pragma unroll
          for (int e = 0; e < kVec; ++e) s[v * kVec + e] = __fmul_rn(factor, load_real(pack.e, e));
        } else {
#pragma unroll
          for (int e = 0; e < kVec; ++e) s[v * kVec + e] = fill;
        }
      }
    } else {
#pragma unroll
      for (int v = 0; v < kElems; ++v) {
        const int idx = v * lanes + lane;
        s[v] = idx < rest ? __fmul_rn(factor, load_real(x, idx * stride)) : fill;
      }
    }
  }

  static __device__ void store(T* y, std::int64_t stride, int rest, int lane, int lanes,
                               const float (&s)[kElems]) {
    if constexpr (kVec > 1) {
      auto* packs = reinterpret_cast<Pack*>(y);
#pragma unroll
      for (int v = 0; v < kElems / kVec; ++v) {
        Pack pack;
#pragma unroll
        for (int e = 0; e < kVec; ++e) store_real(pack.e, e, s[v * kVec + e]);
        const int idx = v * lanes + lane;
        if (idx * kVec < rest) packs[idx] = pack;
      }
    } else {
#pragma unroll
      for (int v = 0; v < kElems; ++v) {
        const int idx = v * lanes + lane;
        if (idx < rest) store_real(y, idx * stride, s[v]);
      }
    }
  }
};

// Elements from `first` to the end of the row, clamped to int.
__device__ inline int rest_of(std::int64_t length, std::int64_t first) {
  constexpr std::int64_t kMost = 1 << 30;
  return static_cast<int>(length - first < kMost ? length - first : kMost);
}

// Maximum of some elements and the sum of exp(element - maximum).
struct MaxSum {
  float max, sum;
};

// If all elements are -inf, any finite reference gives zeros and lets a NaN through.
__device__ inline float reference_of(float max) { return max == -HUGE_VALF ? 0.f : max; }

// Reduction operators. Each is bitwise commutative, so that all threads get the same result.
struct Max {
  static constexpr float kIdentity = -HUGE_VALF;
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }  // ignores NaN
};
struct Sum {
  static constexpr float kIdentity = 0;
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Merge {
  static constexpr MaxSum kIdentity{-HUGE_VALF, 0};
  __device__ MaxSum operator()(const MaxSum& a, const MaxSum& b) const {
    const float max = fmaxf(a.max, b.max), reference = reference_of(max);
    return {max, __fadd_rn(__fmul_rn(a.sum, expf(a.max - reference)),
                           __fmul_rn(b.sum, expf(b.max - reference)))};
  }
};

__device__ inline float shfl_xor(float x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
__device__ inline MaxSum shfl_xor(const MaxSum& x, int mask) {
  return {__shfl_xor_sync(~0u, x.max, mask), __shfl_xor_sync(~0u, x.sum, mask)};
}

template <class Value, class Op>
__device__ Value warp_reduce(Value x, Op op) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x = op(x, shfl_xor(x, mask));
  return x;
}

// Threads that share a row: `lane` of `lanes`; `row` is the row within the CTA.
struct WarpRow {
  static constexpr int kRows = kWarpsOfCta;
  static constexpr int kThreads = kWarp * kWarpsOfCta;
  static constexpr int kCtasPerSm = 8;  // resident per SM: 64 registers per thread
  int row = static_cast<int>(threadIdx.x) / kWarp;
  int lane = static_cast<int>(threadIdx.x) % kWarp, lanes = kWarp;

  template <class Value, class Op>
  __device__ Value reduce(Value x, Op op) const {
    return warp_reduce(x, op);
  }
};

struct CtaRow {
  static constexpr int kRows = 1;
  static constexpr int kThreads = kMaxThreads;
  static constexpr int kCtasPerSm = 1;
  int row = 0;
  int lane = static_cast<int>(threadIdx.x), lanes = static_cast<int>(blockDim.x);

  template <class Value, class Op>
  __device__ Value reduce(Value x, Op op) const {
    __shared__ Value warp_values[kMaxThreads / kWarp];
    x = warp_reduce(x, op);
    __syncthreads();  // the previous reduction has been read
    if (lane % kWarp == 0) warp_values[lane / kWarp] = x;
    __syncthreads();
    const int warp = lane % kWarp;
    return warp_reduce(warp < lanes / kWarp ? warp_values[warp] : Value(Op::kIdentity), op);
  }
};

struct ColumnRow {
  static constexpr int kRows = kColumnRows;
  static constexpr int kThreads = kColumnRows * kColumnThreads;
  static constexpr int kCtasPerSm = 2;
  int row = static_cast<int>(threadIdx.x);
  int lane = static_cast<int>(threadIdx.y), lanes = kColumnThreads;

  template <class Value, class Op>
  __device__ Value reduce(Value x, Op op) const {
    __shared__ Value thread_values[kColumnThreads][kColumnRows];
    __syncthreads();  // the previous reduction has been read
    thread_values[lane][row] = x;
    __syncthreads();
    x = thread_values[0][row];
    for (int i = 1; i < kColumnThreads; ++i) x = op(x, thread_values[i][row]);
    return x;
  }
};

}  // namespace headrace::cuda::softmax
