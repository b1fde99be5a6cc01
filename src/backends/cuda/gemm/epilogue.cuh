// Writes elements of out.
#pragma once

#include "backends/cuda/common/silu.cuh"
#include "backends/cuda/gemm/params.h"
#include "backends/cuda/sm90/element.cuh"

namespace headrace::cuda::gemm {

// Element `i` of out: what products add to, and what is stored in its place.
template <class Element>
__device__ __forceinline__ float load_out(const Output& out, std::int64_t i) {
  if (out.is_float != 0) return static_cast<const float*>(out.data)[i];
  return static_cast<float>(static_cast<const typename Element::Stored*>(out.data)[i]);
}
template <class Element>
__device__ __forceinline__ void store_out(const Output& out, std::int64_t i, float value) {
  using Stored = typename Element::Stored;
  if (out.is_float != 0)
    static_cast<float*>(out.data)[i] = value;
  else
    static_cast<Stored*>(out.data)[i] = static_cast<Stored>(value);
}

template <class Element>
__device__ __forceinline__ void store(const Output& out, std::int64_t i, float sum) {
  store_out<Element>(out, i, out.adds != 0 ? load_out<Element>(out, i) + sum : sum);
}

// Exchanges the first word with the second of the thread whose index differs in `mask`: of the
// second, where that bit of the own index is set.
__device__ __forceinline__ void exchange(u32& first, u32& second, unsigned mask) {
  const bool has_bit = (threadIdx.x & mask) != 0;
  const u32 got = __shfl_xor_sync(0xffffffffu, has_bit ? first : second, static_cast<int>(mask));
  first = has_bit ? got : first;
  second = has_bit ? second : got;
}
// Words of the 4 threads of a quad: thread t gets the t-th of each.
__device__ __forceinline__ void transpose_quad(u32 (&w)[4]) {
  exchange(w[0], w[1], 1);
  exchange(w[2], w[3], 1);
  exchange(w[0], w[2], 2);
  exchange(w[1], w[3], 2);
}

// The accumulators of a warp for 16 tokens by a tile of kRows rows, as wgmma and mma.sync leave
// them (wgmma.cuh). The steps are apart, and their branches outside of the loops: each is unrolled
// over 128 registers, and an epilogue of 17,000 instructions took 28 us a tile.
template <int kRows>
__device__ __forceinline__ void add_bias(const float* bias, float (&d)[kRows / 2], bool is_paired,
                                         int rows, int rows_of_gate) {
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    const bool is_up = is_paired && j >= kRows / 16;
    const int row = 8 * (is_up ? j - kRows / 16 : j) + 2 * (static_cast<int>(threadIdx.x) & 3);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float b = row + i < rows ? bias[row + i + (is_up ? rows_of_gate : 0)] : 0.0f;
      d[4 * j + i] += b;
      d[4 * j + 2 + i] += b;
    }
  }
}

// d: of gate in the first half, of up in the second. The result is in the first half.
template <int kRows>
__device__ __forceinline__ void apply_swiglu(float (&d)[kRows / 2]) {
#pragma unroll
  for (int i = 0; i < kRows / 4; ++i) d[i] = silu(d[i]) * d[i + kRows / 4];
}

// Rows of out that are aligned and whole groups of 8. Groups of a quad are transposed four at a
// time, so that a thread has one of them: 16 bytes.
template <class Element>
struct OutGroups {
  const Output& out;
  std::int64_t at;  // of the first row
  bool has_token;
  int exist;  // rows

  __device__ __forceinline__ int mine(int group) const {
    return 8 * (group + (static_cast<int>(threadIdx.x) & 3));
  }
  __device__ __forceinline__ bool has(int group) const { return has_token && mine(group) < exist; }
  __device__ __forceinline__ uint4* address(int group) const {
    return reinterpret_cast<uint4*>(static_cast<typename Element::Stored*>(out.data) + at +
                                    mine(group));
  }
  __device__ __forceinline__ uint4 load(int group) const {
    return has(group) ? *address(group) : uint4{};
  }
  // d: four numbers of each group, those of this token from `first` on. old: what load() gave.
  template <int kCount>
  __device__ __forceinline__ void store(int group, const float (&d)[kCount], int first,
                                        uint4 old) const {
    u32 w[4] = {old.x, old.y, old.z, old.w};
    if (out.adds != 0) transpose_quad(w);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = 4 * (group + i) + first;
      const float2 x = Element::unpack(w[i]);
      w[i] =
          out.adds != 0 ? Element::pack(d[j] + x.x, d[j + 1] + x.y) : Element::pack(d[j], d[j + 1]);
    }
    transpose_quad(w);
    if (has(group)) *address(group) = uint4{w[0], w[1], w[2], w[3]};
  }
};

// token: of this thread's first accumulator. rows: that exist in out, from first_row on.
template <class Element, int kRows>
__device__ __forceinline__ void store_tile(const Output& out, float (&d)[kRows / 2], bool is_paired,
                                           int token, int num_tokens, int first_row, int rows) {
  const int exist = min(rows, is_paired ? kRows / 2 : kRows);
  if (out.bias != nullptr)
    add_bias<kRows>(out.bias + first_row, d, is_paired, exist, out.rows_of_gate);
  if (is_paired) apply_swiglu<kRows>(d);
  const bool is_whole = out.is_float == 0 && exist % 8 == 0 && first_row % 8 == 0 &&
                        out.stride % 8 == 0 && reinterpret_cast<u64>(out.data) % 16 == 0;
  const auto groups_of = [&](int half) {
    return OutGroups<Element>{.out = out,
                              .at = (token + 8 * half) * out.stride + first_row,
                              .has_token = token + 8 * half < num_tokens,
                              .exist = exist};
  };
  // All are loaded before the first is stored: a tile waits for memory once.
  uint4 old[2][kRows / 32] = {};
  if (is_whole && out.adds != 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < kRows / 32; ++i) old[half][i] = groups_of(half).load(4 * i);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const OutGroups<Element> groups = groups_of(half);
#pragma unroll
    for (int group = 0; group < kRows / 8; group += 4) {
      if (8 * group >= exist) break;  // in all threads
      if (is_whole && group + 4 <= kRows / 8) {
        groups.store(group, d, 2 * half, old[half][group / 4]);
        continue;
      }
#pragma unroll
      for (int j = group; j < group + 4 && j < kRows / 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = 8 * j + 2 * (static_cast<int>(threadIdx.x) & 3) + i;
          if (groups.has_token && row < exist)
            store<Element>(out, groups.at + row, d[4 * j + 2 * half + i]);
        }
    }
  }
}

}  // namespace headrace::cuda::gemm
