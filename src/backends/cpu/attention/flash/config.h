// Tiles, splits and scratch memory of the flash kernel: pure arithmetic, testable without running
// kernels.
#pragma once

#include <stdint.h>

#include <algorithm>
#include <array>

#include "base/math.h"
#include "core/problem.h"

namespace headrace::cpu::flash {

// The properties of an instruction set that the schedule needs.
struct IsaShape {
  int width;      // floats per vector
  int tile_rows;  // rows per register tile (Isa::kMr)
  int tile_cols;  // columns per register tile (Isa::kNv vectors)
  int pair;       // elements per 32-bit unit of the operands: 2 for bf16 dot products
  uint32_t integer_products_isa = 0;  // of few rows with codes: bits of headrace_isa; 0: none
};

// Q and O of a row tile, the packed K and V of a key tile and the scores of a sweep stay in a
// core's L2 cache; for head_dim 128 in float: 2 * 192 * 128 * 4 (Q, O) + 2 * 128 * 128 * 4 (K, V) +
// 48 * 128 * 4 (S) = 344 KB of 512 KB. More rows per tile amortize the packing of K and V: three
// times as many, 745 KB, from 1 MiB on, where tuning found them 1 to 4 % faster than twice as many
// on a Zen 5, and 3 to 7 % on a Xeon of 2 MiB. A tile of 128 keys reads and writes O half as often
// as one of 64: for head_dim 256, 96 rows and 128 keys are 472 KB. tile_n depends only on head_dim:
// the key tiles, and with them the order of all sums of a row, may depend only on the row's own
// sequence. tile_m does not change bits, so it may shrink to give every thread work.
struct Tile {
  int64_t m, n;
};
inline Tile largest_tile(const Problem& p, int64_t l2_bytes = 0) {
  const int64_t dim = std::max(p.head_dim, p.head_dim_v);
  constexpr int64_t kMiB = 1024 * 1024;
  const int64_t times = l2_bytes >= 2 * kMiB ? 3 : l2_bytes >= kMiB ? 2 : 1;
  if (dim <= 128) return {times == 1 ? 192 : 576, 128};
  if (dim <= 256) return {times == 1 ? 96 : 288, 128};  // 288: 856 KB
  return {times * 64, 64};
}

inline constexpr int64_t kMaxTileKeys = 128;  // largest Tile::n

// Rows are (query, head of the group) pairs that share a KV head: row = q_idx * group_size +
// head_in_group.
enum class Path {
  packed,  // many rows: K and V are packed into panels for register-tiled matmuls
  direct,  // few rows (decode): K and V are read once, in place
};

// A sweep: rows whose scores, softmax and output are computed together (a multiple of every
// register tile and of 16). S and P of a sweep, 48 * 128 * 4 = 24 KB, stay in the L1 cache.
inline constexpr int64_t kSweepRows = 48;

// Up to this many rows, packing K and V costs more than it saves.
inline constexpr int64_t kDirectRows = 16;
// Keys per tile of the direct path: with rows 4 KiB apart (8 heads of 128 floats), K and V of 64
// keys just fit into the sets that they share in a 512 KiB 8-way L2 cache.
inline constexpr int64_t kDirectKeys = 64;
// Up to this many rows the keys may be split among threads (decode, short prefill with long cache).
inline constexpr int64_t kSplitRows = 64;
// Splits begin at multiples of these many keys, whatever the length of the sequence, so that a
// row's sums depend on the keys that it sees alone. With more rows a key is more work.
inline constexpr int64_t kDirectSplitKeys = 512;
inline constexpr int64_t kPackedSplitKeys = 1024;
// Partial results merge in the order of their keys: first those of each group of splits, which
// begins at a multiple of kGroupSplits, then those of the groups. A task computes and merges a
// whole group where that leaves enough tasks: partial results cost memory, and a long sequence has
// too many splits.
inline constexpr int64_t kGroupSplits = 4;
inline constexpr int64_t kMaxSplitTasks = 64;

// Tasks of a thread with which no thread waits long for the last one.
inline constexpr int64_t kTasksOfThread = 4;
// The tasks of a sequence that keep all threads busy, each of which may have all KV heads.
inline int64_t min_key_tasks(const Problem& p, int num_threads) {
  return ceil_div<int64_t>(kTasksOfThread * num_threads, std::max<int64_t>(p.batch, 1));
}

// The schedule of one sequence. What decides the bits of a row (path and splits) is a pure function
// of its own lengths, the head dims and the options, so that they are the same in every batch and
// with any number of threads. How many splits a task computes changes no bit.
struct SequencePlan {
  Path path;
  int64_t num_splits;
  int64_t split_keys;
  int64_t task_splits;    // splits of a task
  int64_t num_key_tasks;  // 1: tasks are row tiles, and each computes all splits of its rows
};
// `min_tasks`: see min_key_tasks().
inline SequencePlan plan_sequence(const Problem& p, int64_t seqlen_q, int64_t seqlen_k,
                                  int64_t min_tasks = kMaxSplitTasks) {
  const int64_t rows = seqlen_q * group_size(p);
  const Path path = rows <= kDirectRows && !p.strict_rows ? Path::direct : Path::packed;
  const bool has_key_tasks = rows <= kSplitRows;
  int64_t split_keys = path == Path::direct ? kDirectSplitKeys : kPackedSplitKeys;
  if (!p.strict_rows && !has_key_tasks) split_keys = std::max<int64_t>(seqlen_k, 1);
  const bool is_explicit = !p.strict_rows && has_key_tasks && p.num_splits > 0;
  if (is_explicit)
    split_keys = round_up(std::max<int64_t>(ceil_div<int64_t>(seqlen_k, p.num_splits), 1),
                          largest_tile(p).n);
  const int64_t num_splits = std::max<int64_t>(ceil_div(seqlen_k, split_keys), 1);
  if (!has_key_tasks) return {path, num_splits, split_keys, num_splits, 1};
  const int64_t num_groups = ceil_div(num_splits, kGroupSplits);
  const bool has_groups = !is_explicit && (num_splits > kMaxSplitTasks ||
                                           num_groups >= std::max<int64_t>(min_tasks, 2));
  return {path, num_splits, split_keys, has_groups ? kGroupSplits : 1,
          has_groups ? num_groups : num_splits};
}

// Number of per-row arrays, in floats per row: 6 of floats, key ranges (4 floats each), spans (2),
// and spans of row blocks (at most 1).
inline constexpr int64_t kRowArrays = 13;

// Sums of more products of a 16-bit word and an 8-bit code do not fit 32 bits.
inline constexpr int64_t kMaxIntegerDim = 256;
// Q of products with codes as integers: for each row a factor, an offset and 16-bit words, in whole
// groups of the narrowest codes; with zero points also its floats in the order of the codes.
constexpr int64_t word_stride(int64_t head_dim) { return round_up<int64_t>(head_dim, 128); }
inline int64_t word_floats(int64_t head_dim) {
  return kSweepRows * (2 + word_stride(head_dim) / 2);
}
inline int64_t ordered_floats(const Problem& p) {
  return has_zero_points(k_dtype_of(p)) ? kSweepRows * word_stride(p.head_dim) : 0;
}

// Behind the dequantised rows of codes with zero points: scales, zero points and codes of a row.
inline constexpr int64_t kZeroPointRows = 3;
// Rows of floats for codes: kDirectKeys of floats, tile.n of bytes, or tile.n of floats.
inline int64_t code_rows(const Problem& p, Tile tile) {
  if (has_zero_points(k_dtype_of(p)) || has_zero_points(v_dtype_of(p)))
    return std::max(kDirectKeys, tile.n) + kZeroPointRows;
  return std::max(kDirectKeys, tile.n / 4);
}

// Scratch of one worker, in floats (and 32-bit units), each part on its own cache lines.
struct Scratch {
  int64_t q, k, v, s, o, rows, partials, codes;  // offsets
  int64_t q_stride;                              // units per row of Q
  int64_t k_panel, v_panel;                      // floats between panels
  int64_t o_stride;                              // floats per row of O
  int64_t row_array;                             // floats per per-row array
  int64_t partial;                               // floats per partial result: O, maximum, sum
  int64_t partial_rows;  // rows with partial results, of a group of splits and of all groups
  int64_t code_stride;   // elements per row of unpacked codes, or of floats in their place
  int64_t total;
};
inline Scratch scratch_layout(const Problem& p, Tile tile, IsaShape isa) {
  const int64_t line = 16;  // floats per cache line
  const int64_t m = round_up<int64_t>(tile.m, isa.tile_rows);
  const int64_t cols = isa.tile_cols;
  Scratch x;  // every field is set
  x.q_stride = round_up(ceil_div<int64_t>(p.head_dim, isa.pair), line);
  // One additional line: panels a multiple of 4 KiB apart would share the same few sets of the L1
  // cache.
  x.k_panel = round_up(ceil_div<int64_t>(p.head_dim, isa.pair) * cols, line) + line;
  x.v_panel = tile.n * cols + line;
  x.o_stride = round_up(round_up(p.head_dim_v, cols), line);
  x.q = 0;
  x.k = x.q + m * x.q_stride;
  x.v = x.k + ceil_div(tile.n, cols) * x.k_panel;
  x.s = x.v + ceil_div(p.head_dim_v, cols) * x.v_panel;
  x.o = x.s + kSweepRows * tile.n;
  x.rows = x.o + m * x.o_stride;
  x.row_array = round_up(m, line);
  x.partials = x.rows + kRowArrays * x.row_array;
  x.partial = x.o_stride + line;
  x.partial_rows = p.strict_rows ? m : 0;  // only then a row tile has more than one split
  x.codes = x.partials + 2 * x.partial_rows * x.partial;
  x.code_stride = round_up<int64_t>(std::max(p.head_dim, p.head_dim_v), 64);
  x.total = x.codes;
  if (has_codes(p))
    x.total += code_rows(p, tile) * x.code_stride + word_floats(p.head_dim) + ordered_floats(p);
  return x;
}

// Partial results of the tasks that share the keys of a sequence: normalized O, row maximum and row
// sum.
struct Partials {
  int64_t max_splits, max_tasks, rows;  // maximum over all sequences
  int64_t row_floats, head_floats;      // of a row, and of all tasks and rows of a KV head
};
// `longest`: the plan of a sequence of p.seqlen_q queries and p.seqlen_k keys.
inline Partials partials_layout(const Problem& p, const Scratch& scratch,
                                const SequencePlan& longest) {
  const int64_t rows = std::min(p.seqlen_q * group_size(p), kSplitRows);
  Partials x{longest.num_splits, longest.num_key_tasks, rows, scratch.partial, 0};
  // A batch of different lengths may contain any shorter sequence, and a shorter one may have more
  // tasks (32768 keys: 64 of 512; 32769 keys: 17 of 2048). So use the upper bound of the number of
  // tasks, not the tasks of the longest sequence.
  if (has_device_lengths(p) && group_size(p) <= kSplitRows) {
    if (!p.strict_rows && p.num_splits > 0) {
      const int64_t by_size = ceil_div(p.seqlen_k, largest_tile(p).n);
      x.max_splits = x.max_tasks = std::clamp<int64_t>(by_size, 1, p.num_splits);
    } else {
      x.max_splits = std::max<int64_t>(
          ceil_div(p.seqlen_k, p.strict_rows ? kPackedSplitKeys : kDirectSplitKeys), 1);
      x.max_tasks =
          std::max(std::min(x.max_splits, kMaxSplitTasks), ceil_div(x.max_splits, kGroupSplits));
    }
  }
  x.head_floats = saturating_product({x.max_tasks, x.rows, x.row_floats});
  return x;
}

// Values of TuningConfig::num_threads: all of the device, half, one. Waking threads costs more than
// a small call.
inline std::array<int32_t, 3> tuned_threads(const DeviceInfo& device) {
  const int32_t half = device.num_units / 2;
  return {0, std::max(half, 0), device.num_units > 1 ? 1 : 0};
}

}  // namespace headrace::cpu::flash
