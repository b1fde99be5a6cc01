#include "attention/predict/waves.h"

#include <algorithm>

#include "base/math.h"
#include "core/problem.h"

namespace headrace::predict {
namespace {

// Tiles of one head whose length is computed. Above, neighbours count as equal.
constexpr std::int64_t kMaxLengths = 256;
// Rounds of equal tiles that are shared one by one. Of more, most go to all slots alike.
constexpr std::int64_t kMaxRounds = 8;

struct Slot {
  double work = 0, tiles = 0, end = 0;
};

// Calls length(tile) for up to kMaxLengths tiles; `heads`: heads that have these tiles.
template <class Length>
std::vector<TileGroup> tiles_of(std::int64_t num_tiles, std::int64_t heads, Length length) {
  const std::int64_t step = std::max<std::int64_t>(1, ceil_div(num_tiles, kMaxLengths));
  std::vector<TileGroup> groups;
  for (std::int64_t i = 0; i < num_tiles; i += step) {
    const std::int64_t count = std::min(step, num_tiles - i);
    const double work = length(i + count / 2);
    if (!groups.empty() && groups.back().work == work)
      groups.back().count += count * heads;
    else
      groups.push_back({work, count * heads});
  }
  return groups;
}

double num_blocks(KeyRange range, std::int64_t block) {
  if (range.begin >= range.end) return 0;
  return static_cast<double>(ceil_div(range.end, block) - range.begin / block);
}

}  // namespace

Waves share_tiles(std::vector<TileGroup> tiles, std::int64_t num_slots, double tile_work) {
  Waves waves;
  waves.num_slots = std::max<std::int64_t>(num_slots, 1);
  std::stable_sort(tiles.begin(), tiles.end(),
                   [](const TileGroup& a, const TileGroup& b) { return a.work > b.work; });
  std::vector<Slot> slots(static_cast<std::size_t>(waves.num_slots));  // a heap: first free first
  const auto add = [tile_work](Slot& slot, double count, double work) {
    slot.work += count * work;
    slot.tiles += count;
    slot.end += count * (work + tile_work);
  };
  const auto is_later = [](const Slot& a, const Slot& b) { return a.end > b.end; };
  for (const TileGroup& group : tiles) {
    waves.num_tiles += group.count;
    waves.total_work += group.work * static_cast<double>(group.count);
    std::int64_t rounds = group.count / waves.num_slots;
    rounds = rounds > kMaxRounds ? rounds - kMaxRounds / 2 : 0;
    for (Slot& slot : slots) add(slot, static_cast<double>(rounds), group.work);
    for (std::int64_t i = rounds * waves.num_slots; i < group.count; ++i) {
      std::pop_heap(slots.begin(), slots.end(), is_later);
      add(slots.back(), 1, group.work);
      std::push_heap(slots.begin(), slots.end(), is_later);
    }
  }
  const auto last = std::max_element(slots.begin(), slots.end(),
                                     [](const Slot& a, const Slot& b) { return a.end < b.end; });
  waves.busiest_work = last->work;
  waves.busiest_tiles = last->tiles;
  return waves;
}

std::vector<TileGroup> row_tiles(const Problem& p, const Schedule& schedule) {
  const std::int64_t rows_per_query = std::max(schedule.packed_heads, 1);
  const std::int64_t rows = p.seqlen_q * rows_per_query;
  const std::int64_t tile = std::max<std::int64_t>(schedule.tile_m, 1);
  return tiles_of(ceil_div(rows, tile), p.batch * (p.num_heads / rows_per_query),
                  [&](std::int64_t i) {
                    const std::int64_t last = std::min(rows, (i + 1) * tile) - 1;
                    const auto keys = [&](std::int64_t row) {
                      return visible_keys(p, row / rows_per_query, p.seqlen_q, p.seqlen_k);
                    };
                    return num_blocks({keys(i * tile).begin, keys(last).end}, schedule.tile_n);
                  });
}

KeyRange queries_of_keys(const Problem& p, std::int64_t first_key, std::int64_t end_key) {
  const std::int64_t shift = diagonal_shift(p, p.seqlen_q, p.seqlen_k);
  KeyRange queries{0, p.seqlen_q};
  // Query q sees key k if q + shift - left <= k <= q + shift + right.
  const std::int64_t right = has_causal(p) ? 0 : p.window_right;
  if (right >= 0) queries.begin = std::max<std::int64_t>(0, first_key - right - shift);
  if (p.window_left >= 0) queries.end = std::min(queries.end, end_key + p.window_left - shift);
  return queries;
}

std::vector<TileGroup> key_tiles(const Problem& p, const Schedule& schedule) {
  const std::int64_t tile = std::max<std::int64_t>(schedule.tile_n, 1);
  return tiles_of(ceil_div(p.seqlen_k, tile), p.batch * p.num_kv_heads, [&](std::int64_t i) {
    const KeyRange queries = queries_of_keys(p, i * tile, std::min(p.seqlen_k, (i + 1) * tile));
    return num_blocks(queries, schedule.tile_m) * static_cast<double>(group_size(p));
  });
}

double block_pairs(const Problem& p, std::int64_t block_rows, std::int64_t block_keys) {
  const std::int64_t rows = std::max<std::int64_t>(block_rows / group_size(p), 1);
  block_keys = std::max<std::int64_t>(block_keys, 1);
  const std::int64_t num_blocks = ceil_div(p.seqlen_k, block_keys);
  const std::int64_t step = std::max<std::int64_t>(1, ceil_div(num_blocks, kMaxLengths));
  double pairs = 0;
  for (std::int64_t i = 0; i < num_blocks; i += step) {
    const std::int64_t first = i * block_keys;
    const KeyRange queries =
        queries_of_keys(p, first, std::min(p.seqlen_k, first + step * block_keys));
    const std::int64_t begin = queries.begin / rows * rows;
    const std::int64_t end = std::min(p.seqlen_q, ceil_div(queries.end, rows) * rows);
    const std::int64_t keys = std::min(p.seqlen_k, first + step * block_keys) - first;
    pairs += static_cast<double>(std::max<std::int64_t>(0, end - begin) * keys);
  }
  return pairs;
}

double visible_pairs(const Problem& p) {
  const std::int64_t step = std::max<std::int64_t>(1, p.seqlen_q / (64 * kMaxLengths));
  double pairs = 0;
  for (std::int64_t q = 0; q < p.seqlen_q; q += step) {
    const KeyRange keys =
        visible_keys(p, q + std::min(step, p.seqlen_q - q) / 2, p.seqlen_q, p.seqlen_k);
    pairs += static_cast<double>((keys.end - keys.begin) * std::min(step, p.seqlen_q - q));
  }
  return pairs;
}

}  // namespace headrace::predict
