// Tile shapes of the Hopper backward kernels and their layout in shared memory. Plain values,
// tested on the host.
#pragma once

#include "backends/cuda/common/constants.h"

namespace headrace::cuda::sm90::bwd {

// One compiled shape. A CTA has `keys` keys and iterates over blocks of `queries` queries. Two
// schedules:
//   cooperative  two warpgroups, each computes all products for 64 keys (cooperative.cuh);
//   specialized  a warpgroup each for dV, dK and dQ, and a producer (specialized.cuh).
struct Tile {
  int head_dim, head_dim_v;  // maximum columns of Q and K, of V and dO
  int keys, queries;
  bool is_specialized;
  friend constexpr bool operator==(const Tile&, const Tile&) = default;
};

inline constexpr int kGroupKeys = 64;  // the height of a wgmma

constexpr int threads_of(const Tile& t) { return t.is_specialized ? 512 : 256; }

// Cooperative: Q is read by S and, an iteration later, by dK; dO by dP and, half an iteration
// later, by dV. Further stages are in flight: two of Q, since S is the first product of an
// iteration and must not wait. Specialized: as many as fit.
constexpr int stages_q(const Tile& t) { return t.is_specialized ? 2 : 4; }
constexpr int stages_dout(const Tile& t) { return t.is_specialized ? 2 : 3; }
inline constexpr int kStagesDs = 2;  // and of P

// ---- dQ
// A block of the dQ accumulator has `queries` x head_dim floats in register order: parts of 64 x
// 64, each [kDqGroups][128 threads][4], or in fixed point [kDqGroups][2 rows][128 threads][2]. So
// an instruction of a warp writes whole sectors of 32 bytes.
inline constexpr int kDqGroups = 8, kDqPart = 64 * 64;
// The elements of thread 0 to 127 in a part: rows `row` and `row` + 8 and, for group j, columns
// 8 (chunk + j) + 2 (thread % 4) and the next.
struct DqPlace {
  int row, chunk;
};
constexpr int dq_parts(const Tile& t) { return t.queries / 64 * num_swizzle_atoms(t.head_dim); }
// Parts follow each other along the columns.
constexpr DqPlace dq_place(const Tile& t, int part, int thread) {
  const int atoms = num_swizzle_atoms(t.head_dim);
  return {part / atoms * 64 + thread / 32 * 16 + thread / 4 % 8, part % atoms * 8};
}

// ---- shared memory
// Bytes. Tiles of 16-bit elements are stacks of swizzle atoms, each [rows, 128 bytes].
struct SmemPlan {
  int k, v, q, dout;  // sizes: of K, of V, of a stage of Q, of dO
  int ds, p;          // of a stage of dS [queries, keys], of P in register order (specialized)
  int stat;           // of a stage of the lse, of D
  int offset_k, offset_v, offset_q, offset_dout, offset_ds, offset_p, offset_lse, offset_d,
      offset_barriers;
  int bytes;
};

// Indices of the mbarriers. Cooperative: only those of K and V and the full ones of Q and dO.
struct BarrierPlan {
  int k_full, v_full;
  int q_full, q_empty;        // [stages_q]
  int dout_full, dout_empty;  // [stages_dout]
  int p_full, p_empty;        // [kStagesDs]
  int ds_full, ds_empty;      // [kStagesDs]
  int count;
};

constexpr BarrierPlan barrier_plan(const Tile& t) {
  BarrierPlan b{};
  const auto take = [&b](int count) {
    const int first = b.count;
    b.count += count;
    return first;
  };
  b.k_full = take(1);
  b.v_full = take(1);
  b.q_full = take(stages_q(t));
  b.dout_full = take(stages_dout(t));
  if (!t.is_specialized) return b;
  b.q_empty = take(stages_q(t));
  b.dout_empty = take(stages_dout(t));
  b.p_full = take(kStagesDs);
  b.p_empty = take(kStagesDs);
  b.ds_full = take(kStagesDs);
  b.ds_empty = take(kStagesDs);
  return b;
}

constexpr SmemPlan smem_plan(const Tile& t) {
  SmemPlan s{};
  s.k = num_swizzle_atoms(t.head_dim) * t.keys * kSwizzleRowBytes;
  s.v = num_swizzle_atoms(t.head_dim_v) * t.keys * kSwizzleRowBytes;
  s.q = num_swizzle_atoms(t.head_dim) * t.queries * kSwizzleRowBytes;
  s.dout = num_swizzle_atoms(t.head_dim_v) * t.queries * kSwizzleRowBytes;
  s.ds = t.keys / kGroupKeys * t.queries * kSwizzleRowBytes;
  s.p = t.is_specialized ? t.keys * t.queries * 2 : 0;
  s.stat = t.queries * static_cast<int>(sizeof(float));
  const auto take = [&s](int bytes) {
    const int offset = s.bytes;
    s.bytes += bytes;
    return offset;
  };
  s.offset_k = take(s.k);
  s.offset_v = take(s.v);
  s.offset_q = take(stages_q(t) * s.q);
  s.offset_dout = take(stages_dout(t) * s.dout);
  s.offset_ds = take(kStagesDs * s.ds);
  s.offset_p = take(kStagesDs * s.p);
  s.offset_lse = take(stages_q(t) * s.stat);
  s.offset_d = take(stages_dout(t) * s.stat);
  s.offset_barriers = take(barrier_plan(t).count * 8);
  return s;
}

// The base is rounded up to 1024 bytes, where a swizzle pattern begins.
constexpr int smem_bytes(const Tile& t) { return smem_plan(t).bytes + 1024; }

// ---- registers
// Registers of a thread after setmaxnreg, by warpgroup of the specialized schedule. The launch
// gives 4 x 128.
struct RegisterPlan {
  int producer, dv, dk, dq;
};
inline constexpr RegisterPlan kSpecializedRegisters = {24, 208, 208, 72};
static_assert(kSpecializedRegisters.producer + kSpecializedRegisters.dv + kSpecializedRegisters.dk +
                  kSpecializedRegisters.dq <=
              4 * 128);

inline constexpr Tile kTile64 = {64, 64, 128, 128, false};
inline constexpr Tile kTile128 = {128, 128, 128, 64, false};
inline constexpr Tile kTile192v128 = {192, 128, 64, 64, true};
inline constexpr Tile kTile192 = {192, 192, 64, 64, true};
inline constexpr Tile kTile256 = {256, 256, 64, 64, true};

}  // namespace headrace::cuda::sm90::bwd
