// The flash kernel: exact attention over key tiles with an online softmax; only one tile of scores
// exists at a time. Compiled for every instruction set (Isa) and element type (E). Sources:
// Dao et al., FlashAttention (2022), algorithm 1; Dao, FlashAttention-2 (2023), section 3; Dao et
// al., Flash-Decoding (2023) for the split keys.
#pragma once

#include <string.h>

#include <algorithm>
#include <cmath>

#include "backends/cpu/attention/flash/codes-inl.h"
#include "backends/cpu/attention/flash/direct-inl.h"
#include "backends/cpu/attention/flash/direct_codes-inl.h"
#include "backends/cpu/attention/flash/finish-inl.h"
#include "backends/cpu/attention/flash/flash.h"
#include "backends/cpu/attention/flash/gemm-inl.h"
#include "backends/cpu/attention/flash/split_partials-inl.h"

namespace headrace::cpu::flash {

// One Work.
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
        scratch_(call.worker_scratch + worker * call.plan->scratch.total),
        w_(work_of(call, index)),
        group_(group_size(p_)),
        tile_n_(w_.plan.path == Path::direct ? kDirectKeys : call.tile.n) {}

  void run() {
    if (w_.num_rows <= 0) return;
    const Heads all{w_.first_head, w_.first_head + call_.heads_per_task};
    for (int64_t head = all.begin; head < all.end; ++head) start_head(head);
    if (w_.plan.num_splits > 1) skip_invisible_splits(p_, w_);
    for (; w_.split_idx < w_.end_split; ++w_.split_idx) {
      run_key_tiles<0>(all);
      for (int64_t head = all.begin; head < all.end; ++head) finish_split(head);
    }
    for (int64_t head = all.begin; w_.plan.num_splits > 1 && head < all.end; ++head)
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
    const int64_t i = head - w_.first_head;
    base_ = i * call_.plan->rows_per_head;
    scores_ = i * w_.num_rows * tile_n_;
  }
  void finish_split(int64_t head) {
    select(head);
    // A sum of many values near the largest float can overflow although their mean does not. Such
    // rows are recomputed with probabilities scaled by 2^-20, and so are rows with a NaN.
    if (!finish_rows<0>()) {
      run_key_tiles<kOverflowShift>({head, head + 1});
      for (int64_t r = 0; r < w_.num_rows; ++r)
        if (is_done()[r] == 0.0f) finish_row<kOverflowShift>(r, row_id(r));
    }
    if (!w_.has_key_tasks() && (w_.split_idx + 1) % kGroupSplits == 0)
      partials().merge_group(w_.num_rows);
  }

  // Scratch of this worker. Row arrays have round_up(tile.m) floats each.
  Unit* q() {  // [rows][q_stride] units
    return reinterpret_cast<Unit*>(scratch_ + x_.q) + base_ * x_.q_stride;
  }
  float* k() { return scratch_ + x_.k; }  // panels of K
  float* v() { return scratch_ + x_.v; }  // panels of V
  // [rows][tile_n] scores, then probabilities
  float* s(int64_t r) { return scratch_ + x_.s + scores_ + r % kSweepRows * tile_n_; }
  float* o() { return scratch_ + x_.o + base_ * x_.o_stride; }  // [rows][o_stride]
  CodeQueries code_queries() const {                            // the last of the scratch memory
    return code_queries_at(p_, scratch_ + x_.total, (kv_head_ - w_.first_head) * w_.num_rows);
  }
  float* row_array(int i) { return scratch_ + x_.rows + i * x_.row_array; }
  float* maximum() { return row_array(0) + base_; }
  float* old_maximum() { return row_array(1) + base_; }
  float* sum() { return row_array(2) + base_; }
  float* tile_sum() { return row_array(3) + base_; }
  float* row_scale() { return row_array(4) + base_; }
  float* is_done() { return row_array(12) + base_; }
  // All heads see the same keys.
  KeyRange* row_keys() { return reinterpret_cast<KeyRange*>(row_array(5)); }
  Span* row_span() { return reinterpret_cast<Span*>(row_array(9)); }
  // kMr >= 2 rows per block
  Span* block_span() { return reinterpret_cast<Span*>(row_array(11)); }

  int64_t padded_rows() const { return round_up<int64_t>(w_.num_rows, Isa::kMr); }
  RowId row_id(int64_t r) const {
    const int64_t row = w_.first_row + r;
    return {w_.batch_idx, kv_head_ * group_ + row % group_, row / group_, w_.sequence};
  }
  void advance(RowId& id) const {  // to the next row
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
    run_pass<kShift>(heads, KeyForm::stored);
    if (has_recent(p_)) run_pass<kShift>(heads, KeyForm::recent);
  }

  // The key tiles of which rows see keys in this form.
  template <int kShift>
  void run_pass(Heads heads, KeyForm form) {
    form_ = form;
    select(heads.begin);
    find_row_keys();
    for (int64_t key = keys_.begin / tile_n_ * tile_n_; key < keys_.end; key += tile_n_) {
      first_key_ = key;
      num_keys_ = static_cast<int>(std::min(tile_n_, w_.sequence.seqlen_k - key));
      find_spans();
      if (w_.plan.path == Path::packed) {
        packed_tile<kShift>();
      } else if (has_codes(p_)) {
        direct_code_tile<kShift>(heads);
      } else {
        direct_tile<kShift>(heads);
      }
    }
  }

  // Finishes the rows whose O is finite; false if others are left.
  template <int kShift>
  bool finish_rows() {
    bool are_all_done = true;
    RowId id = row_id(0);
    for (int64_t r = 0; r < w_.num_rows; ++r, advance(id)) {
      const bool is_whole = is_finite<Vec>(o() + r * x_.o_stride, x_.o_stride);
      if (is_whole) finish_row<kShift>(r, id);
      is_done()[r] = is_whole ? 1.0f : 0.0f;
      are_all_done = are_all_done && is_whole;
    }
    return are_all_done;
  }

  template <int kShift>
  void finish_row(int64_t r, const RowId& id) {
    const float* row = o() + r * x_.o_stride;
    const double row_sum =
        kShift == 0 ? sum()[r] : std::ldexp(static_cast<double>(sum()[r]), -kShift);
    const auto normaliser = static_cast<float>(1.0 / static_cast<double>(sum()[r]));
    if (w_.plan.num_splits == 1) {
      store_result<Vec, E>(p_, args_, id, row, normaliser, maximum()[r], row_sum);
    } else if (row_sum != 0.0) {
      partials().of_split().merge(r, {row, normaliser, maximum()[r], static_cast<float>(row_sum)});
    }
  }

  // Rows of scratch memory, with those that pad the last register tile.
  int64_t scratch_rows() const {
    return w_.plan.path == Path::direct ? w_.num_rows : padded_rows();
  }

  void start_head(int64_t head) {
    select(head);
    load_queries();
    for (int64_t r = 0; w_.plan.num_splits > 1 && r < w_.num_rows; ++r) {
      partials().of_split().clear(r);
      if (!w_.has_key_tasks()) partials().of_tile(1).clear(r);
    }
  }

  void load_queries() {
    const int64_t units = x_.q_stride, padding = scratch_rows() - w_.num_rows;
    memset(q() + w_.num_rows * units, 0, static_cast<size_t>(padding * units) * sizeof(Unit));
    RowId id = row_id(0);
    for (int64_t r = 0; r < w_.num_rows; ++r, advance(id)) {
      Unit* row = q() + r * units;
      const E* from = static_cast<const E*>(args_.q.data) +
                      row_offset(args_.q, w_.batch_idx, w_.sequence.row_q + id.q_idx, id.head);
      Isa::copy_row(from, p_.head_dim, row, units);
      if (w_.plan.path == Path::direct && !has_codes(p_)) order_units<Isa>(from, p_.head_dim, row);
      if constexpr (has_integer_products<Isa, E>) {
        if (w_.plan.path == Path::direct && call_.plan->has_integer_products)
          load_code_queries<Isa>(p_, row, code_queries(), r);
      }
    }
  }

  void start_rows() {
    const int64_t rows = scratch_rows();
    for (int64_t r = 0; r < round_up<int64_t>(rows, 16); ++r) {
      maximum()[r] = old_maximum()[r] = -kInfinity;
      sum()[r] = tile_sum()[r] = 0.0f;
    }
    memset(o(), 0, static_cast<size_t>(rows * x_.o_stride) * sizeof(float));
  }

  // The keys that each row sees in the current split and form.
  void find_row_keys() {
    keys_ = {w_.sequence.seqlen_k, 0};
    const int64_t split_begin = w_.split_idx * w_.plan.split_keys;
    const int64_t split_end = std::min(split_begin + w_.plan.split_keys, w_.sequence.seqlen_k);
    RowId id = row_id(0);
    for (int64_t r = 0; r < w_.num_rows; ++r, advance(id)) {
      const KeyRange visible =
          keys_in_form(p_, visible_keys(p_, id.q_idx, w_.sequence.seqlen_q, w_.sequence.seqlen_k),
                       id.q_idx + w_.sequence.seqlen_k - w_.sequence.seqlen_q, form_);
      row_keys()[r] = {std::max(visible.begin, split_begin), std::min(visible.end, split_end)};
      if (row_keys()[r].begin >= row_keys()[r].end) continue;
      keys_.begin = std::min(keys_.begin, row_keys()[r].begin);
      keys_.end = std::max(keys_.end, row_keys()[r].end);
    }
  }

  // Rows of K or V from `key`, of the current head.
  StridedRows<E> strided_rows(const Operand& x, int64_t key) const {
    const int64_t first = row_offset(x, w_.batch_idx, w_.sequence.row_k + key, kv_head_);
    return {static_cast<const E*>(x.data) + first, x.stride_seq};
  }
  PagedRows<E> paged_rows(const Operand& x, int64_t key, int64_t count, const E** to) const {
    const int32_t* pages = pages_of(args_.paged, w_.sequence, w_.batch_idx);
    find_addresses(p_.page_size, pages, x, kv_head_, w_.sequence.seqlen_k, key, count, to);
    return {to, 0};
  }

  CodeTile<Isa, E> code_tile() const {
    return {p_,       args_, x_,    w_.sequence, w_.batch_idx,
            kv_head_, form_, keys_, first_key_,  num_keys_};
  }

  // rows(task, key) for the next key tile: of this task, or the first of the task that this worker
  // gets next if all tasks take equally long.
  template <class RowsOf>
  auto next_tile(RowsOf rows) {
    if (first_key_ + tile_n_ < keys_.end || w_.split_idx + 1 < w_.end_split)
      return rows(*this, first_key_ + tile_n_);
    if (const int64_t index = index_ + call_.num_threads; index < call_.num_tasks) {
      Task next(call_, index, worker_);
      next.select(next.w_.first_head);
      const int64_t key = next.w_.split_idx * next.w_.plan.split_keys;
      if (key < next.w_.sequence.seqlen_k) return rows(next, key);
    }
    return rows(*this, first_key_);
  }

  // Visible columns of the current tile for each row, and their union for each block of kMr rows.
  void find_spans() {
    const int64_t block_rows = w_.plan.path == Path::packed ? Isa::kMr : w_.num_rows;
    for (int64_t r = 0; r < w_.num_rows; r += block_rows) {
      Span block{num_keys_, 0};
      for (int64_t i = r; i < std::min(r + block_rows, w_.num_rows); ++i) {
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
    const float* key_scales = k_scales_;
    float scale = static_cast<float>(p_.softmax_scale);
    if (has_general_scores(p_) || !(scale > 0)) {
      if (key_scales != nullptr) scale_columns<Vec>(scores, key_scales, span);
      general_scores<Vec>(p_, args_, row_id(r), first_key_, num_keys_, span, scores);
      key_scales = nullptr;
      scale = 1.0f;
    }
    tile_sum()[r] = softmax_row<Vec, kShift>(scores, key_scales, span, block, scale, maximum()[r]);
    if (has_dropout(p_)) dropout_row(p_, args_, row_id(r), first_key_, span, scores);
    if (v_scales_ != nullptr) scale_columns<Vec>(scores, v_scales_, span);
  }

  // K and V are packed into panels; rows come in blocks of kMr, each over its visible columns.
  template <int kShift>
  void packed_tile() {
    float k_scales[kMaxTileKeys], v_scales[kMaxTileKeys];
    if (has_codes(p_)) {
      const CodeTile<Isa, E> tile = code_tile();
      k_scales_ = tile.find_scales(tile.k_side(), 1, 0, k_scales);
      v_scales_ = tile.find_scales(tile.v_side(), 1, 0, v_scales);
      if constexpr (kTakesCodes<Isa>) tile.pack(scratch_ + x_.codes, k(), v());
    } else if (has_pages(p_)) {
      Addresses<E, kMaxTileKeys> addresses;
      pack_tile([&](const Operand& x) { return paged_rows(x, first_key_, num_keys_, addresses); });
    } else {
      pack_tile([&](const Operand& x) { return strided_rows(x, first_key_); });
    }
    for (int64_t r = 0; r < w_.num_rows; r += kSweepRows) {
      const int64_t end = std::min(r + kSweepRows, padded_rows());
      packed_scores(r, end);
      softmax_rows<kShift>(r, std::min(end, w_.num_rows));
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
    if (has_pages(p_)) {
      Addresses<E, kDirectAddresses<E>> keys, values;
      Addresses<E, kDirectKeys> next;
      direct_products<kShift>(heads, paged_rows(args_.k, first_key_, kDirectAddresses<E>, keys),
                              paged_rows(args_.v, first_key_, kDirectAddresses<E>, values),
                              next_tile([&](const Task& task, int64_t key) {
                                return task.paged_rows(args_.k, key, kDirectKeys, next);
                              }));
    } else {
      direct_products<kShift>(heads, strided_rows(args_.k, first_key_),
                              strided_rows(args_.v, first_key_),
                              next_tile([&](const Task& task, int64_t key) {
                                return task.strided_rows(args_.k, key);
                              }));
    }
  }

  // Of the rows of one head; meanwhile prefetches what the scores of `keys` keys left of `next`.
  template <int kShift, class Next>
  void direct_softmax(Span block, int64_t keys, Next& next) {
    for (int64_t r = 0; r < w_.num_rows; ++r) {
      old_maximum()[r] = maximum()[r];
      fetch_rest<Isa>(keys, w_.num_rows, next);
      softmax<kShift>(r, block);
    }
    rescale_rows<Vec>(old_maximum(), maximum(), tile_sum(), static_cast<int>(w_.num_rows),
                      row_scale(), sum());
  }

  // Of codes: the scores of all heads, then their outputs, as direct_products().
  template <int kShift>
  void direct_code_tile(Heads heads) {
    if constexpr (kTakesCodes<Isa>) {
      const Span block = block_span()[0];
      if (block.is_empty()) return;
      select(heads.begin);
      Addresses<Int8, kDirectKeys> rows;
      const auto next = next_tile([&](const Task& task, int64_t key) {
        return task.code_tile().find_bytes(task.code_tile().k_side(), key, kDirectKeys, rows);
      });
      DirectCodes<Isa, E> codes(code_tile(), heads.end - heads.begin,
                                call_.plan->has_integer_products, next, scratch_ + x_.codes);
      for (int64_t head = heads.begin; head < heads.end; ++head) {
        select(head);
        codes.select(head, code_queries());
        k_scales_ = codes.k_scales();
        v_scales_ = codes.v_scales();
        codes.scores(q(), w_.num_rows, block, s(0));
        direct_softmax<kShift>(block, codes.rows_left(block), codes.next_values());
      }
      for (int64_t head = heads.begin; head < heads.end; ++head) {
        select(head);
        codes.select(head, code_queries());
        codes.output(s(0), w_.num_rows, block, row_span(), o(), row_scale());
      }
    }
  }

  // Both matmuls of all heads. The rows are those of the first head.
  template <int kShift, class Rows>
  void direct_products(Heads heads, Rows keys, Rows values, Rows next) {
    const int64_t num_heads = heads.end - heads.begin;
    const Span block = block_span()[0];
    if (block.is_empty()) return;
    HeadFetch<Rows> next_values{values, p_.head_dim_v, args_.v.stride_head, num_heads, num_keys_};
    HeadFetch<Rows> next_keys{next, p_.head_dim, args_.k.stride_head, num_heads, tile_n_};
    for (int64_t head = heads.begin; head < heads.end; ++head) {
      select(head);
      next_values.select(head - heads.begin);
      const Operands<Rows> operands{
          keys.from(block.begin).shifted((head - heads.begin) * args_.k.stride_head),
          block.end - block.begin, p_.head_dim};
      direct_scores<Isa>(q(), x_.q_stride, w_.num_rows, operands, next_values.lines(),
                         s(0) + block.begin);
      direct_softmax<kShift>(block, block.end - block.begin, next_values.lines());
    }
    for (int64_t head = heads.begin; head < heads.end; ++head) {
      select(head);
      next_keys.select(head - heads.begin);
      const Operands<Rows> operands{values.shifted((head - heads.begin) * args_.v.stride_head),
                                    block.end, p_.head_dim_v};
      direct_output<FloatIsa>(s(0), w_.num_rows, operands, next_keys.lines(), block.begin, o(),
                              x_.o_stride, row_scale());
    }
  }

  // Partial results of the current head.
  SplitPartials<Vec> partials() const {
    return {.call = call_,
            .work_plan = w_.plan,
            .head_idx = w_.batch_idx * p_.num_kv_heads + kv_head_,
            .key_task = w_.key_task,
            .scratch = scratch_};
  }
  void finish_partials(int64_t head) {
    select(head);
    const SplitPartials<Vec> all = partials();
    if (!all.are_last(w_.num_rows)) return;
    for (int64_t r = 0; r < w_.num_rows; ++r) {
      const Partial row = all.merged(r);
      store_result<Vec, E>(p_, args_, row_id(r), row.o, 1.0f, row.maximum, row.sum);
    }
  }

  const Call& call_;
  const Problem& p_;
  const AttentionArgs& args_;
  const Scratch& x_;
  int64_t index_;
  int worker_;
  float* scratch_;
  Work w_;
  int64_t group_;
  int64_t tile_n_;                                         // keys per tile
  int64_t kv_head_ = 0, base_ = 0, scores_ = 0;            // see select()
  KeyForm form_ = KeyForm::stored;                         // of the current pass
  const float *k_scales_ = nullptr, *v_scales_ = nullptr;  // of the current tile
  KeyRange keys_{0, 0};    // union of the rows' visible keys within the current split
  int64_t first_key_ = 0;  // of the current tile
  int num_keys_ = 0;       // of the current tile that exist in the sequence
};

}  // namespace headrace::cpu::flash
