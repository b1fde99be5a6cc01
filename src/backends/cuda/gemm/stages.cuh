// Stages of both operands in shared memory, as a ring, and a sum over them by wgmma.
#pragma once

#include "backends/cuda/common/constants.h"
#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/device/wgmma.cuh"
#include "backends/cuda/gemm/chains.cuh"
#include "backends/cuda/gemm/params.h"

namespace headrace::cuda::gemm {

// `full` completes when a stage has been loaded, `empty` when it has been read.
struct StageRing {
  u32 base, barriers;
  int stage_bytes, num_stages;
  int stage = 0;
  u32 parity = 0;

  __device__ u32 full() const { return barriers + static_cast<u32>(16 * stage); }
  __device__ u32 empty() const { return full() + 8; }
  __device__ u32 empty(int of) const { return barriers + static_cast<u32>(16 * of + 8); }
  __device__ u32 data() const { return base + static_cast<u32>(stage * stage_bytes); }
  __device__ void next() {
    if (++stage == num_stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ void skip(int count) {
    const int at = stage + count;
    stage = at % num_stages;
    parity ^= static_cast<u32>(at / num_stages & 1);
  }
  // In one thread, before a barrier of the CTA.
  __device__ void init_barriers(u32 full_arrivals, u32 empty_arrivals) const {
    for (int i = 0; i < num_stages; ++i) {
      mbarrier_init(barriers + static_cast<u32>(16 * i), full_arrivals);
      mbarrier_init(barriers + static_cast<u32>(16 * i + 8), empty_arrivals);
    }
    fence_mbarrier_init();
    fence_proxy_async();
  }
};

// Calls load() for the next stage of a producer once it is empty. A wait behind a load takes 107
// clocks even for a stage that is empty, so each is asked for before the loads of the one ahead.
struct StageProducer {
  StageRing& ring;
  bool is_free = true;

  template <class Load>
  __device__ __forceinline__ void next(Load load) {
    if (!is_free) mbarrier_wait(ring.empty(), ring.parity ^ 1);
    StageRing following = ring;
    following.next();
    is_free = mbarrier_test_wait(following.empty(), following.parity ^ 1);
    load();
    ring = following;
  }
};

// Where TMA finds the rows of a tile of weights.
struct TileSource {
  // Of the second half of the tile's rows: null where all follow each other.
  const TensorMap *map, *second_map;
  int row, second_row;

  // rows: of a tile.
  static __device__ __forceinline__ TileSource of(const RowTiles& tiles, const Maps& maps, int tile,
                                                  int rows) {
    const int matrix = tiles.matrix_of(tile);
    const int row = tiles.row_of(tile, matrix, rows);
    return {&maps.w[matrix], tiles.is_paired != 0 ? &maps.w[1] : nullptr, row, row};
  }
  // Columns of the tile: kRows rows of 128 bytes.
  template <int kRows>
  __device__ __forceinline__ void load(int column, u32 to, u32 barrier) const {
    cp_async_bulk_tensor_load(to, map, barrier, kEvictFirst, column, row);
    if (second_map != nullptr)
      cp_async_bulk_tensor_load(to + kRows / 2 * kSwizzleRowBytes, second_map, barrier, kEvictFirst,
                                column, second_row);
  }
};

// sum_stages() by kChains accumulators.
template <class Element, int kRowsOfB, int kChains, class Release, class Issued>
__device__ __forceinline__ void sum_chains(float (&sum)[kRowsOfB / 2], StageRing& ring, int count,
                                           int a, int b, Release release, Issued issued) {
  using Mma = WgmmaM64K16<typename Element::Operand, kRowsOfB>;
  // Begins at 0, as sums by mma.sync do. Without a value ptxas keeps the registers from tile to
  // tile and, beside the loop of another number of chains, serialises the products.
  float d[kChains][kRowsOfB / 2] = {};
  const auto fence_chains = [&] {
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain) warpgroup_fence_operand(d[chain]);
  };
  int before = 0;
  for (int i = 0; i < count; ++i, ring.next()) {
    mbarrier_wait(ring.full(), ring.parity);
    const u64 a_stage = wgmma_descriptor(ring.data() + static_cast<u32>(a), 16);
    const u64 b_stage = wgmma_descriptor(ring.data() + static_cast<u32>(b), 16);
    fence_chains();
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSwizzleAtomCols / 16; ++step)
      Mma::template ss<Major::k>(d[step % kChains], wgmma_descriptor_advance(a_stage, step * 32),
                                 wgmma_descriptor_advance(b_stage, step * 32), 1);
    wgmma_commit_group();
    if (i + 1 == count) issued();
    wgmma_wait_group<1>();
    fence_chains();
    if (i > 0) release(before);
    before = ring.stage;
  }
  wgmma_wait_group<0>();
  fence_chains();
  release(before);
#pragma unroll
  for (int i = 0; i < kRowsOfB / 2; ++i) sum[i] = add_chains<kChains>(d[0][i], d[kChains - 1][i]);
}

// sum = A B^T over `count` stages of 64 columns, by a warpgroup: 64 rows of A at `a` and kRowsOfB
// rows of B at `b`, bytes from the beginning of a stage. A stage's products are complete, so that
// release(stage) may let it be loaded again, beside those of the next. issued(): behind the last.
// num_chains: up to kMostChains.
template <class Element, int kRowsOfB, int kMostChains, class Release, class Issued>
__device__ __forceinline__ void sum_stages(int num_chains, float (&sum)[kRowsOfB / 2],
                                           StageRing& ring, int count, int a, int b,
                                           Release release, Issued issued) {
  if (kMostChains == 1 || num_chains == 1)
    sum_chains<Element, kRowsOfB, 1>(sum, ring, count, a, b, release, issued);
  else
    sum_chains<Element, kRowsOfB, kMostChains>(sum, ring, count, a, b, release, issued);
}

}  // namespace headrace::cuda::gemm
