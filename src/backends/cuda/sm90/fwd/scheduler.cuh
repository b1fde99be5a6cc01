// Tile scheduler: the order of the tiles and the TileInfo of each.
#pragma once

#include <cstddef>

#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/sm90/fwd/config.h"
#include "backends/cuda/sm90/fwd/tile_counter.cuh"
#include "backends/cuda/sm90/shared.cuh"

namespace headrace::cuda::sm90::fwd {

// Position of a tile in the order of one sequence (dense: of all): its block of rows and its head.
// Where later rows see more keys the longest tiles come first, so that all CTAs end at about the
// same time, and heads vary fastest within sections whose K and V stay in L2 together.
struct TilePosition {
  int m_block, head;
};
__device__ __forceinline__ TilePosition tile_position(const Params& p, int t, int m_blocks,
                                                      int num_heads, int section,
                                                      int num_sections) {
  if (!p.tiles.is_triangular) return {t % m_blocks, t / m_blocks};
  const int per_section = section * m_blocks;
  const int s = min(t / per_section, num_sections);
  const int rest = t - s * per_section, first = s * section;
  const int width = s < num_sections ? section : num_heads - first;
  return {m_blocks - 1 - rest / width, first + rest % width};
}

// First rows in the tensors and lengths of a sequence; they fit 32 bits (kernel.cc).
struct SequenceRows {
  int row_q, row_k, seqlen_q, seqlen_k;
};

struct BlockRange {
  int begin, end;
};

// The words of a TileInfo, each written by a lane.
constexpr int word_of(std::size_t offset) { return static_cast<int>(offset) / 4; }

// Runs in one warp of the CTA. A ring of kTileInfoStages TileInfos: one being computed, one
// computed but not yet retired, two ahead.
template <Tile kTile, bool kReadsPages>
class Scheduler {
 public:
  __device__ Scheduler(const Params& p, u32 smem, int lane)
      : p_(p), smem_(smem), lane_(lane), counter_(p, lane) {}

  __device__ void run() {
    if (p_.has_device_lengths != 0) griddep_wait();  // reads cu_seqlens, seqused_k
    tile_ = static_cast<int>(blockIdx.x);
    while (tile_ < p_.tiles.num_tiles && find(tile_)) {
      publish(tile_, 0);
      advance();
      while (num_pending_ == kTileInfoStages - 1) retire();
    }
    publish(kFlush, 0);
    if (p_.tile_counter != nullptr) counter_.close();
    is_flushing_ = true;
    // A pending tile may have to be recomputed. kFlush, the last one, is never recomputed.
    while (num_pending_ > 1 || (num_pending_ == 1 && pending_[0] >= 0)) retire();
    publish(kEnd, 0);
  }

 private:
  static constexpr SmemPlan kSmem = smem_plan(kTile);
  static constexpr BarrierPlan kBarriers = barrier_plan(kTile);
  static constexpr int kWarps = 4 * kTile.warpgroups;

  __device__ u32 barrier(int i) const { return smem_ + kSmem.offset_barriers + 8 * i; }
  __device__ u32 word_address(int slot, int word) const {
    return smem_ + kSmem.offset_tile_info +
           4 * (slot * (static_cast<int>(sizeof(TileInfo)) / 4) + word);
  }
  static constexpr int kRowsWord = word_of(offsetof(TileInfo, recompute_rows));

  // Poll with backoff so that the scheduler warp does not steal issue slots from the consumers.
  // After the last tile the end of the CTA waits for this warp: no backoff.
  __device__ void wait(int i, u32 parity) const {
    while (!mbarrier_try_wait(barrier(i), parity))
      if (!is_flushing_) __nanosleep(200);
  }

  // Sets tile_ to the CTA's next tile. The counter is read when the producer begins the tile
  // before: a tile that is taken earlier may wait while other CTAs are idle.
  __device__ void advance() {
    const int grid = static_cast<int>(gridDim.x);
    tile_ = p_.tile_counter == nullptr ? tile_ + grid : counter_.next() + grid;
  }

  // Sets position_, split_, batch_idx_ and rows_; false beyond the last tile of a ragged batch, or
  // of one whose keys are split.
  __device__ bool find(int t) {
    if (p_.sizes.is_ragged || has_splits()) return find_ragged(t);
    position_ = tile_position(p_, t, p_.tiles.m_blocks, p_.tiles.batch_heads, p_.tiles.section,
                              p_.tiles.num_sections);
    batch_idx_ = position_.head / p_.tiles.tile_heads;
    position_.head -= batch_idx_ * p_.tiles.tile_heads;
    rows_ = {.row_q = 0, .row_k = 0, .seqlen_q = p_.tiles.seqlen_q, .seqlen_k = p_.tiles.seqlen_k};
    if (kReadsPages && p_.used_keys.seqused_k != nullptr) {
      const bool is_first = position_.m_block == 0 && position_.head == 0;
      Sequence s{.seqlen_q = p_.tiles.seqlen_q, .seqlen_k = p_.tiles.seqlen_k};
      take_used_keys(p_.lengths, p_.used_keys, batch_idx_, is_first && lane_ == 0, s);
      rows_.row_k = static_cast<int>(s.row_k);
      rows_.seqlen_k = static_cast<int>(s.seqlen_k);
    }
    return true;
  }

  // 32 sequences at a time, starting where the last search ended.
  __device__ bool find_ragged(int t) {
    if (t < tiles_before_) first_ = tiles_before_ = 0;  // a tile is recomputed
    const int batch = static_cast<int>(p_.sizes.batch);
    for (; first_ < batch; first_ += 32) {
      const SequenceRows mine =
          first_ + lane_ < batch ? read_sequence(first_ + lane_) : SequenceRows{};
      const int m_blocks = (mine.seqlen_q + p_.tiles.tile_queries - 1) / p_.tiles.tile_queries;
      int tiles = m_blocks * p_.tiles.tile_heads;
      if (has_splits()) tiles *= num_splits(mine.seqlen_k, p_.splits.num_short);
      int end = tiles;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(0xffffffffu, end, step);
        if (lane_ >= step) end += below;
      }
      end += tiles_before_;
      const u32 holds = __ballot_sync(0xffffffffu, t < end);
      if (holds == 0) {
        tiles_before_ = __shfl_sync(0xffffffffu, end, 31);
        continue;
      }
      const int owner = __ffs(static_cast<int>(holds)) - 1;
      const auto of_owner = [owner](int x) { return __shfl_sync(0xffffffffu, x, owner); };
      batch_idx_ = first_ + owner;
      rows_ = {.row_q = of_owner(mine.row_q),
               .row_k = of_owner(mine.row_k),
               .seqlen_q = of_owner(mine.seqlen_q),
               .seqlen_k = of_owner(mine.seqlen_k)};
      const int section =
          min(max(p_.tiles.section_keys / max(rows_.seqlen_k, 1), 1) * p_.tiles.kv_divisor,
              p_.tiles.tile_heads);
      int in_sequence = t - of_owner(end - tiles);
      if (has_splits()) {
        const int splits = num_splits(rows_.seqlen_k, p_.splits.num_short);
        split_ = in_sequence % splits;
        in_sequence /= splits;
      }
      position_ = tile_position(p_, in_sequence, of_owner(m_blocks), p_.tiles.tile_heads, section,
                                p_.tiles.tile_heads / section);
      return true;
    }
    return false;
  }

  __device__ bool has_splits() const { return kTile.splits_keys && p_.splits.max_splits != 0; }
  // The k-blocks of the tile's split, of [begin, end): none where `end` is `begin`.
  __device__ BlockRange blocks_of_split(int begin, int end) const {
    if (!has_splits()) return {begin, end};
    const int first = split_begin(split_, p_.splits.num_short) / kTile.keys;
    begin = max(begin, first);
    end = min(end, split_begin(split_ + 1, p_.splits.num_short) / kTile.keys);
    return begin < end ? BlockRange{begin, end} : BlockRange{first, first};
  }

  __device__ SequenceRows read_sequence(int batch_idx) const {
    Sequence s;
    if constexpr (kReadsPages)
      s = sequence_with_used_keys(p_.sizes, p_.lengths, p_.used_keys, batch_idx, blockIdx.x == 0);
    else
      s = device_sequence(p_.sizes, p_.lengths, batch_idx, blockIdx.x == 0);
    return {.row_q = static_cast<int>(s.row_q),
            .row_k = static_cast<int>(s.row_k),
            .seqlen_q = static_cast<int>(s.seqlen_q),
            .seqlen_k = static_cast<int>(s.seqlen_k)};
  }

  // Writes a TileInfo and arrives at its barrier. rows: lane w's are the rows that warp w writes,
  // where the tile is recomputed.
  __device__ void publish(int tile, u32 rows) {
    const int slot = tile_info_.stage;
    const int value = tile < 0 ? tile : tile_info_word(tile);
    if (lane_ < kRowsWord) store_shared(word_address(slot, lane_), static_cast<u32>(value));
    if (lane_ < kWarps) store_shared(word_address(slot, kRowsWord + lane_), rows);
    if (num_pending_ == 0) pending_[0] = tile;
    if (num_pending_ == 1) pending_[1] = tile;
    if (num_pending_ == 2) pending_[2] = tile;
    ++num_pending_;
    __syncwarp();
    if (lane_ == 0) mbarrier_arrive(barrier(kBarriers.tile_info_full + slot));
    tile_info_.next();
    if (p_.tile_counter == nullptr) return;
    wait(kBarriers.tile_info_read, read_.parity);
    read_.next();
  }

  // Waits until the oldest tile is done. If rows of it need it, the tile is published again.
  __device__ void retire() {
    const int slot = done_.stage, tile = pending_[0];
    wait(kBarriers.tile_done + slot, done_.parity);
    done_.next();
    pending_[0] = pending_[1];
    pending_[1] = pending_[2];
    --num_pending_;
    if (tile < 0 || (tile & kRecompute) != 0) return;
    const u32 rows = lane_ < kWarps ? load_shared(word_address(slot, kRowsWord + lane_)) : 0;
    if (__any_sync(0xffffffffu, rows != 0) && find(tile)) publish(tile | kRecompute, rows);
  }

  // Word lane_ of the TileInfo.
  __device__ int tile_info_word(int tile) const {
    constexpr int kKeys = kTile.keys;
    const int query = position_.m_block * p_.tiles.tile_queries;
    const int last_query = min(rows_.seqlen_q - query, p_.tiles.tile_queries) - 1;
    const int diagonal = query + (p_.tiles.is_top_left ? 0 : rows_.seqlen_k - rows_.seqlen_q);
    const int right = diagonal + p_.tiles.window_right + 1, left = diagonal - p_.tiles.window_left;
    const bool is_right_open = p_.tiles.window_right == kOpenWindow;
    const int first_block = max(left, 0) / kKeys;
    const int last_block =
        (max(min(rows_.seqlen_k, right + last_query), 0) + kKeys - 1) / kKeys;  // behind it
    switch (lane_) {
      case word_of(offsetof(TileInfo, tile)):
        return tile;
      case word_of(offsetof(TileInfo, k_block_max)):
        return blocks_of_split(first_block, last_block).end;
      case word_of(offsetof(TileInfo, k_block_min)):
        return blocks_of_split(first_block, last_block).begin;
      case word_of(offsetof(TileInfo, unmasked_begin)):
        return (max(left + last_query, 0) + kKeys - 1) / kKeys;
      case word_of(offsetof(TileInfo, unmasked_end)):
        // A k-block at whose end the keys of some row end counts as masked: it is the first that
        // the row sees, and row_max_ref is initialized in masked k-blocks only.
        return is_right_open ? rows_.seqlen_k / kKeys
                             : max(min(rows_.seqlen_k, right) - 1, 0) / kKeys;
      case word_of(offsetof(TileInfo, seqlen_k)):
        return rows_.seqlen_k;
      case word_of(offsetof(TileInfo, right)):
        return right;
      case word_of(offsetof(TileInfo, left)):
        return left;
      case word_of(offsetof(TileInfo, query)):
        return query;
      case word_of(offsetof(TileInfo, seqlen_q)):
        return rows_.seqlen_q;
      case word_of(offsetof(TileInfo, head)):
        return position_.head;
      case word_of(offsetof(TileInfo, batch)):
        return batch_idx_;
      case word_of(offsetof(TileInfo, row_q)):
        return rows_.row_q;
      case word_of(offsetof(TileInfo, row_k)):
        return rows_.row_k;
      case word_of(offsetof(TileInfo, kv_head)):
        return position_.head / p_.tiles.kv_divisor;
      default:  // tensor_batch
        return p_.sizes.is_ragged != 0 ? 0 : batch_idx_;
    }
  }
  static_assert(word_of(offsetof(TileInfo, tensor_batch)) + 1 == kRowsWord);

  const Params& p_;
  const u32 smem_;
  const int lane_;
  Ring<kTileInfoStages> tile_info_, done_;
  Ring<1> read_;
  int pending_[3];  // published and not retired, oldest first; never indexed by a variable, so that
                    // it stays in registers
  int num_pending_ = 0;
  bool is_flushing_ = false;
  TileCounter counter_;
  int tile_ = 0;
  TilePosition position_{};
  SequenceRows rows_{};
  int batch_idx_ = 0, split_ = 0;
  // Where the search in a ragged batch continues: a sequence, and the tiles of those before it.
  int first_ = 0, tiles_before_ = 0;
};

}  // namespace headrace::cuda::sm90::fwd
