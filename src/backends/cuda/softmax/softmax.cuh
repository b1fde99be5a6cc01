// The softmax kernels: forward and backward, rows in registers or streamed.
//
// safe: maximum of the row, then sum of exp(s - maximum), then the result. online: every thread has
// its own maximum and sum, which are merged once (Milakov and Gimelshein, "Online normalizer
// calculation for softmax", 2018, section 3.1).
#pragma once

#include "backends/cuda/common/constants.h"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/softmax/softmax_rows.cuh"

namespace headrace::cuda::softmax {

template <int kElems>
__device__ float max_of(const float (&s)[kElems], float max) {
#pragma unroll
  for (int i = 0; i < kElems; ++i) max = fmaxf(max, s[i]);
  return max;
}

// s = exp(s - reference); returns the sum.
template <int kElems>
__device__ float exponentials(float (&s)[kElems], float reference) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kElems; ++i) {
    s[i] = expf(s[i] - reference);
    sum += s[i];
  }
  return sum;
}

__device__ inline float inverse_of(float sum) { return sum == 0 ? 0.f : 1.f / sum; }

// A row in the registers of its threads: one load, one exponential and one store per element.
template <class T, int kVec, int kElems, class Group>
__device__ MaxSum register_forward(const SoftmaxForwardArgs& args, const Group& group, const T* x,
                                   T* y, std::int64_t length, bool is_online) {
  using Segment = RowSegment<T, kVec, kElems>;
  float s[kElems];
  Segment::load(x, args.x.stride, rest_of(length, 0), group.lane, group.lanes, args.scale,
                -HUGE_VALF, s);
  float max = max_of(s, -HUGE_VALF);
  if (!is_online) max = group.reduce(max, Max{});
  const float sum = exponentials(s, reference_of(max));
  MaxSum row;
  float factor = 1;
  if (is_online) {
    row = group.reduce(MaxSum{max, sum}, Merge{});
    factor = expf(max - reference_of(row.max));
  } else {
    row = {max, group.reduce(sum, Sum{})};
  }
  factor *= inverse_of(row.sum);
#pragma unroll
  for (int i = 0; i < kElems; ++i) s[i] *= factor;
  Segment::store(y, args.y.stride, rest_of(length, 0), group.lane, group.lanes, s);
  return row;
}

// A row of any length, segment by segment; every pass reads it again.
template <class T, int kVec, int kElems, class Group>
__device__ MaxSum streamed_forward(const SoftmaxForwardArgs& args, const Group& group, const T* x,
                                   T* y, std::int64_t length, bool is_online) {
  using Segment = RowSegment<T, kVec, kElems>;
  float s[kElems];
  const std::int64_t segment = std::int64_t{group.lanes} * kElems;
  const auto load = [&](std::int64_t first) {
    Segment::load(x + first * args.x.stride, args.x.stride, rest_of(length, first), group.lane,
                  group.lanes, args.scale, -HUGE_VALF, s);
  };
  MaxSum row{-HUGE_VALF, 0};
  if (is_online) {
    for (std::int64_t first = 0; first < length; first += segment) {
      load(first);
      const float max = max_of(s, row.max), reference = reference_of(max);
      row.sum = row.sum * expf(row.max - reference) + exponentials(s, reference);
      row.max = max;
    }
    row = group.reduce(row, Merge{});
  } else {
    for (std::int64_t first = 0; first < length; first += segment) {
      load(first);
      row.max = max_of(s, row.max);
    }
    row.max = group.reduce(row.max, Max{});
    for (std::int64_t first = 0; first < length; first += segment) {
      load(first);
      row.sum += exponentials(s, reference_of(row.max));
    }
    row.sum = group.reduce(row.sum, Sum{});
  }
  const float inverse = inverse_of(row.sum);
  for (std::int64_t first = 0; first < length; first += segment) {
    load(first);
    exponentials(s, reference_of(row.max));
#pragma unroll
    for (int i = 0; i < kElems; ++i) s[i] *= inverse;
    Segment::store(y + first * args.y.stride, args.y.stride, rest_of(length, first), group.lane,
                   group.lanes, s);
  }
  return row;
}

template <class T, int kVec, int kElems, class Group, bool kInRegisters>
__global__ void __launch_bounds__(Group::kThreads, Group::kCtasPerSm)
    forward_rows(const __grid_constant__ SoftmaxForwardArgs args, bool is_online) {
  const Group group;
  const std::int64_t num_rows = args.rows.num_rows;
  for (std::int64_t first = std::int64_t{blockIdx.x} * Group::kRows; first < num_rows;
       first += std::int64_t{gridDim.x} * Group::kRows) {
    // A thread without a row still takes part in the reductions of its CTA.
    const bool is_row = first + group.row < num_rows;
    const std::int64_t row_idx = is_row ? first + group.row : first;
    const std::int64_t length = is_row ? args.rows.length : 0;
    std::int64_t offsets[3];
    offsets_of(args.rows, row_idx, {&args.x, &args.y, &args.lse}, offsets);
    const T* x = static_cast<const T*>(args.x.data) + offsets[0];
    T* y = static_cast<T*>(args.y.data) + offsets[1];
    MaxSum row;
    if constexpr (kInRegisters) {
      row = register_forward<T, kVec, kElems>(args, group, x, y, length, is_online);
    } else {
      row = streamed_forward<T, kVec, kElems>(args, group, x, y, length, is_online);
    }
    if (args.lse.data != nullptr && is_row && group.lane == 0)
      static_cast<float*>(args.lse.data)[offsets[2]] = row.max + logf(row.sum);
  }
}

// dx = scale * y * (dy - sum(y * dy))
template <class T, int kVec, int kElems, class Group, bool kInRegisters>
__global__ void __launch_bounds__(Group::kThreads, Group::kCtasPerSm)
    backward_rows(const __grid_constant__ SoftmaxBackwardArgs args) {
  using Segment = RowSegment<T, kVec, kElems>;
  const Group group;
  const std::int64_t num_rows = args.rows.num_rows;
  const std::int64_t segment = std::int64_t{group.lanes} * kElems;
  for (std::int64_t first_row = std::int64_t{blockIdx.x} * Group::kRows; first_row < num_rows;
       first_row += std::int64_t{gridDim.x} * Group::kRows) {
    const bool is_row = first_row + group.row < num_rows;
    const std::int64_t row_idx = is_row ? first_row + group.row : first_row;
    const std::int64_t length = is_row ? args.rows.length : 0;
    std::int64_t offsets[3];
    offsets_of(args.rows, row_idx, {&args.y, &args.dy, &args.dx}, offsets);
    const T* y = static_cast<const T*>(args.y.data) + offsets[0];
    const T* dy = static_cast<const T*>(args.dy.data) + offsets[1];
    T* dx = static_cast<T*>(args.dx.data) + offsets[2];
    float a[kElems], b[kElems];
    const auto load = [&](std::int64_t first) {
      Segment::load(y + first * args.y.stride, args.y.stride, rest_of(length, first), group.lane,
                    group.lanes, 1, 0, a);
      Segment::load(dy + first * args.dy.stride, args.dy.stride, rest_of(length, first), group.lane,
                    group.lanes, 1, 0, b);
    };
    float sum = 0;
    for (std::int64_t first = 0; first < (kInRegisters ? 1 : length); first += segment) {
      load(first);
#pragma unroll
      for (int i = 0; i < kElems; ++i) sum += a[i] * b[i];
    }
    sum = group.reduce(sum, Sum{});
    for (std::int64_t first = 0; first < (kInRegisters ? 1 : length); first += segment) {
      if constexpr (!kInRegisters) load(first);
#pragma unroll
      for (int i = 0; i < kElems; ++i) a[i] = args.scale * (a[i] * (b[i] - sum));
      Segment::store(dx + first * args.dx.stride, args.dx.stride, rest_of(length, first),
                     group.lane, group.lanes, a);
    }
  }
}

// ---- launches ----

template <class... Params, class... Args>
Status launch_rows(const char* name, const Config& config, std::int64_t num_rows, Stream stream,
                   void (*kernel)(Params...), const Args&... args) {
  const std::int64_t num_ctas = std::min(ceil_div(num_rows, config.rows_of_cta), kMaxGridX);
  const LaunchShape shape{
      .name = name,
      .grid = dim3(static_cast<unsigned>(num_ctas)),
      .block = dim3(static_cast<unsigned>(config.block_x), static_cast<unsigned>(config.block_y))};
  return launch(shape, static_cast<cudaStream_t>(stream), kernel, args...);
}

template <class T, int kVec>
auto forward_kernel(Path path) {
  constexpr Elements kE = kForwardElements;
  switch (path) {
    case Path::warp_short:
      return forward_rows<T, kVec, kE.warp_short, WarpRow, true>;
    case Path::warp_long:
      return forward_rows<T, kVec, kE.warp_long, WarpRow, true>;
    case Path::cta:
      return forward_rows<T, kVec, kE.cta, CtaRow, true>;
    case Path::column:
      return forward_rows<T, 1, kE.column, ColumnRow, true>;
    case Path::column_streamed:
      return forward_rows<T, 1, kE.column, ColumnRow, false>;
    default:
      return forward_rows<T, kVec, kE.streamed, CtaRow, false>;
  }
}

template <class T, int kVec>
auto backward_kernel(Path path) {
  constexpr Elements kE = kBackwardElements;
  switch (path) {
    case Path::warp_short:
      return backward_rows<T, kVec, kE.warp_short, WarpRow, true>;
    case Path::warp_long:
      return backward_rows<T, kVec, kE.warp_long, WarpRow, true>;
    case Path::cta:
      return backward_rows<T, kVec, kE.cta, CtaRow, true>;
    case Path::column:
      return backward_rows<T, 1, kE.column, ColumnRow, true>;
    case Path::column_streamed:
      return backward_rows<T, 1, kE.column, ColumnRow, false>;
    default:
      return backward_rows<T, kVec, kE.streamed, CtaRow, false>;
  }
}

// auto is online: one reduction among the threads of a row instead of two, and two passes over
// memory instead of three if the row is streamed.
template <class T>
Status forward(const char* name, const SoftmaxForwardArgs& args, const Config& config,
               Stream stream) {
  constexpr int kVec = kVectorBytes / static_cast<int>(sizeof(T));
  const bool is_online = args.algorithm != SoftmaxAlgorithm::safe;
  return launch_rows(
      name, config, args.rows.num_rows, stream,
      config.has_vectors ? forward_kernel<T, kVec>(config.path) : forward_kernel<T, 1>(config.path),
      args, is_online);
}

template <class T>
Status backward(const char* name, const SoftmaxBackwardArgs& args, const Config& config,
                Stream stream) {
  constexpr int kVec = kVectorBytes / static_cast<int>(sizeof(T));
  return launch_rows(name, config, args.rows.num_rows, stream,
                     config.has_vectors ? backward_kernel<T, kVec>(config.path)
                                        : backward_kernel<T, 1>(config.path),
                     args);
}

}  // namespace headrace::cuda::softmax
