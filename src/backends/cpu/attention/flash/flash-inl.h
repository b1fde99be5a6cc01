// The flash kernel: exact attention over key tiles with an online softmax; only one tile of scores
// exists at a time. Compiled for every instruction set (Isa) and element type (E). Sources:
// Dao et al., FlashAttention (2022), algorithm 1; Dao, FlashAttention-2 (2023), section 3; Dao et
// al., Flash-Decoding (2023) for the split keys.
#pragma once

#include <string.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <type_traits>

#include "backends/cpu/attention/flash/direct-inl.h"
#include "backends/cpu/attention/flash/finish-inl.h"
#include "backends/cpu/attention/flash/flash.h"
#include "backends/cpu/attention/flash/gemm-inl.h"
#include "backends/cpu/attention/partial_rows-inl.h"

namespace headrace::cpu::flash {

// One task: a row tile of one (batch entry, KV head) over all of its keys, or all rows over some of
// the splits (a key task); or of several KV heads that are adjacent in memory, one key tile after
// the other.
template <class Isa, class E>
class Task {
 public:
  using CallType = Call;
  using Vec = typename Isa::Vec;
  using Unit = typename Isa::Unit;          // for Q and K
  using FloatIsa = typename Isa::FloatIsa;  // for P and V
  static_assert(kNr<Isa> == kNr<FloatIsa> && Isa::kMr == FloatIsa::kMr);

  Task(const Call& call, int64_t index, int worker)
      : call_(call),
        p_(*call.problem),
        args_(*call.args),
        x_(call.plan->scratch),
        index_(index),
        worker_(worker),
        scratch_(call.worker_scratch + worker * call.plan->scratch.total) {
    const int64_t units_per_head = call.plan->units_per_head;
    const int64_t head_groups = p_.num_kv_heads / call.heads_per_task;
    const int64_t entry_units = units_per_head * head_groups;
    batch_idx_ = index / entry_units;
    sequence_ = sequence_of(p_, args_, batch_idx_);
    plan_ = has_device_lengths(p_) ? plan_sequence(p_, sequence_.seqlen_q, sequence_.seqlen_k)
                                   : call.plan->sequence;
    const bool is_split = has_key_tasks();
    // Task order: the tiles of a head are consecutive, because they share its K and V. The key
    // tasks of all heads over the same keys are consecutive: in [batch, seqlen, heads, dim] these
    // keys are adjacent, so hardware prefetches past a row fetch the next head's.
    const int64_t entry_unit = index % entry_units;
    const int64_t unit = is_split ? entry_unit / head_groups : entry_unit % units_per_head;
    const int64_t heads = is_split ? entry_unit % head_groups : entry_unit / units_per_head;
    first_head_ = heads * call.heads_per_task;
    tile_n_ = plan_.path == Path::direct ? kDirectKeys : call.tile.n;
    group_ = group_size(p_);
    const int64_t all_rows = sequence_.seqlen_q * group_;
    const int64_t num_tiles = ceil_div(all_rows, call.tile.m);
    // Causal tiles differ in length: the longest first, so that no thread starts a long one last.
    const int64_t tile_idx = num_tiles - 1 - unit;
    key_task_ = is_split ? unit : 0;
    split_idx_ = key_task_ * plan_.task_splits;
    end_split_ = std::min(split_idx_ + plan_.task_splits, plan_.num_splits);
    first_row_ = is_split ? 0 : tile_idx * call.tile.m;
    const int64_t num_units = is_split ? plan_.num_key_tasks : num_tiles;
    num_rows_ = unit < num_units ? std::min(call.tile.m, all_rows - first_row_) : 0;
  }

  void run() {
    if (num_rows_ <= 0) return;
    const Heads all{first_head_, first_head_ + call_.heads_per_task};
    for (int64_t head = all.begin; head < all.end; ++head) start_head(head);
    if (plan_.num_splits > 1) skip_invisible_splits();
    for (; split_idx_ < end_split_; ++split_idx_) {
      run_key_tiles<0>(all);
      for (int64_t head = all.begin; head < all.end; ++head) finish_split(head);
    }
    for (int64_t head = all.begin; plan_.num_splits > 1 && head < all.end; ++head)
      finish_partials(head);
  }

 private:
  struct Heads {
    int64_t begin, end;
  };
  // Sets the current head. Each head of a task has its own rows of scratch memory; only the direct
  // path has several heads.
  void select(int64_t head) {
    kv_head_ = head;
    const int64_t i = head - first_head_;
    base_ = i * call_.plan->rows_per_head;
    scores_ = i * num_rows_ * tile_n_;
  }
  void finish_split(int64_t head) {
    select(head);
    // A sum of many values near the largest float can overflow although their mean does not. Such
    // rows are recomputed with probabilities scaled by 2^-20, and so are rows with a NaN.
    if (!finish_rows<0>()) {
      run_key_tiles<kOverflowShift>({head, head + 1});
      for (int64_t r = 0; r < num_rows_; ++r)
        if (is_done()[r] == 0.0f) finish_row<kOverflowShift>(r);
    }
    if (!has_key_tasks() && (split_idx_ + 1) % kGroupSplits == 0) merge_group();
  }

  // Rows see nothing in splits before and after these.
  void skip_invisible_splits() {
    KeyRange all{sequence_.seqlen_k, 0};
    RowId id = row_id(0);
    for (int64_t r = 0; r < num_rows_; ++r, advance(id)) {
      const KeyRange keys = visible_keys(p_, id.q_idx, sequence_.seqlen_q, sequence_.seqlen_k);
      if (keys.begin < keys.end)
        all = {std::min(all.begin, keys.begin), std::max(all.end, keys.end)};
    }
    split_idx_ = std::max(split_idx_, all.begin / plan_.split_keys);
    end_split_ = std::min(end_split_, ceil_div(all.end, plan_.split_keys));
  }

  bool has_key_tasks() const { return plan_.num_key_tasks > 1; }
  // Scratch of this worker. Row arrays have round_up(tile.m) floats each.
  Unit* q() {  // [rows][q_stride] units
    return reinterpret_cast<Unit*>(scratch_ + x_.q) + base_ * x_.q_stride;
  }
  float* k() { return scratch_ + x_.k; }  // panels of K
  float* v() { return scratch_ + x_.v; }  // panels of V
  float* s(int64_t r) {
    return scratch_ + x_.s + scores_ + r % kSweepRows * tile_n_;
  }  // [rows][tile_n] scores, then probabilities
  float* o() { return scratch_ + x_.o + base_ * x_.o_stride; }  // [rows][o_stride]
  float* row_array(int i) { return scratch_ + x_.rows + i * x_.row_array; }
  float* maximum() { return row_array(0) + base_; }
  float* old_maximum() { return row_array(1) + base_; }
  float* sum() { return row_array(2) + base_; }
  float* tile_sum() { return row_array(3) + base_; }
  float* row_scale() { return row_array(4) + base_; }
  float* is_done() { return row_array(12) + base_; }
  KeyRange* row_keys() { return reinterpret_cast<KeyRange*>(row_array(5)) + base_; }
  Span* row_span() { return reinterpret_cast<Span*>(row_array(9)) + base_; }
  Span* block_span() {  // kMr >= 2 rows per block
    return reinterpret_cast<Span*>(row_array(11)) + base_ / 2;
  }

  int64_t padded_rows() const { return round_up<int64_t>(num_rows_, Isa::kMr); }
  RowId row_id(int64_t r) const {
    const int64_t row = first_row_ + r;
    return {batch_idx_, kv_head_ * group_ + row % group_, row / group_, sequence_};
  }
  // To the next row.
  void advance(RowId& id) const {
    if (++id.head < (kv_head_ + 1) * group_) return;
    id.head -= group_;
    ++id.q_idx;
  }

  // Processes all key tiles; computes O, maximum and sum of each row of these heads, with
  // probabilities scaled by 2^kShift. The heads see the same keys.
  template <int kShift>
  void run_key_tiles(Heads heads) {
    for (int64_t head = heads.begin; head < heads.end; ++head) {
      select(head);
      start_rows();
    }
    for (int64_t key = keys_.begin / tile_n_ * tile_n_; key < keys_.end; key += tile_n_) {
      first_key_ = key;
      num_keys_ = static_cast<int>(std::min(tile_n_, sequence_.seqlen_k - key));
      if (plan_.path == Path::packed) {
        find_spans();
        packed_tile<kShift>();
      } else {
        direct_tile<kShift>(heads);
      }
    }
  }

  // Finishes the rows whose O is finite; false if others are left.
  template <int kShift>
  bool finish_rows() {
    bool are_all_done = true;
    for (int64_t r = 0; r < num_rows_; ++r) {
      const bool is_whole = is_finite<Vec>(o() + r * x_.o_stride, x_.o_stride);
      if (is_whole) finish_row<kShift>(r);
      is_done()[r] = is_whole ? 1.0f : 0.0f;
      are_all_done = are_all_done && is_whole;
    }
    return are_all_done;
  }

  template <int kShift>
  void finish_row(int64_t r) {
    const float* row = o() + r * x_.o_stride;
    const double row_sum =
        kShift == 0 ? sum()[r] : std::ldexp(static_cast<double>(sum()[r]), -kShift);
    const auto normaliser = static_cast<float>(1.0 / static_cast<double>(sum()[r]));
    if (plan_.num_splits == 1) {
      store_result<Vec, E>(p_, args_, row_id(r), row, normaliser, maximum()[r], row_sum);
    } else if (row_sum != 0.0) {
      split_partials().merge(r, {row, normaliser, maximum()[r], static_cast<float>(row_sum)});
    }
  }

  // Rows of scratch memory, with those that pad the last register tile.
  int64_t scratch_rows() const { return plan_.path == Path::direct ? num_rows_ : padded_rows(); }

  void start_head(int64_t head) {
    select(head);
    load_queries();
    for (int64_t r = 0; plan_.num_splits > 1 && r < num_rows_; ++r) {
      split_partials().clear(r);
      if (!has_key_tasks()) tile_partials(1).clear(r);
    }
  }

  void load_queries() {
    const int64_t units = x_.q_stride, padding = scratch_rows() - num_rows_;
    memset(q() + num_rows_ * units, 0, static_cast<size_t>(padding * units) * sizeof(Unit));
    RowId id = row_id(0);
    for (int64_t r = 0; r < num_rows_; ++r, advance(id)) {
      Unit* row = q() + r * units;
      const E* from = static_cast<const E*>(args_.q.data) +
                      row_offset(args_.q, batch_idx_, sequence_.row_q + id.q_idx, id.head);
      Isa::copy_row(from, p_.head_dim, row, units);
      if (plan_.path == Path::direct) order_units<Isa>(from, p_.head_dim, row);
    }
  }

  void start_rows() {
    const int64_t rows = scratch_rows();
    keys_ = {sequence_.seqlen_k, 0};
    const int64_t split_begin = split_idx_ * plan_.split_keys;
    const int64_t split_end = std::min(split_begin + plan_.split_keys, sequence_.seqlen_k);
    RowId id = row_id(0);
    for (int64_t r = 0; r < num_rows_; ++r, advance(id)) {
      const KeyRange visible = visible_keys(p_, id.q_idx, sequence_.seqlen_q, sequence_.seqlen_k);
      row_keys()[r] = {std::max(visible.begin, split_begin), std::min(visible.end, split_end)};
      if (row_keys()[r].begin >= row_keys()[r].end) continue;
      keys_.begin = std::min(keys_.begin, row_keys()[r].begin);
      keys_.end = std::max(keys_.end, row_keys()[r].end);
    }
    const int64_t padded = round_up<int64_t>(rows, 16);
    for (int64_t r = 0; r < padded; ++r) {
      maximum()[r] = old_maximum()[r] = -kInfinity;
      sum()[r] = tile_sum()[r] = 0.0f;
    }
    memset(o(), 0, static_cast<size_t>(rows * x_.o_stride) * sizeof(float));
  }

  // Rows of K or V from `key`, of the current head.
  StridedRows<E> strided_rows(const Operand& x, int64_t key) const {
    const int64_t first = row_offset(x, batch_idx_, sequence_.row_k + key, kv_head_);
    return {static_cast<const E*>(x.data) + first, x.stride_seq};
  }
  PagedRows<E> paged_rows(const Operand& x, int64_t key, int64_t count, const E** to) const {
    const int32_t* pages = args_.paged.block_table + batch_idx_ * args_.paged.stride_batch;
    find_addresses(p_.page_size, pages, x, kv_head_, sequence_.seqlen_k, key, count, to);
    return {to, 0};
  }

  // rows(task, key) for the next key tile: of this task, or the first of the task that this worker
  // gets next if all tasks take equally long.
  template <class RowsOf>
  auto next_tile(bool is_last, RowsOf rows) {
    if (!is_last) return rows(*this, first_key_ + tile_n_);
    const int64_t index = index_ + call_.num_threads;
    if (index < call_.num_tasks) {
      Task next(call_, index, worker_);
      next.select(next.first_head_);
      const int64_t key = next.split_idx_ * next.plan_.split_keys;
      if (key < next.sequence_.seqlen_k) return rows(next, key);
    }
    return rows(*this, first_key_);
  }

  // Visible columns of the current tile for each row, and their union for each block of kMr rows.
  void find_spans() {
    const int64_t block_rows = plan_.path == Path::packed ? Isa::kMr : num_rows_;
    for (int64_t r = 0; r < num_rows_; r += block_rows) {
      Span block{num_keys_, 0};
      for (int64_t i = r; i < std::min(r + block_rows, num_rows_); ++i) {
        const int64_t begin = std::clamp<int64_t>(row_keys()[i].begin - first_key_, 0, num_keys_);
        const int64_t end = std::clamp<int64_t>(row_keys()[i].end - first_key_, begin, num_keys_);
        row_span()[i] = {static_cast<int>(begin), static_cast<int>(end)};
        if (begin == end) continue;
        block.begin = std::min(block.begin, row_span()[i].begin);
        block.end = std::max(block.end, row_span()[i].end);
      }
      block_span()[r / block_rows] = block;
    }
  }

  // Turns the scores of row r into probabilities for the second matmul.
  template <int kShift>
  void softmax(int64_t r, Span block) {
    float* scores = s(r);
    const Span span = row_span()[r];
    float scale = static_cast<float>(p_.softmax_scale);
    if (has_general_scores(p_) || !(scale > 0)) {
      general_scores<Vec>(p_, args_, row_id(r), first_key_, num_keys_, span, scores);
      scale = 1.0f;
    }
    tile_sum()[r] = softmax_row<Vec, kShift>(scores, span, block, scale, maximum()[r]);
    if (has_dropout(p_)) dropout_row(p_, args_, row_id(r), first_key_, span, scores);
  }

  // K and V of the tile are packed into panels; rows are processed in blocks of kMr, each over its
  // visible columns.
  template <int kShift>
  void packed_tile() {
    if (has_pages(p_)) {
      const E* addresses[kMaxTileKeys];
      pack_tile([&](const Operand& x) { return paged_rows(x, first_key_, num_keys_, addresses); });
    } else {
      pack_tile([&](const Operand& x) { return strided_rows(x, first_key_); });
    }
    for (int64_t r = 0; r < num_rows_; r += kSweepRows) {
      const int64_t end = std::min(r + kSweepRows, padded_rows());
      packed_scores(r, end);
      softmax_rows<kShift>(r, std::min(end, num_rows_));
      packed_output(r, end);
    }
  }

  template <class RowsOf>
  void pack_tile(RowsOf rows) {
    pack_keys<Isa>(rows(args_.k), num_keys_, p_.head_dim, k(), x_.k_panel);
    pack_values<FloatIsa>(rows(args_.v), num_keys_, p_.head_dim_v, v(), x_.v_panel);
  }

  void packed_scores(int64_t row_begin, int64_t row_end) {
    constexpr int64_t kCols = kNr<Isa>;
    const int64_t steps = ceil_div<int64_t>(p_.head_dim, Isa::kPair);
    for (int64_t col = 0; col < num_keys_; col += kCols) {
      const auto* panel = reinterpret_cast<const Unit*>(k() + col / kCols * x_.k_panel);
      for (int64_t r = row_begin; r < row_end; r += Isa::kMr) {
        const Span block = block_span()[r / Isa::kMr];
        if (block.is_empty() || block.end <= col || block.begin >= col + kCols) continue;
        register_tile<Isa, false>(q() + r * x_.q_stride, x_.q_stride, panel, kCols, steps,
                                  s(r) + col, call_.tile.n, nullptr);
      }
    }
  }

  template <int kShift>
  void softmax_rows(int64_t row_begin, int64_t row_end) {
    for (int64_t block_begin = row_begin; block_begin < row_end; block_begin += Isa::kMr) {
      const Span block = block_span()[block_begin / Isa::kMr];
      for (int64_t r = block_begin; r < std::min<int64_t>(block_begin + Isa::kMr, row_end); ++r) {
        old_maximum()[r] = maximum()[r];
        tile_sum()[r] = 0.0f;
        if (!block.is_empty()) softmax<kShift>(r, block);
      }
    }
    // Whole vectors: row_begin is a multiple of 16, and the arrays are padded after the last row.
    rescale_rows<Vec>(old_maximum() + row_begin, maximum() + row_begin, tile_sum() + row_begin,
                      static_cast<int>(row_end - row_begin), row_scale() + row_begin,
                      sum() + row_begin);
  }

  void packed_output(int64_t row_begin, int64_t row_end) {
    constexpr int64_t kCols = kNr<Isa>;
    for (int64_t c = 0; c < p_.head_dim_v; c += kCols) {
      const float* panel = v() + c / kCols * x_.v_panel;
      for (int64_t r = row_begin; r < row_end; r += Isa::kMr) {
        const Span block = block_span()[r / Isa::kMr];
        if (block.is_empty()) continue;
        register_tile<FloatIsa, true>(s(r) + block.begin, call_.tile.n, panel + block.begin * kCols,
                                      kCols, block.end - block.begin, o() + r * x_.o_stride + c,
                                      x_.o_stride, row_scale() + r);
      }
    }
  }

  template <int kShift>
  void direct_tile(Heads heads) {
    select(heads.begin);
    const bool is_last = first_key_ + tile_n_ >= keys_.end && split_idx_ + 1 == end_split_;
    if (has_pages(p_)) {
      const E *keys[kDirectAddresses<E>], *values[kDirectAddresses<E>], *next[kDirectKeys];
      direct_products<kShift>(heads, paged_rows(args_.k, first_key_, kDirectAddresses<E>, keys),
                              paged_rows(args_.v, first_key_, kDirectAddresses<E>, values),
                              next_tile(is_last, [&](const Task& task, int64_t key) {
                                return task.paged_rows(args_.k, key, kDirectKeys, next);
                              }));
    } else {
      direct_products<kShift>(heads, strided_rows(args_.k, first_key_),
                              strided_rows(args_.v, first_key_),
                              next_tile(is_last, [&](const Task& task, int64_t key) {
                                return task.strided_rows(args_.k, key);
                              }));
    }
  }

  // Both matmuls of all heads, one after the other: their K are adjacent in memory, and so are
  // their V. The rows are those of the first head.
  template <int kShift, class Rows>
  void direct_products(Heads heads, Rows keys, Rows values, Rows next) {
    const int64_t num_heads = heads.end - heads.begin;
    Fetch<Rows> next_values{values, num_heads * p_.head_dim_v, num_keys_};
    Fetch<Rows> next_keys{next, num_heads * p_.head_dim, tile_n_};
    for (int64_t head = heads.begin; head < heads.end; ++head) {
      select(head);
      find_spans();
      const Span block = block_span()[0];
      if (block.is_empty()) continue;
      const Operands<Rows> operands{
          keys.from(block.begin).shifted((head - heads.begin) * args_.k.stride_head),
          block.end - block.begin, p_.head_dim};
      direct_scores<Isa>(q(), x_.q_stride, num_rows_, operands, next_values, s(0) + block.begin);
      for (int64_t r = 0; r < num_rows_; ++r) {
        old_maximum()[r] = maximum()[r];
        fetch_rest<Isa>(operands.count, num_rows_, next_values);
        softmax<kShift>(r, block);
      }
      rescale_rows<Vec>(old_maximum(), maximum(), tile_sum(), static_cast<int>(num_rows_),
                        row_scale(), sum());
    }
    for (int64_t head = heads.begin; head < heads.end; ++head) {
      select(head);
      const Span block = block_span()[0];
      if (block.is_empty()) continue;
      const Operands<Rows> operands{values.shifted((head - heads.begin) * args_.v.stride_head),
                                    block.end, p_.head_dim_v};
      direct_output<FloatIsa>(s(0), num_rows_, operands, next_keys, block.begin, o(), x_.o_stride,
                              row_scale());
    }
  }

  // Partial results of a key task of this (batch, KV head).
  PartialRows<Vec> task_partials(int64_t key_task) const {
    const Partials& partials = call_.plan->partials;
    const int64_t head_idx = batch_idx_ * p_.num_kv_heads + kv_head_;
    return {call_.partial + head_idx * partials.head_floats +
                key_task * partials.rows * partials.row_floats,
            partials.row_floats, x_.o_stride};
  }
  // Without key tasks: of the current group of splits (0), of all groups so far (1).
  PartialRows<Vec> tile_partials(int i) const {
    return {scratch_ + x_.partials + i * x_.partial_rows * x_.partial, x_.partial, x_.o_stride};
  }
  PartialRows<Vec> split_partials() const {
    return has_key_tasks() ? task_partials(key_task_) : tile_partials(0);
  }

  // Without key tasks: merges the finished group of splits into those before it.
  void merge_group() {
    for (int64_t r = 0; r < num_rows_; ++r) {
      tile_partials(1).merge(r, tile_partials(0)[r]);
      tile_partials(0).clear(r);
    }
  }

  void finish_partials(int64_t head) {
    select(head);
    if (has_key_tasks()) return merge_if_last();
    merge_group();
    for (int64_t r = 0; r < num_rows_; ++r) store_partial(r, tile_partials(1)[r]);
  }
  void store_partial(int64_t r, const Partial& all) {
    store_result<Vec, E>(p_, args_, row_id(r), all.o, 1.0f, all.maximum, all.sum);
  }

  // The last task merges in the order of the keys: which one it is changes no bit.
  void merge_if_last() {
    std::atomic_ref<uint32_t> finished(call_.num_finished[batch_idx_ * p_.num_kv_heads + kv_head_]);
    if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 < plan_.num_key_tasks) return;
    for (int64_t r = 0; r < num_rows_; ++r) merge_row(r);
  }

  // In the order of a task that computes all splits: within each group, then the groups.
  void merge_row(int64_t r) {
    const int64_t tasks = plan_.num_key_tasks, group = kGroupSplits / plan_.task_splits;
    for (int64_t first = 0; first < tasks; first += group) {
      for (int64_t task = first + 1; task < std::min(first + group, tasks); ++task)
        task_partials(first).merge(r, task_partials(task)[r]);
      if (first > 0) task_partials(0).merge(r, task_partials(first)[r]);
    }
    store_partial(r, task_partials(0)[r]);
  }

  const Call& call_;
  const Problem& p_;
  const AttentionArgs& args_;
  const Scratch& x_;
  int64_t index_;
  int worker_;
  float* scratch_;
  int64_t batch_idx_, first_head_, group_;
  int64_t key_task_, split_idx_, end_split_;     // the current split, and the end of the task's
  int64_t kv_head_ = 0, base_ = 0, scores_ = 0;  // see select()
  int64_t tile_n_;                               // keys per tile
  Sequence sequence_;
  SequencePlan plan_;
  int64_t first_row_, num_rows_;
  KeyRange keys_{0, 0};    // union of the rows' visible keys within the current split
  int64_t first_key_ = 0;  // of the current tile
  int num_keys_ = 0;       // of the current tile that exist in the sequence
};

}  // namespace headrace::cpu::flash
