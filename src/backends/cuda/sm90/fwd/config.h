// Tiles of the Hopper forward kernel and where they lie in shared memory: plain numbers, tested on
// the host.
#pragma once

#include <cstdint>

#include "backends/cuda/common/constants.h"

namespace headrace::cuda::sm90 {

// What scores of a kernel need beside scale, causal mask, window and sinks: nothing, one thing
// alone (kinds.cuh), or anything.
enum class ScoreMod { plain, alibi, softcap, bias, dropout, general };

// One compiled shape of the kernel. A CTA is a producer warpgroup and `warpgroups` consumers of 64
// query rows each, and where dropout is one more that draws its masks.
struct Tile {
  int head_dim, head_dim_v;  // most columns of Q and K, of V and O
  int keys;                  // per step
  int warpgroups;
  bool overlaps_tiles;  // the first step of a tile runs under the last product of the one before
  int q_buffers;
  bool q_in_registers;  // Q is read from shared memory once a tile
  bool has_tma_store;   // O goes through shared memory and the copy engine, else from registers
  bool has_tma_bias = false;        // the copy engine brings the bias of a step
  bool has_mask_warpgroup = false;  // a warpgroup more makes dropout's masks
  int v_stages = 2;                 // of a ring in shared memory
  bool pingpong = false;            // warpgroups issue the products of a step one after the other
  int q_fragments = 0;              // of 16 columns, where the rest of Q is read from shared memory
  friend constexpr bool operator==(const Tile&, const Tile&) = default;
};

inline constexpr int kGroupRows = 64;      // of a consumer warpgroup: the height of a wgmma
inline constexpr int kKStages = 2;         // of a ring in shared memory
inline constexpr int kMaskStages = 2;      // of dropout's masks
inline constexpr int kTileInfoStages = 4;  // tiles that are announced, in work or being finished
inline constexpr int kTileInfoWords = 32;  // of an announcement

constexpr int rows_of(const Tile& t) { return kGroupRows * t.warpgroups; }
constexpr int warpgroups_of(const Tile& t) {
  return 1 + t.warpgroups + (t.has_mask_warpgroup ? 1 : 0);
}
constexpr int threads_of(const Tile& t) { return 128 * warpgroups_of(t); }

// Registers of a thread after the warpgroups have shared them out anew. A CTA starts with what its
// launch bounds give each thread, and can only pass those on: 168 * 3 = 504 = 24 + 2 * 240,
// 128 * 4 = 512 = 32 + 3 * 160 and, with masks, 24 + 2 * 208 + 72. (With a sum above that the
// kernel waits for ever.)
constexpr int producer_registers(const Tile& t) { return t.warpgroups == 2 ? 24 : 32; }
constexpr int consumer_registers(const Tile& t) {
  return t.has_mask_warpgroup ? 208 : t.warpgroups == 2 ? 240 : 160;
}
constexpr int mask_registers(const Tile& t) { return t.has_mask_warpgroup ? 72 : 0; }
constexpr int launch_registers(const Tile& t) { return warpgroups_of(t) == 3 ? 168 : 128; }
constexpr bool shares_registers(const Tile& t) {
  return producer_registers(t) + t.warpgroups * consumer_registers(t) + mask_registers(t) <=
         warpgroups_of(t) * launch_registers(t);
}

// Bytes of 16-bit elements; everything that the copy engine writes is a stack of slabs, each [rows,
// 128 bytes] and swizzled.
struct SmemPlan {
  int q_group, q;  // one warpgroup's Q; all of it
  int k_stage, v_stage;
  int o_group;
  int bias_group;  // [64 rows, keys] of a warpgroup
  int mask_stage;  // [keys / 64][warpgroups][128 threads] words of dropout's masks
  int offset_q, offset_k, offset_v, offset_o, offset_bias, offset_masks, offset_barriers;
  int offset_tile_info;
  int bytes;
};

// Numbers of the mbarriers.
struct BarrierPlan {
  int q_full, q_empty;  // [q_buffers][warpgroups]
  int k_full, k_empty;  // [kKStages]
  int v_full, v_empty;  // [v_stages]
  int tile_info_read;   // who copies K has read an announcement (tiles by tickets)
  int tile_info_full;   // [kEntries] an announcement may be read
  int tile_done;  // [kEntries] every consumer warp has finished the tile, who copies has read it
  int bias_full, bias_empty;  // [warpgroups], of tiles that bring it
  int mask_full, mask_empty;  // [kMaskStages], of tiles that draw masks
  int count;
};

constexpr BarrierPlan barrier_plan(const Tile& t) {
  BarrierPlan b{};
  const int q = t.q_buffers * t.warpgroups;
  b.q_full = 0;
  b.q_empty = b.q_full + q;
  b.k_full = b.q_empty + q;
  b.k_empty = b.k_full + kKStages;
  b.v_full = b.k_empty + kKStages;
  b.v_empty = b.v_full + t.v_stages;
  b.tile_info_read = b.v_empty + t.v_stages;
  b.tile_info_full = b.tile_info_read + 1;
  b.tile_done = b.tile_info_full + kTileInfoStages;
  b.bias_full = b.tile_done + kTileInfoStages;
  b.bias_empty = b.bias_full + (t.has_tma_bias ? t.warpgroups : 0);
  b.mask_full = b.bias_empty + (t.has_tma_bias ? t.warpgroups : 0);
  b.mask_empty = b.mask_full + (t.has_mask_warpgroup ? kMaskStages : 0);
  b.count = b.mask_empty + (t.has_mask_warpgroup ? kMaskStages : 0);
  return b;
}

constexpr SmemPlan smem_plan(const Tile& t) {
  SmemPlan s{};
  s.q_group = num_swizzle_atoms(t.head_dim) * kGroupRows * kSwizzleRowBytes;
  s.q = t.q_buffers * t.warpgroups * s.q_group;
  s.k_stage = num_swizzle_atoms(t.head_dim) * t.keys * kSwizzleRowBytes;
  s.v_stage = num_swizzle_atoms(t.head_dim_v) * t.keys * kSwizzleRowBytes;
  s.o_group = t.has_tma_store ? num_swizzle_atoms(t.head_dim_v) * kGroupRows * kSwizzleRowBytes : 0;
  s.bias_group = t.has_tma_bias ? num_swizzle_atoms(t.keys) * kGroupRows * kSwizzleRowBytes : 0;
  s.offset_q = 0;
  s.offset_k = s.offset_q + s.q;
  s.offset_v = s.offset_k + kKStages * s.k_stage;
  s.offset_o = s.offset_v + t.v_stages * s.v_stage;
  s.offset_bias = s.offset_o + t.warpgroups * s.o_group;
  s.mask_stage = t.has_mask_warpgroup ? t.keys / 64 * t.warpgroups * 128 * 4 : 0;
  s.offset_masks = s.offset_bias + t.warpgroups * s.bias_group;
  s.offset_barriers = s.offset_masks + kMaskStages * s.mask_stage;
  s.offset_tile_info = (s.offset_barriers + barrier_plan(t).count * 8 + 15) / 16 * 16;
  s.bytes = s.offset_tile_info + kTileInfoStages * kTileInfoWords * 4;
  return s;
}

// The base is rounded up to 1024 bytes, where a swizzle pattern begins.
constexpr int smem_bytes(const Tile& t) { return smem_plan(t).bytes + 1024; }

constexpr Tile with_pingpong(Tile t, int v_stages = 2) {
  t.pingpong = true;
  t.v_stages = v_stages;
  return t;
}
constexpr Tile with_q_fragments(Tile t, int q_fragments) {
  t.q_fragments = q_fragments;
  return t;
}

inline constexpr Tile kTile64 = with_pingpong({64, 64, 128, 3, true, 2, false, true}, 3);
// Three consumers have registers for 112 keys a step, and shared memory for two Q where O has none.
inline constexpr Tile kTile80 = with_pingpong({80, 80, 112, 3, true, 2, false, false});
inline constexpr Tile kTile96 = with_pingpong({96, 96, 112, 3, true, 2, false, false});
inline constexpr Tile kTile112 = with_pingpong({112, 112, 128, 2, true, 1, true, true}, 3);
inline constexpr Tile kTile128 = with_pingpong({128, 128, 128, 2, true, 1, true, true}, 3);
inline constexpr Tile kTile192v128 = with_pingpong({192, 128, 128, 2, false, 1, false, false});
inline constexpr Tile kTile192 = with_pingpong({192, 192, 112, 2, false, 1, false, false});
// S of 64 keys a step reads as much of Q as of K: half of Q fits the registers, but beside softcap.
inline constexpr Tile kSoftcap256 = with_pingpong({256, 256, 64, 2, false, 1, false, false}, 3);
inline constexpr Tile kTile256 = with_q_fragments(kSoftcap256, 8);
// Short sequences: a tile of 192 rows has more beyond their end and on the wrong side of the
// diagonal. Tiles of one head_dim have the same keys a step, so the choice changes no bits.
inline constexpr Tile kShort64 = with_pingpong({64, 64, 128, 2, true, 2, false, true}, 3);
inline constexpr Tile kShort80 = with_pingpong({80, 80, 112, 2, true, 1, true, true}, 3);
inline constexpr Tile kShort96 = with_pingpong({96, 96, 112, 2, true, 1, true, true}, 3);
// Softcap wants registers: no third consumer; two Q in shared memory, so that tiles are flat
// without a Q in registers.
inline constexpr Tile kSoftcap64 = with_pingpong({64, 64, 128, 2, true, 1, true, true});
inline constexpr Tile kSoftcap128 = with_pingpong({128, 128, 128, 2, true, 2, false, true});
// The masks' warpgroup takes registers from the others: Q in shared memory, and with two of them
// there is no room for O. (256 columns of O do not compile for the 128 registers of a launch with
// four warpgroups.)
inline constexpr Tile kDropout64 =
    with_pingpong({64, 64, 128, 2, true, 2, false, true, false, true});
inline constexpr Tile kDropout128 =
    with_pingpong({128, 128, 128, 2, true, 2, false, false, false, true});
inline constexpr Tile kBias64 = with_pingpong({64, 64, 128, 2, true, 1, true, true, true});
inline constexpr Tile kBias128 = with_pingpong({128, 128, 128, 2, true, 1, true, true, true});
inline constexpr Tile kBias256 = with_pingpong({256, 256, 64, 2, false, 1, false, false, true});
// General scores need registers for themselves: no third consumer, Q in shared memory, not flat.
inline constexpr Tile kGeneral64 = {64, 64, 128, 2, false, 1, false, true};
inline constexpr Tile kGeneral128 = {128, 128, 128, 2, false, 1, false, true};
inline constexpr Tile kGeneral256 = {256, 256, 64, 2, false, 1, false, false};

}  // namespace headrace::cuda::sm90
