// Tiles of the Hopper backward kernel and where they lie in shared memory: plain numbers, tested on
// the host.
#pragma once

namespace headrace::cuda::sm90::bwd {

// One compiled shape of the kernel. A CTA has 128 keys, and meets so many queries at a time.
struct Tile {
  int head_dim;  // most columns of Q, K, V and dO
  int queries;   // per step
  friend constexpr bool operator==(const Tile&, const Tile&) = default;
};

inline constexpr int kWarpgroups = 2;
inline constexpr int kGroupKeys = 64;  // of a warpgroup: the height of a wgmma
inline constexpr int kKeys = kWarpgroups * kGroupKeys;
inline constexpr int kThreads = 128 * kWarpgroups;
// Q of a step is read by its S and, a step later, by dK; dO by dP and, half a step later, by dV.
// Others are on their way: of Q two, since S is the first product of a step and may not wait.
inline constexpr int kStagesQ = 4;
inline constexpr int kStagesDout = 3;
inline constexpr int kStagesDs = 2;
inline constexpr int kSlabColumns = 64;    // 128 bytes of 16-bit elements: the widest swizzled box
inline constexpr int kRowBytes = 128;      // of a slab
inline constexpr int kSmemLimit = 232448;  // 227 KiB, what a CTA of sm_90 may have

constexpr int num_slabs(const Tile& t) { return t.head_dim / kSlabColumns; }

// With 64 columns each warpgroup has half of the step's queries in dQ, with 128 half of the columns:
// 64 x 64 numbers, of which a thread has four in each of 8 groups of columns.
constexpr bool splits_dq_rows(const Tile& t) { return t.head_dim == kSlabColumns; }
inline constexpr int kDqGroups = 8, kDqRegisters = 4 * kDqGroups;

// Where a thread's numbers of a block of dQ lie: rows `row` and `row` + 8; of group j the columns
// from 8 (chunk + j) + 2 (thread % 4) on, two of either row.
struct DqPlace {
  int row, chunk;
};
constexpr DqPlace dq_place(const Tile& t, int thread) {
  const int group = thread / 128, row = thread / 32 % 4 * 16 + thread / 4 % 8;
  return splits_dq_rows(t) ? DqPlace{64 * group + row, 0} : DqPlace{row, 8 * group};
}

// Bytes. Tiles of 16-bit elements are stacks of slabs, each [rows, 128 bytes] and swizzled.
struct SmemPlan {
  int k, q, ds;  // sizes: of K (and V), of a stage of Q (and dO), of dS
  int stat;      // of a stage of the lse, of D
  int offset_k, offset_v, offset_q, offset_dout, offset_ds, offset_lse, offset_d, offset_barriers;
  int bytes;
};

// Numbers of the mbarriers.
struct BarrierPlan {
  int k_full, v_full;
  int q_full;     // [kStagesQ]
  int dout_full;  // [kStagesDout]
  int count;
};

constexpr BarrierPlan barrier_plan() {
  BarrierPlan b{};
  b.k_full = 0;
  b.v_full = 1;
  b.q_full = 2;
  b.dout_full = b.q_full + kStagesQ;
  b.count = b.dout_full + kStagesDout;
  return b;
}

constexpr SmemPlan smem_plan(const Tile& t) {
  SmemPlan s{};
  s.k = num_slabs(t) * kKeys * kRowBytes;
  s.q = num_slabs(t) * t.queries * kRowBytes;
  s.ds = kWarpgroups * t.queries * kRowBytes;
  s.stat = t.queries * static_cast<int>(sizeof(float));
  s.offset_k = 0;
  s.offset_v = s.offset_k + s.k;
  s.offset_q = s.offset_v + s.k;
  s.offset_dout = s.offset_q + kStagesQ * s.q;
  s.offset_ds = s.offset_dout + kStagesDout * s.q;
  s.offset_lse = s.offset_ds + kStagesDs * s.ds;
  s.offset_d = s.offset_lse + kStagesQ * s.stat;
  s.offset_barriers = s.offset_d + kStagesDout * s.stat;
  s.bytes = s.offset_barriers + barrier_plan().count * 8;
  return s;
}

// The base is rounded up to 1024 bytes, where a swizzle pattern begins.
constexpr int smem_bytes(const Tile& t) { return smem_plan(t).bytes + 1024; }

inline constexpr Tile kTile64 = {64, 128};
inline constexpr Tile kTile128 = {128, 64};

}  // namespace headrace::cuda::sm90::bwd
