// Blocks of 16 keys and the query rows as fragments of mma.sync, keys as M ("swap-AB"):
//
//   S^T = K Q^T   A: 16 keys x 16 dims of K    B: 16 dims x 8 query rows
//   O^T = V^T P^T A: 16 dims x 16 keys of V^T  B: 16 keys x 8 query rows
//
// With keys as M up to 8 query rows are the 8 columns of an mma; as M they would be padded to 16
// rows (mma.sync) or 64 (wgmma). With g = lane / 4 and t = lane % 4 a lane has query rows 8 n + 2 t
// and the next, of S (keys g and g + 8 of the block) and of O (dims g and g + 8 of each 16): it has
// the maxima of its columns of O without a shuffle.
#pragma once

#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/sm90/decode/config.h"
#include "backends/cuda/sm90/element.cuh"
#include "backends/cuda/sm90/shared.cuh"

namespace headrace::cuda::sm90::decode {

// Transposes an 8 x 8 matrix of 16-bit elements that a warp holds as a fragment.
__device__ __forceinline__ u32 movmatrix_trans(u32 x) {
  u32 y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Reads blocks: [dim / 64] swizzle atoms of [16 keys, 64 dims].
class BlockReader {
 public:
  __device__ explicit BlockReader(int lane) {
    const int matrix = lane >> 3, row = lane & 7;
    key_row_ = static_cast<u32>(row + (matrix & 1) * 8) * kSwizzleRowBytes;
    key_chunk_ = static_cast<u32>((matrix >> 1) ^ row) << 4;
    value_row_ = static_cast<u32>(row + (matrix >> 1) * 8) * kSwizzleRowBytes;
    value_chunk_ = static_cast<u32>((matrix & 1) ^ row) << 4;
  }
  // Dims 16 step and the next, of all keys.
  __device__ __forceinline__ void load_keys(u32 (&a)[4], u32 block, int step) const {
    ldmatrix_x4(a, atom(block, step) + key_row_ + (chunk(step) ^ key_chunk_));
  }
  __device__ __forceinline__ void load_values(u32 (&a)[4], u32 block, int step) const {
    ldmatrix_x4_trans(a, atom(block, step) + value_row_ + (chunk(step) ^ value_chunk_));
  }

 private:
  static __device__ __forceinline__ u32 atom(u32 block, int step) {
    return block + static_cast<u32>(step / 4 * kBlockKeys * kSwizzleRowBytes);
  }
  static __device__ __forceinline__ u32 chunk(int step) {
    return static_cast<u32>(step % 4 * 2) << 4;
  }

  u32 key_row_, key_chunk_, value_row_, value_chunk_;
};

// The query rows of an item. Beside sums of values 8 rows stay in registers, and 16 are read again
// for each block.
template <int kDim, int kRows, bool kInRegisters = kRows == 8>
class QueryFragments {
 public:
  static constexpr int kRowBlocks = kRows / 8, kSteps = kDim / 16;

  __device__ explicit QueryFragments(int lane)
      : lane_offset_(
            static_cast<u32>((lane >> 2) * smem_plan(kDim, kRows).q_pitch + 4 * (lane & 3))) {}
  __device__ __forceinline__ void load(u32 smem_q) {
    first_ = smem_q + lane_offset_;
    if constexpr (kInRegisters) {
#pragma unroll
      for (int i = 0; i < kSteps * kRowBlocks; ++i) read(q_[i], i / kRowBlocks, i % kRowBlocks);
    }
  }
  __device__ __forceinline__ void get(u32 (&b)[2], int step, int n) const {
    if constexpr (kInRegisters) {
      b[0] = q_[step * kRowBlocks + n][0];
      b[1] = q_[step * kRowBlocks + n][1];
    } else {
      read(b, step, n);
    }
  }

  // For an item without a block for this warp: no product consumes the fragments.
  __device__ __forceinline__ u32 released_behind_loads(u32 barrier) const {
    if constexpr (!kInRegisters) return barrier;
    u32 all = 0;
#pragma unroll
    for (int i = 0; i < kSteps * kRowBlocks; ++i) all ^= q_[i][0] ^ q_[i][1];
    return released_behind(all, barrier);
  }

 private:
  __device__ __forceinline__ void read(u32 (&b)[2], int step, int n) const {
    const u32 at = first_ + static_cast<u32>(8 * n * smem_plan(kDim, kRows).q_pitch + 32 * step);
    b[0] = load_shared(at);
    b[1] = load_shared(at + 16);
  }

  u32 lane_offset_, first_ = 0;
  u32 q_[kInRegisters ? kSteps * kRowBlocks : 1][2];
};

// Both products return a word for released_behind() that depends on all of their loads: otherwise
// ptxas moves the arrival before the last products. block_scores() returns bits of S, which is
// needed next anyway; add_values() returns words of V, because O is not needed before the next
// block.

// S of a block. Even and odd steps accumulate as two independent chains of mma, which are added.
template <class Element, int kDim, int kRows, bool kInRegisters>
__device__ __forceinline__ u32
block_scores(const BlockReader& reader, const QueryFragments<kDim, kRows, kInRegisters>& queries,
             u32 block, float (&s)[kRows / 8][4]) {
  float odd[kRows / 8][4];
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) s[i / 4][i % 4] = odd[i / 4][i % 4] = 0.0f;
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    u32 a[4], b[2];
    reader.load_keys(a, block, step);
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) {
      queries.get(b, step, n);
      Element::mma(step % 2 == 0 ? s[n] : odd[n], a, b[0], b[1]);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) s[i / 4][i % 4] += odd[i / 4][i % 4];
  u32 consumed = 0;
#pragma unroll
  for (int n = 0; n < kRows / 8; ++n) consumed ^= __float_as_uint(s[n][0]);
  return consumed;
}

// O += V^T P^T of a block. Values of keys outside of `keep` (the lane's keys 2 t and 2 t + 1, then
// + 8: all bits or none) count as zero, since 0 times NaN is NaN.
template <class Element, bool kMasked, int kRowBlocks, int kTiles>
__device__ __forceinline__ u32 add_values(const BlockReader& reader, u32 block,
                                          const u32 (&p)[kRowBlocks][2], const u32 (&keep)[2],
                                          float (&o)[kTiles][kRowBlocks][4]) {
  u32 loaded = 0;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    u32 a[4];
    reader.load_values(a, block, i);
    loaded ^= a[0];
    if constexpr (kMasked) {
#pragma unroll
      for (int j = 0; j < 4; ++j) a[j] &= keep[j / 2];
    }
#pragma unroll
    for (int n = 0; n < kRowBlocks; ++n) Element::mma(o[i][n], a, p[n][0], p[n][1]);
  }
  return loaded;
}

}  // namespace headrace::cuda::sm90::decode
