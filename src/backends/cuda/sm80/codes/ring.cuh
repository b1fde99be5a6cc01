// The blocks of keys of a warp in shared memory: a ring of stages, filled by cp.async, which go on
// across chunks of keys. A chunk ends with kFreeStages stages free, where the results of the warp
// stand until they have met those of the others.
#pragma once

#include "backends/cuda/device/cp_async.cuh"
#include "backends/cuda/sm80/codes/rows.cuh"

namespace headrace::cuda::sm80::codes {

// The results of some rows of a warp over a chunk.
template <int kDim, int kRows>
struct ResultPiece {
  float o[kRows][kDim];
  float reference[kRows], sum[kRows];
};

// From shared memory.
__device__ __forceinline__ LaneOffsets load_offsets(u32 address) {
  LaneOffsets x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.k), "=r"(x.v), "=r"(x.k_scale), "=r"(x.v_scale)
               : "r"(address)
               : "memory");
  return x;
}

// A block has kParts parts of kPartKeys keys, each in one page; a warp has every kWarps-th block.
template <class Stage, int kStages_, int kPartKeys, int kParts, int kDim, int kRows>
struct BlockRing {
  static constexpr int kStages = kStages_;
  static constexpr int kKeys = kPartKeys * kParts;
  static constexpr int kFreeStages = sizeof(ResultPiece<kDim, kRows>) <= sizeof(Stage) ? 1 : 2;
  static constexpr int kPieceRows = kRows / kFreeStages;
  using Piece = ResultPiece<kDim, kPieceRows>;
  static_assert(sizeof(Piece) <= sizeof(Stage) && kFreeStages <= kStages);

  Stage* stages;
  u32 address;       // of `stages`
  const Keys& keys;  // in shared memory
  PagesOfWarp<kPartKeys, kParts> pages;
  int block, next, last;   // to sum, to copy, behind all
  int head = 0, tail = 0;  // stages of `block` and of `next`
  u32 unreadable = 0;      // a bit for each stage

  // copy(place_of, to) starts the copies of a lane to the stage at address `to`, from
  // place_of(part).
  template <class Copy>
  __device__ void start(const Params& p, const Tile& tile, const Copy& copy) {
    const int first = keys.first / kKeys, warp = static_cast<int>(threadIdx.x) / 32;
    last = (keys.end + kKeys - 1) / kKeys;
    block = next = first + ((warp - first) & (kWarps - 1));
    if (next < last) pages.find(p, tile, next, keys);
#pragma unroll
    for (int i = 0; i < kStages - kFreeStages; ++i) fetch(p, tile, copy);
  }
  // add(stage, block, is_readable) for the blocks below `limit`.
  template <class Copy, class Add>
  __device__ void add_until(const Params& p, const Tile& tile, int limit, const Copy& copy,
                            const Add& add) {
    const int num_blocks = max((min(limit, last) - block + kWarps - 1) / kWarps, 0);
    if (num_blocks == 0) return;
#pragma unroll
    for (int i = 0; i < kFreeStages; ++i) {
      if (i < num_blocks)
        fetch(p, tile, copy);
      else
        cp_async_commit_group();
    }
    for (int i = 0; i < num_blocks; ++i) {
      // At least kStages - 1 groups were committed behind that of this block.
      cp_async_wait_group<kStages - 1>();
      add(stages[head], block, (unreadable >> head & 1) == 0);
      head = head + 1 == kStages ? 0 : head + 1;
      block += kWarps;
      if (i < num_blocks - kFreeStages)
        fetch(p, tile, copy);
      else
        cp_async_commit_group();
    }
  }
  // Part `i` of the results, in a free stage; `first`: `tail` of the warp.
  static __device__ Piece& piece(Stage* stages, int first, int i) {
    const int at = first + i;
    return *reinterpret_cast<Piece*>(stages + (at < kStages ? at : at - kStages));
  }

 private:
  template <class Copy>
  __device__ void fetch(const Params& p, const Tile& tile, const Copy& copy) {
    if (next < last) {
      if (!pages.has(next)) pages.find(p, tile, next, keys);
      bool is_readable = true;
      copy(
          [&](int part) {
            const Place place = pages.place_of(next, part);
            is_readable &= place.is_readable;
            return place;
          },
          address + static_cast<u32>(tail) * static_cast<u32>(sizeof(Stage)));
      unreadable = (unreadable & ~(1u << tail)) | (is_readable ? 0u : 1u << tail);
      next += kWarps;
      tail = tail + 1 == kStages ? 0 : tail + 1;
    }
    cp_async_commit_group();
  }
};

}  // namespace headrace::cuda::sm80::codes
