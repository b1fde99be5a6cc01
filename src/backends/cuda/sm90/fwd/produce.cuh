// The producers of the forward: one thread each; of keys in pages a warp each, or two for K, a lane
// for a page.
#pragma once

#include <cstddef>

#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/sm90/fwd/load_stage.cuh"

namespace headrace::cuda::sm90::fwd {

// Calls load(info, k-block max, k-block min) for every tile with keys; info(offset) reads a field
// of its TileInfo. Arrives at tile_done when the tile's loads are issued, which have consumed its
// fields; the consumers wait for these loads, so they are not done with the tile before.
// kPacesScheduler: in one of the producers, after which the scheduler takes its next tile.
template <Tile kTile, bool kHasPages, bool kPacesScheduler, class Load>
__device__ void for_each_tile(const Params& p, u32 smem, Load load) {
  constexpr SmemPlan kSmem = smem_plan(kTile);
  constexpr BarrierPlan kBarriers = barrier_plan(kTile);
  const auto barrier = [smem](int i) { return smem + kSmem.offset_barriers + 8 * i; };
  for (Ring<kTileInfoStages> tile_info;; tile_info.next()) {
    mbarrier_wait(barrier(kBarriers.tile_info_full + tile_info.stage), tile_info.parity);
    const auto address = static_cast<u32>(smem + kSmem.offset_tile_info +
                                          static_cast<int>(sizeof(TileInfo)) * tile_info.stage);
    const auto info = [address](std::size_t offset) {
      return static_cast<int>(load_shared(address + static_cast<u32>(offset)));
    };
    const int tile = info(offsetof(TileInfo, tile));
    if (kPacesScheduler && p.tile_counter != nullptr && arrives<kHasPages>())
      mbarrier_arrive(released_behind(static_cast<u32>(tile), barrier(kBarriers.tile_info_read)));
    if (tile == kEnd) return;
    const int n_max = info(offsetof(TileInfo, k_block_max));
    const int n_min = info(offsetof(TileInfo, k_block_min));
    if (tile >= 0 && n_max > n_min) {
      griddep_wait();
      load(info, n_max, n_min);
    }
    if constexpr (kHasPages) __syncwarp();
    const u32 done = released_behind(static_cast<u32>(tile ^ n_max ^ n_min),
                                     barrier(kBarriers.tile_done + tile_info.stage));
    if (arrives<kHasPages>()) mbarrier_arrive(done);
  }
}

// Calls load(n) for the k-blocks of a tile, from right to left. A tile that merges its splits and
// is recomputed has those of each split twice.
template <Tile kTile, class Load>
__device__ __forceinline__ void for_each_k_block(int tile, int n_max, int n_min, Load load) {
  const bool has_twice = kTile.merges_splits && (tile & kRecompute) != 0;
  bool is_again = false;
  for (int end = n_max; end > n_min;) {
    const int begin = has_twice ? max(first_block_of_split(kTile, end - 1), n_min) : n_min;
    for (int n = end - 1; n >= begin; --n) load(n);
    is_again = has_twice && !is_again;
    if (!is_again) end = begin;
  }
}

// Which columns of K a warp loads.
enum class Columns { all, first, second };
// K in pages has two warps, each with half of the swizzle atoms: of one, consumers would wait for
// the last of 16 boxes.
constexpr bool has_two_producers_of_k(const Tile& t) {
  return num_swizzle_atoms(t.head_dim) > 1 && !t.has_tma_bias;
}

// The first of them also loads Q.
template <Tile kTile, bool kHasPages, Columns kColumns = Columns::all>
class QkProducer {
 public:
  __device__ QkProducer(const Params& p, const Maps& maps, u32 smem)
      : p_(p), maps_(maps), smem_(smem), pages_(p) {}

  __device__ void run() {
    constexpr bool kHasQ = kColumns != Columns::second;
    for_each_tile<kTile, kHasPages, kHasQ>(p_, smem_, [&](const auto& info, int n_max, int n_min) {
      const int row_q = info(offsetof(TileInfo, row_q)) + info(offsetof(TileInfo, query));
      const int head = info(offsetof(TileInfo, head));
      [[maybe_unused]] KeyOrigin keys{};
      if constexpr (!kHasPages) keys = key_origin(info);
      const int batch = kHasPages ? info(offsetof(TileInfo, tensor_batch)) : keys.batch;
      // A Q with one buffer waits for the last S of the tile before; the first K need not.
      constexpr bool kQWaits = kTile.q_buffers == 1 && !kTile.q_in_registers;
      bool has_q = !kQWaits;
      if (kHasQ && has_q && arrives<kHasPages>()) load_q(row_q, head, batch);
      for_each_k_block<kTile>(info(offsetof(TileInfo, tile)), n_max, n_min, [&](int n) {
        load_k(info, keys, n);
        if (kHasQ && !has_q && arrives<kHasPages>()) load_q(row_q, head, batch);
        has_q = true;
      });
      if constexpr (kHasPages && keeps_entries(num_swizzle_atoms(kTile.head_dim))) pages_.leave();
    });
  }

 private:
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr BarrierPlan kBarriers = barrier_plan(kTile);
  __device__ u32 barrier(int i) const { return smem_ + kSmem.offset_barriers + 8 * i; }

  __device__ __forceinline__ void load_q(int row, int head, int batch) {
#pragma unroll 1
    for (int w = 0; w < kTile.warpgroups; ++w) {
      const int i = q_.stage * kTile.warpgroups + w;
      u32 full = barrier(kBarriers.q_full + i);
      if constexpr (kHasPages) full = released_behind(static_cast<u32>(row ^ head ^ batch), full);
      const u32 to = smem_ + kSmem.offset_q + i * kSmem.q_group;
      // A box has group_queries * pack rows, which may be less than 64.
      const int atom_bytes = p_.tiles.group_queries * p_.tiles.pack * 128;
      mbarrier_wait(barrier(kBarriers.q_empty + i), q_.parity ^ 1);
      mbarrier_arrive_expect_tx(full, num_swizzle_atoms(kTile.head_dim) * atom_bytes);
#pragma unroll
      for (int s = 0; s < num_swizzle_atoms(kTile.head_dim); ++s)
        cp_async_bulk_tensor_load(to + s * kGroupRows * 128, &maps_.q, full, kEvictFirst,
                                  s * kSwizzleAtomCols, 0, row + w * p_.tiles.group_queries, head,
                                  batch);
    }
    q_.next();
  }
  template <class Info>
  __device__ __forceinline__ void load_k(const Info& info, const KeyOrigin& keys, int n) {
    constexpr int kAtoms = num_swizzle_atoms(kTile.head_dim);
    const u32 to = smem_ + kSmem.offset_k + k_.stage * kSmem.k_stage;
    const u32 full = barrier(kBarriers.k_full + k_.stage);
    const u32 empty = barrier(kBarriers.k_empty + k_.stage);
    if constexpr (kHasPages)
      load_paged_stage<kAtoms, kColumns == Columns::second ? kAtoms / 2 : 0,
                       kColumns == Columns::first ? kAtoms / 2 : kAtoms, kTile.keys>(
          p_, pages_, info, n, to, maps_.k, full, empty, k_.parity);
    else
      load_stage<kAtoms>(to, kTile.keys, maps_.k, kEvictLast, full, empty, k_.parity, 0,
                         keys.row + n * kTile.keys, keys.kv_head, keys.batch);
    k_.next();
  }

  const Params& p_;
  const Maps& maps_;
  const u32 smem_;
  KeyPages pages_;
  Ring<kTile.k_stages> k_;
  Ring<kTile.q_buffers> q_;
};

template <Tile kTile, bool kHasPages>
struct VProducer {
  const Params& p;
  const Maps& maps;
  u32 smem;

  __device__ void run() {
    KeyPages pages(p);
    Ring<kTile.v_stages> v;
    for_each_tile<kTile, kHasPages, false>(p, smem, [&](const auto& info, int n_max, int n_min) {
      constexpr SmemPlan kSmem = smem_plan(kTile);
      constexpr BarrierPlan kBarriers = barrier_plan(kTile);
      constexpr int kAtoms = num_swizzle_atoms(kTile.head_dim_v);
      const u32 barriers = smem + kSmem.offset_barriers;
      [[maybe_unused]] KeyOrigin keys{};
      if constexpr (!kHasPages) keys = key_origin(info);
      for_each_k_block<kTile>(info(offsetof(TileInfo, tile)), n_max, n_min, [&](int n) {
        const u32 to = smem + kSmem.offset_v + v.stage * kSmem.v_stage;
        const u32 full = barriers + 8 * (kBarriers.v_full + v.stage);
        const u32 empty = barriers + 8 * (kBarriers.v_empty + v.stage);
        if constexpr (kHasPages)
          load_paged_stage<kAtoms, 0, kAtoms, kTile.keys>(p, pages, info, n, to, maps.v, full,
                                                          empty, v.parity);
        else
          load_stage<kAtoms>(to, kTile.keys, maps.v, kEvictLast, full, empty, v.parity, 0,
                             keys.row + n * kTile.keys, keys.kv_head, keys.batch);
        v.next();
      });
      if constexpr (kHasPages && keeps_entries(num_swizzle_atoms(kTile.head_dim_v))) pages.leave();
    });
  }
};

// The bias of a k-block, for each warpgroup as soon as it has read the one before.
template <Tile kTile>
struct BiasProducer {
  const Params& p;
  const Maps& maps;
  u32 smem;

  __device__ void run() {
    const ScoreOperand& bias = p.scores.bias;
    u32 parity = 0;
    for_each_tile<kTile, false, false>(p, smem, [&](const auto& info, int n_max, int n_min) {
      // Exact scores of a recomputed tile load their bias from global memory.
      if ((info(offsetof(TileInfo, tile)) & kRecompute) != 0 || p.has_tma_bias == 0) return;
      const int row = info(offsetof(TileInfo, row_q)) + info(offsetof(TileInfo, query));
      const int head = bias.stride_head != 0 ? info(offsetof(TileInfo, head)) : 0;
      const int batch = bias.stride_batch != 0 ? info(offsetof(TileInfo, batch)) : 0;
      for (int n = n_max - 1; n >= n_min; --n, parity ^= 1)
        for (int group = 0; group < kTile.warpgroups; ++group)
          load(n, group, parity, row, head, batch);
    });
  }

 private:
  __device__ __forceinline__ void load(int n, int group, u32 parity, int row, int head,
                                       int batch) const {
    constexpr SmemPlan kSmem = smem_plan(kTile);
    constexpr BarrierPlan kBarriers = barrier_plan(kTile);
    const u32 barriers = smem + kSmem.offset_barriers;
    load_stage<num_swizzle_atoms(kTile.keys)>(
        smem + kSmem.offset_bias + group * kSmem.bias_group, kGroupRows, maps.bias, kEvictNormal,
        barriers + 8 * (kBarriers.bias_full + group), barriers + 8 * (kBarriers.bias_empty + group),
        parity, n * kTile.keys, row + group * kGroupRows, head, batch);
  }
};

}  // namespace headrace::cuda::sm90::fwd
