// Parameters of the kernel for codes, and how it divides the work.
#pragma once

#include <cstddef>

#include "backends/cuda/common/kernel_args.h"
#include "backends/cuda/common/page_table.h"
#include "base/math.h"
#include "core/kernel.h"

namespace headrace::cuda::sm80::codes {

// Keys that a CTA sums before they meet others, whatever the length of a sequence: what a row sums
// and in which order depends on its own position alone.
inline constexpr int kChunkKeys = 2048;
inline constexpr int kBlockKeys = 16;  // of an mma.sync; a page has whole blocks
// Blocks of a warp at a time, of codes with a scale for each key. Two are more independent
// instructions; of 8 bits too few would fit in shared memory.
constexpr int blocks_at_once(int bits) { return bits == 4 ? 2 : 1; }
inline constexpr int kWarps = 8;
inline constexpr int kTileRows = 8;  // most queries times heads of a group of a CTA
// Shared memory of a CTA for its rings: with 9 KiB of results and Common two CTAs fit an SM of 228
// KiB.
// Devices with less take rings of two stages.
inline constexpr std::size_t kLargeRing = 104 * 1024;
// With more rows a CTA takes all chunks of its rows, one after the other.
inline constexpr int kMaxSplitRows = 64;

// K, V or their scales in pages, in bytes. A page ends within 2 GiB.
struct PageRows {
  const std::byte* data;
  std::uint32_t stride_page;
  std::int32_t stride_slot, stride_head;
};
// What a lane copies first of a block, in bytes from the block's first slot of head 0.
struct alignas(16) LaneOffsets {
  std::int32_t k, v, k_scale, v_scale;
};

struct Params {
  Sizes sizes;
  Lengths lengths;
  UsedKeys used_keys;
  Operand q, out;
  LseOperand lse;
  // Scales are floats; with zero points words (core/quantise.h), of K a slot for each group of
  // keys.
  PageRows k, v, k_scale, v_scale;
  bool has_whole_scales;  // zero points: a lane's words of a scale lie at their multiple
  PageTable pages;
  Operand k_recent, v_recent;  // data null: no recent keys
  const std::int32_t* recent_table;
  std::int64_t stride_recent_table;
  std::int32_t num_recent_pages, max_recent;
  std::int32_t window_left;  // -1: open
  std::int32_t group;        // heads of a KV head
  Divisor by_group;
  float scale_log2;  // softmax_scale * log2(e)
  // Chunk results [total_q rows][num_heads][max_chunks][kDim + 4]: O, the reference, the sum. Null:
  // a CTA takes all chunks.
  float* partial;
  std::int32_t max_chunks;
  std::int32_t num_splits, split_chunks;  // CTAs of a tile, chunks of each
  std::int32_t num_tiles;                 // row tiles of the longest sequence
  std::int32_t tile_rows;                 // rows of a tile: kTileRows, or half of them
  bool has_large_ring;                    // the device has the shared memory
};

using Launch = Status(const Params& params, DType format, Stream stream);
Launch launch_bf16_hd64, launch_bf16_hd128, launch_f16_hd64, launch_f16_hd128;

}  // namespace headrace::cuda::sm80::codes
