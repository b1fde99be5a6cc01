// How work tiles of different length share the slots of a device.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan.h"

namespace headrace::predict {

// Tiles of equal work. The unit of `work` is the caller's: k-blocks, or (query, key) pairs.
struct TileGroup {
  double work;
  std::int64_t count;
};

// Slots are CTAs that run at the same time, or threads.
struct Waves {
  std::int64_t num_tiles = 0, num_slots = 1;
  double total_work = 0;
  double busiest_work = 0, busiest_tiles = 0;  // of the slot that ends last

  double waves() const { return static_cast<double>(num_tiles) / static_cast<double>(num_slots); }
  // Mean work of a slot over the busiest one's: 1 if all end together.
  double balance() const {
    return busiest_work > 0 ? total_work / static_cast<double>(num_slots) / busiest_work : 1;
  }
};

// Longest tiles first, each to the slot that is free first. A tile costs its work and
// `tile_work` for its prologue and epilogue.
Waves share_tiles(std::vector<TileGroup> tiles, std::int64_t num_slots, double tile_work);

// The queries that see one of the keys [first_key, end_key).
KeyRange queries_of_keys(const Problem& p, std::int64_t first_key, std::int64_t end_key);
// (query, key) pairs of a head in the blocks of rows (query, head) and keys that hold a visible
// one; long sequences by samples.
double block_pairs(const Problem& p, std::int64_t block_rows, std::int64_t block_keys);
// Forward: the row tiles of all heads. Work: k-blocks of schedule.tile_n keys.
std::vector<TileGroup> row_tiles(const Problem& p, const Schedule& schedule);
// Backward: the key tiles of all KV heads. Work: q-blocks of schedule.tile_m queries.
std::vector<TileGroup> key_tiles(const Problem& p, const Schedule& schedule);
// (query, key) pairs of one head within causal mask and window.
double visible_pairs(const Problem& p);

}  // namespace headrace::predict
