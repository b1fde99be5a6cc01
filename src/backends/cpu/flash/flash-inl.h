// The flash kernel: exact attention over tiles of keys with an online softmax, never holding more
// than one tile of scores. One text for every instruction set (Isa) and element type (E). Sources:
// Dao et al., FlashAttention (2022), algorithm 1; Dao, FlashAttention-2 (2023), section 3; Dao et
// al., Flash-Decoding (2023) for the split keys.
#pragma once

#include <string.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <type_traits>

#include "backends/cpu/flash/direct-inl.h"
#include "backends/cpu/flash/flash.h"
#include "backends/cpu/flash/gemm-inl.h"
#include "backends/cpu/flash/softmax-inl.h"

namespace headrace::cpu::flash {

// One task: a tile of rows of one (batch entry, KV head), over all of its keys or one split of
// them.
template <class Isa, class E>
class Task {
 public:
  using Vec = typename Isa::Vec;
  using Unit = typename Isa::Unit;

  Task(const Call& call, int64_t index, int worker)
      : call_(call),
        p_(*call.problem),
        args_(*call.args),
        x_(call.scratch),
        scratch_(call.worker_scratch + worker * call.scratch.total) {
    const int64_t unit = index % call.units_per_head;
    const int64_t head_idx = index / call.units_per_head;
    batch_idx_ = head_idx / p_.num_kv_heads;
    kv_head_ = head_idx % p_.num_kv_heads;
    sequence_ = sequence_of(p_, args_, batch_idx_);
    plan_ = plan_sequence(p_, sequence_.seqlen_q, sequence_.seqlen_k);
    group_ = group_size(p_);
    const int64_t all_rows = sequence_.seqlen_q * group_;
    const int64_t num_tiles = ceil_div(all_rows, call.tile.m);
    // Causal tiles differ in length: the longest first, so that no thread begins a long one at the
    // end.
    const int64_t tile_idx = num_tiles - 1 - unit;
    const bool is_split = plan_.num_splits > 1;
    split_idx_ = is_split ? unit : 0;
    first_row_ = is_split ? 0 : tile_idx * call.tile.m;
    num_rows_ = unit < (is_split ? plan_.num_splits : num_tiles)
                    ? std::min(call.tile.m, all_rows - first_row_)
                    : 0;
  }

  void run() {
    if (num_rows_ <= 0) return;
    start_rows();
    const int64_t tile_n = call_.tile.n;
    for (int64_t key = keys_.begin / tile_n * tile_n; key < keys_.end; key += tile_n) {
      first_key_ = key;
      num_keys_ = static_cast<int>(std::min(tile_n, sequence_.seqlen_k - key));
      find_spans();
      if (plan_.path == Path::packed) {
        packed_tile();
      } else {
        direct_tile();
      }
    }
    if (plan_.num_splits > 1) {
      store_partial();
    } else {
      for (int64_t r = 0; r < num_rows_; ++r)
        store_row(r, o() + r * x_.o_stride, maximum()[r], sum()[r]);
    }
  }

 private:
  // Scratch of this worker. Row arrays have round_up(tile.m) floats each.
  Unit* q() { return reinterpret_cast<Unit*>(scratch_ + x_.q); }  // [rows][q_stride] units
  float* k() { return scratch_ + x_.k; }                          // panels of K
  float* v() { return scratch_ + x_.v; }                          // panels of V
  float* s(int64_t r) {
    return scratch_ + x_.s + r % kSweepRows * call_.tile.n;
  }                                       // [rows][tile_n] scores, then probabilities
  float* o() { return scratch_ + x_.o; }  // [rows][o_stride]
  float* row_array(int i) { return scratch_ + x_.rows + i * x_.row_array; }
  float* maximum() { return row_array(0); }
  float* old_maximum() { return row_array(1); }
  float* sum() { return row_array(2); }
  float* tile_sum() { return row_array(3); }
  float* row_scale() { return row_array(4); }
  KeyRange* row_keys() { return reinterpret_cast<KeyRange*>(row_array(5)); }
  Span* row_span() { return reinterpret_cast<Span*>(row_array(9)); }
  Span* block_span() { return reinterpret_cast<Span*>(row_array(11)); }  // kMr >= 2 rows a block

  int64_t padded_rows() const { return round_up<int64_t>(num_rows_, Isa::kMr); }
  RowId row_id(int64_t r) const {
    const int64_t row = first_row_ + r;
    return {batch_idx_, kv_head_ * group_ + row % group_, row / group_, sequence_};
  }

  void start_rows() {
    const int64_t rows = padded_rows();
    const int64_t units = x_.q_stride;
    keys_ = {sequence_.seqlen_k, 0};
    const int64_t split_begin = split_idx_ * plan_.split_keys;
    const int64_t split_end = std::min(split_begin + plan_.split_keys, sequence_.seqlen_k);
    for (int64_t r = 0; r < rows; ++r) {
      Unit* row = q() + r * units;
      if (r >= num_rows_) {
        memset(row, 0, static_cast<size_t>(units) * sizeof(Unit));
        continue;
      }
      const RowId id = row_id(r);
      const E* from = static_cast<const E*>(args_.q.data) +
                      row_offset(args_.q, batch_idx_, sequence_.row_q + id.q_idx, id.head);
      Isa::copy_row(from, p_.head_dim, row, units);
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

  const E* key_rows() const {
    return static_cast<const E*>(args_.k.data) +
           row_offset(args_.k, batch_idx_, sequence_.row_k + first_key_, kv_head_);
  }
  const E* value_rows() const {
    return static_cast<const E*>(args_.v.data) +
           row_offset(args_.v, batch_idx_, sequence_.row_k + first_key_, kv_head_);
  }

  // Columns of the current tile that each row sees, and each block of kMr rows together.
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

  // Scores of row r -> probabilities in units, ready for the second product.
  void softmax(int64_t r, Span block) {
    float* scores = s(r);
    const Span span = row_span()[r];
    float scale = static_cast<float>(p_.softmax_scale);
    if (has_general_scores(p_) || !(scale > 0)) {
      general_scores<Vec>(p_, args_, row_id(r), first_key_, num_keys_, span, scores);
      scale = 1.0f;
    }
    tile_sum()[r] = softmax_row<Vec>(scores, span, block, scale, maximum()[r]);
    if (has_dropout(p_)) dropout_row(p_, args_, row_id(r), first_key_, span, scores);
    Isa::to_units(scores, block.begin, block.end);
  }

  // K and V of the tile go through packed panels; rows in blocks of kMr, each with the columns that
  // it sees.
  void packed_tile() {
    pack_keys<Isa>(key_rows(), args_.k.stride_seq, num_keys_, p_.head_dim, k(), x_.k_panel);
    pack_values<Isa>(value_rows(), args_.v.stride_seq, num_keys_, p_.head_dim_v, v(), x_.v_panel);
    for (int64_t r = 0; r < num_rows_; r += kSweepRows) {
      const int64_t end = std::min(r + kSweepRows, padded_rows());
      packed_scores(r, end);
      softmax_rows(r, std::min(end, num_rows_));
      packed_output(r, end);
    }
  }

  void packed_scores(int64_t row_begin, int64_t row_end) {
    constexpr int64_t kCols = kNr<Isa>;
    const int64_t steps = ceil_div<int64_t>(p_.head_dim, Isa::kPair);
    for (int64_t col = 0; col < num_keys_; col += kCols) {
      const auto* panel = reinterpret_cast<const Unit*>(k() + col / kCols * x_.k_panel);
      for (int64_t r = row_begin; r < row_end; r += Isa::kMr) {
        const Span block = block_span()[r / Isa::kMr];
        if (block.is_empty() || block.end <= col || block.begin >= col + kCols) continue;
        register_tile<Isa, false>(q() + r * x_.q_stride, x_.q_stride, panel, steps, s(r) + col,
                                  call_.tile.n, nullptr);
      }
    }
  }

  void softmax_rows(int64_t row_begin, int64_t row_end) {
    for (int64_t block_begin = row_begin; block_begin < row_end; block_begin += Isa::kMr) {
      const Span block = block_span()[block_begin / Isa::kMr];
      for (int64_t r = block_begin; r < std::min<int64_t>(block_begin + Isa::kMr, row_end); ++r) {
        old_maximum()[r] = maximum()[r];
        tile_sum()[r] = 0.0f;
        if (!block.is_empty()) softmax(r, block);
      }
    }
    // Whole vectors: row_begin is a multiple of 16, and the arrays have room behind the last row.
    rescale_rows<Vec>(old_maximum() + row_begin, maximum() + row_begin, tile_sum() + row_begin,
                      static_cast<int>(row_end - row_begin), row_scale() + row_begin,
                      sum() + row_begin);
  }

  void packed_output(int64_t row_begin, int64_t row_end) {
    constexpr int64_t kCols = kNr<Isa>;
    for (int64_t c = 0; c < p_.head_dim_v; c += kCols) {
      const auto* panel = reinterpret_cast<const Unit*>(v() + c / kCols * x_.v_panel);
      for (int64_t r = row_begin; r < row_end; r += Isa::kMr) {
        const Span block = block_span()[r / Isa::kMr];
        if (block.is_empty()) continue;
        const int64_t first = block.begin / Isa::kPair;
        const int64_t steps = ceil_div<int64_t>(block.end, Isa::kPair) - first;
        const auto* weights = reinterpret_cast<const Unit*>(s(r)) + first;
        register_tile<Isa, true>(weights, call_.tile.n, panel + first * kCols, steps,
                                 o() + r * x_.o_stride + c, x_.o_stride, row_scale() + r);
      }
    }
  }

  void direct_tile() {
    const Span block = block_span()[0];
    if (block.is_empty()) return;
    const int64_t begin = block.begin / Isa::kPair * Isa::kPair;
    const E* values = value_rows();
    const int64_t k_stride = args_.k.stride_seq, v_stride = args_.v.stride_seq;
    direct_scores<Isa>(q(), x_.q_stride, num_rows_, key_rows() + block.begin * k_stride, k_stride,
                       block.end - block.begin, keys_.end - first_key_ - block.begin, p_.head_dim,
                       values + block.begin * v_stride, v_stride, p_.head_dim_v, s(0) + block.begin,
                       call_.tile.n);
    for (int64_t r = 0; r < num_rows_; ++r) {
      old_maximum()[r] = maximum()[r];
      softmax(r, block);
    }
    rescale_rows<Vec>(old_maximum(), maximum(), tile_sum(), static_cast<int>(num_rows_),
                      row_scale(), sum());
    for_row_blocks(num_rows_, [&](int64_t r, auto n) {
      weigh_values<Isa, decltype(n)::value>(reinterpret_cast<const Unit*>(s(r)), call_.tile.n,
                                            values, v_stride, begin, block.end, p_.head_dim_v,
                                            o() + r * x_.o_stride, x_.o_stride, row_scale() + r);
    });
  }

  // The finished row: joins the sink, divides, rounds once. O, maximum and sum are those of all
  // keys.
  void store_row(int64_t r, const float* o_row, float row_maximum, float row_sum) {
    const RowId id = row_id(r);
    E* out = static_cast<E*>(args_.out.data) +
             row_offset(args_.out, batch_idx_, sequence_.row_q + id.q_idx, id.head);
    double lse = -std::numeric_limits<double>::infinity();
    if (row_sum == 0.0f) {  // no visible key, or every score is -inf: the row is empty
      store_scaled(nullptr, 0.0f, out);
    } else {
      double denominator = row_sum / kProbUnit, rescale = 1.0 / kProbUnit, reference = row_maximum;
      if (p_.has_sinks)
        join_sink(args_.sinks[id.head * args_.sinks_stride], reference, denominator, rescale);
      lse = reference + std::log(denominator);
      if (has_dropout(p_)) rescale *= 65536.0 / dropout_keep_threshold(p_.dropout_p);
      store_scaled(o_row, static_cast<float>(rescale / denominator), out);
    }
    if (args_.lse.data != nullptr) {
      const LseOperand& to = args_.lse;
      static_cast<float*>(to.data)[batch_idx_ * to.stride_batch + id.head * to.stride_head +
                                   (sequence_.row_q + id.q_idx) * to.stride_q] =
          static_cast<float>(lse);
    }
  }

  // The sink is one more term of the denominator, exp(sink - reference), with the larger of both as
  // the new reference.
  static void join_sink(double sink, double& reference, double& denominator, double& rescale) {
    const double top = sink > reference ? sink : reference;
    const double change = reference == top ? 1.0 : std::exp(reference - top);
    denominator = denominator * change + (sink == top ? 1.0 : std::exp(sink - top));
    rescale *= change;
    reference = top;
  }

  // out [head_dim_v] = o_row * factor; zeros where o_row is null.
  void store_scaled(const float* o_row, float factor, E* out) const {
    const auto scale = Vec::set1(factor);
    for (int64_t c = 0; c < p_.head_dim_v; c += Vec::kWidth) {
      // Adding +0 gives an exact zero one sign, whatever order underflowed products were added in.
      const auto x = o_row == nullptr
                         ? Vec::zero()
                         : Vec::add(Vec::mul(Vec::load(o_row + c), scale), Vec::zero());
      const int64_t left = p_.head_dim_v - c;
      if (left >= Vec::kWidth) {
        Vec::store(out + c, x);
      } else {
        Vec::store_partial(out + c, x, static_cast<int>(left));
      }
    }
  }

  // [splits][rows][row_floats] of this (batch, KV head).
  float* partial_row(int64_t split, int64_t r) const {
    const int64_t head_idx = batch_idx_ * p_.num_kv_heads + kv_head_;
    return call_.partial + head_idx * call_.partials.floats_per_head() +
           (split * call_.partials.rows + r) * call_.partials.row_floats;
  }

  // Whoever finishes last merges, in the order of the keys: the result does not depend on who that
  // is.
  void store_partial() {
    for (int64_t r = 0; r < num_rows_; ++r) {
      float* to = partial_row(split_idx_, r);
      memcpy(to, o() + r * x_.o_stride, static_cast<size_t>(x_.o_stride) * sizeof(float));
      to[x_.o_stride] = maximum()[r];
      to[x_.o_stride + 1] = sum()[r];
    }
    std::atomic_ref<uint32_t> finished(call_.num_finished[batch_idx_ * p_.num_kv_heads + kv_head_]);
    if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 <
        static_cast<uint32_t>(plan_.num_splits))
      return;
    for (int64_t r = 0; r < num_rows_; ++r) merge_row(r);
  }

  void merge_row(int64_t r) {
    float top = -kInfinity;
    for (int64_t split = 0; split < plan_.num_splits; ++split)
      top = std::max(top, partial_row(split, r)[x_.o_stride]);
    memset(o(), 0, static_cast<size_t>(x_.o_stride) * sizeof(float));
    float total = 0.0f;
    for (int64_t split = 0; split < plan_.num_splits; ++split) {
      const float* from = partial_row(split, r);
      const float split_maximum = from[x_.o_stride];
      const float weight = split_maximum == top ? 1.0f : std::exp(split_maximum - top);
      total += from[x_.o_stride + 1] * weight;
      const auto factor = Vec::set1(weight);
      for (int64_t c = 0; c < x_.o_stride; c += Vec::kWidth)
        Vec::store(o() + c, Vec::fma(Vec::load(from + c), factor, Vec::load(o() + c)));
    }
    store_row(r, o(), top, total);
  }

  const Call& call_;
  const Problem& p_;
  const AttentionArgs& args_;
  const Scratch& x_;
  float* scratch_;
  int64_t batch_idx_, kv_head_, split_idx_, group_;
  Sequence sequence_;
  SequencePlan plan_;
  int64_t first_row_, num_rows_;
  KeyRange keys_{0, 0};    // union of what the rows see, inside the split
  int64_t first_key_ = 0;  // of the current tile
  int num_keys_ = 0;       // of the current tile that exist in the sequence
};

template <class Isa, class E>
void run_task(void* call, int64_t index, int worker) {
  Task<Isa, E>(*static_cast<const Call*>(call), index, worker).run();
}

}  // namespace headrace::cpu::flash
