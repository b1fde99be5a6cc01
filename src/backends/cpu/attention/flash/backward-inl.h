// The flash backward: tiled gradients, with P recomputed from the scores and the lse. Compiled for
// every instruction set (Isa) and element type (E). Sources: Dao et al.,
// FlashAttention (2022), appendix B; Dao, FlashAttention-2 (2023), algorithm 2.
//
//   P = exp(S - lse)    dV = (P * Z)^T dO    dP = (dO V^T) * Z    dS = P * (dP - D + dlse)
//   dK = scale dS^T Q   dQ = scale dS K      D = rowsum(dO * O)   Z: dropout
#pragma once

#include <string.h>

#include <algorithm>
#include <cmath>

#include "backends/cpu/attention/flash/backward.h"
#include "backends/cpu/attention/flash/gemm-inl.h"
#include "backends/cpu/attention/flash/softmax-inl.h"

namespace headrace::cpu::flash {

// One task: see BackwardCall.
template <class Isa, class E>
class BackwardTask {
 public:
  using CallType = BackwardCall;
  using Vec = typename Isa::Vec;
  using Unit = typename Isa::Unit;
  static constexpr int64_t kRows = kBackwardRows, kKeys = kBackwardKeys, kPair = Isa::kPair;
  static_assert(kRows % Isa::kMr == 0 && kKeys % Isa::kMr == 0 && kKeys % kNr<Isa> == 0);
  static_assert(Isa::kMr % kPair == 0 && (kPair == 1 || kPair == 2));

  BackwardTask(const BackwardCall& call, int64_t index, int worker)
      : call_(call),
        p_(*call.problem),
        args_(*call.args),
        x_(call.layout.scratch),
        scratch_(call.worker_scratch + worker * call.layout.scratch.total),
        index_(index) {}

  void run() {
    const int64_t dbias_task = index_ - call_.num_qkv_tasks;
    const int64_t sink_task = dbias_task - call_.dbias_tiles.count();
    if (sink_task >= 0) return run_dsinks(sink_task);
    if (dbias_task >= 0) return run_dbias(dbias_task);
    run_qkv();
  }

 private:
  struct Range {
    int64_t begin, end;
  };
  struct RowInfo {
    KeyRange keys;     // visible keys; empty if the row is empty
    float lse, shift;  // shift = D - dlse
  };

  // Scratch of this worker. A reduction over rows or keys advances kPair of them per step.
  Unit* units(int64_t offset) { return reinterpret_cast<Unit*>(scratch_ + offset); }
  Unit* q() { return units(x_.q); }        // [kRows][k_stride], pairs of columns
  Unit* dout() { return units(x_.dout); }  // [kRows][v_stride]
  Unit* q_steps() { return units(kPair == 1 ? x_.q : x_.q_steps); }  // [kRows / kPair][k_stride]
  Unit* dout_steps() { return units(kPair == 1 ? x_.dout : x_.dout_steps); }
  float* k_panels() { return scratch_ + x_.k_panels; }
  float* v_panels() { return scratch_ + x_.v_panels; }
  Unit* k_steps() { return units(x_.k); }                             // [kKeys / kPair][k_stride]
  Unit* ds_rows() { return units(kPair == 1 ? x_.dp : x_.ds_rows); }  // [kRows][kKeys / kPair]
  float* dk() { return scratch_ + x_.dk; }                            // [kKeys][k_stride]
  float* dv() { return scratch_ + x_.dv; }                            // [kKeys][v_stride]
  // s: scores, then P * Z. dp: dP, then dS. For dV and dK, rows r and r + 1 of a pair are merged
  // into one row of units at row r.
  float* s(int64_t r) { return scratch_ + x_.s + r * kKeys; }
  float* dp(int64_t r) { return scratch_ + x_.dp + r * kKeys; }
  float* keep() { return scratch_ + x_.keep; }                             // [kKeys] Z of a row
  float* slope() { return scratch_ + x_.slope; }                           // [kKeys] of the softcap
  float* dq(int64_t row) { return scratch_ + x_.dq + row * x_.k_stride; }  // dQ of the task's rows
  float* dbias() { return scratch_ + x_.dbias; }                           // [kRows][kKeys]

  // Rows are (query, head) pairs, as in the forward: `num_heads` heads from `first_head`, which
  // share a KV head.
  void start_sequence(int64_t batch_idx, int64_t first_head, int64_t num_heads) {
    batch_idx_ = batch_idx;
    first_head_ = first_head;
    num_heads_ = num_heads;
    kv_head_ = first_head / group_size(p_);
    sequence_ = sequence_of(p_, args_, batch_idx);
  }
  int64_t num_sequence_rows() const { return sequence_.seqlen_q * num_heads_; }
  RowId row_id(int64_t row) const {
    return {batch_idx_, first_head_ + row % num_heads_, row / num_heads_, sequence_};
  }

  // ---- dq, dk, dv

  void run_qkv() {
    const int64_t units = backward_units(call_.layout);
    const int64_t head = index_ / units, unit = index_ % units;
    const int64_t group = group_size(p_);
    start_sequence(head / p_.num_kv_heads, head % p_.num_kv_heads * group, group);
    const Range rows{0, num_sequence_rows()}, keys{0, sequence_.seqlen_k};
    if (call_.layout.path == BackwardPath::fused) return sweep<true, true>(rows, keys);
    if (unit < call_.layout.key_tiles) return sweep<true, false>(rows, part(keys, unit, kKeys));
    sweep<false, true>(part(rows, unit - call_.layout.key_tiles, kBackwardTaskRows), keys);
  }

  static Range part(Range all, int64_t idx, int64_t size) {
    return {std::min(all.end, idx * size), std::min(all.end, (idx + 1) * size)};
  }

  // Processes every tile of these rows and keys.
  template <bool kWithDkv, bool kWithDq>
  void sweep(Range rows, Range keys) {
    if constexpr (kWithDq)
      memset(dq(0), 0, bytes(round_up(rows.end - rows.begin, kRows) * x_.k_stride));
    for (int64_t key = keys.begin; key < keys.end; key += kKeys) {
      load_keys(key);
      if constexpr (kWithDq) load_key_steps();
      if constexpr (kWithDkv) {
        memset(dk(), 0, bytes(kKeys * x_.k_stride));
        memset(dv(), 0, bytes(kKeys * x_.v_stride));
      }
      for (int64_t row = rows.begin; row < rows.end; row += kRows) {
        if (!make_scores_gradient(row)) continue;
        if constexpr (kPair == 2) make_pairs<kWithDkv, kWithDq>();
        if constexpr (kWithDkv) add_dkv();
        if constexpr (kWithDq) add_dq(dq(row - rows.begin));
      }
      if constexpr (kWithDkv) store_dkv();
    }
    if constexpr (kWithDq) store_dq(rows);
  }

  static size_t bytes(int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); }

  void load_keys(int64_t first_key) {
    first_key_ = first_key;
    num_keys_ = static_cast<int>(std::min(kKeys, sequence_.seqlen_k - first_key));
    pack_keys<Isa>(StridedRows<E>{first_row_of(args_.k), args_.k.stride_seq}, num_keys_,
                   p_.head_dim, k_panels(), x_.k_panel);
    pack_keys<Isa>(StridedRows<E>{first_row_of(args_.v), args_.v.stride_seq}, num_keys_,
                   p_.head_dim_v, v_panels(), x_.v_panel);
  }
  const E* first_row_of(const Operand& x) const {
    return static_cast<const E*>(x.data) +
           row_offset(x, batch_idx_, sequence_.row_k + first_key_, kv_head_);
  }

  // Loads K for dQ, with zeros for unseen keys: their dS is 0, but K may be NaN.
  void load_key_steps() {
    const int64_t len_q = sequence_.seqlen_q, len_k = sequence_.seqlen_k;
    const int64_t stride = args_.k.stride_seq;
    const E* keys = first_row_of(args_.k);
    const int64_t begin = visible_keys(p_, 0, len_q, len_k).begin - first_key_;
    const int64_t end = visible_keys(p_, len_q - 1, len_q, len_k).end - first_key_;
    for (int64_t j = 0; j < num_keys_; j += kPair)
      Isa::copy_step(keys + j * stride, stride, begin - j, end - j, p_.head_dim,
                     k_steps() + j / kPair * x_.k_stride, x_.k_stride);
  }

  // ---- one tile: P * Z and dS of kRows rows and the loaded keys

  // False if no row sees a key.
  bool make_scores_gradient(int64_t first_row) {
    first_row_ = first_row;
    num_rows_ = std::min(kRows, num_sequence_rows() - first_row);
    if (!find_rows()) return false;
    load_rows();
    multiply_panels(q(), x_.k_stride, k_panels(), x_.k_panel, p_.head_dim, s(0));
    multiply_panels(dout(), x_.v_stride, v_panels(), x_.v_panel, p_.head_dim_v, dp(0));
    for (int64_t r = begin_row_; r < end_row_; ++r) {
      if (span_of(r).is_empty()) {
        memset(s(r), 0, bytes(kKeys));
        memset(dp(r), 0, bytes(kKeys));
      } else {
        finish_row(r);
      }
    }
    return true;
  }

  // The visible columns of each row; [begin_row_, end_row_) are whole register tiles that cover all
  // rows with visible keys.
  bool find_rows() {
    begin_row_ = kRows;
    end_row_ = 0;
    for (int64_t r = 0; r < num_rows_; ++r) {
      const RowId id = row_id(first_row_ + r);
      RowInfo& row = rows_[r];
      row.lse = lse_of(args_.lse, id);
      row.keys = visible_keys(p_, id.q_idx, sequence_.seqlen_q, sequence_.seqlen_k);
      if (row.lse == -kInfinity) row.keys.end = row.keys.begin;
      if (span_of(r).is_empty()) continue;
      begin_row_ = std::min(begin_row_, r);
      end_row_ = r + 1;
    }
    if (begin_row_ >= end_row_) return false;
    begin_row_ = begin_row_ / Isa::kMr * Isa::kMr;
    end_row_ = round_up<int64_t>(end_row_, Isa::kMr);
    return true;
  }

  Span span_of(int64_t r) const {
    if (r >= num_rows_) return {0, 0};
    const KeyRange& keys = rows_[r].keys;
    const int64_t begin = std::clamp<int64_t>(keys.begin - first_key_, 0, num_keys_);
    return {static_cast<int>(begin),
            static_cast<int>(std::clamp<int64_t>(keys.end - first_key_, begin, num_keys_))};
  }
  // Union of the spans of a register tile's rows.
  Span block_span(int64_t r) const {
    Span block{num_keys_, 0};
    for (int64_t i = r; i < r + Isa::kMr; ++i) {
      const Span span = span_of(i);
      if (span.is_empty()) continue;
      block.begin = std::min(block.begin, span.begin);
      block.end = std::max(block.end, span.end);
    }
    return block;
  }

  float lse_of(const LseOperand& x, const RowId& id) const {
    return static_cast<const float*>(
        x.data)[id.batch_idx * x.stride_batch + id.head * x.stride_head +
                (sequence_.row_q + id.q_idx) * x.stride_q];
  }
  const E* row_of(const Operand& x, const RowId& id) const {
    return static_cast<const E*>(x.data) +
           row_offset(x, id.batch_idx, sequence_.row_q + id.q_idx, id.head);
  }

  // D - dlse.
  float shift_of(const RowId& id) const {
    const E *out = row_of(args_.out, id), *dout_row = row_of(args_.gradients.dout, id);
    auto sum = Vec::zero();
    for (int64_t c = 0; c < p_.head_dim_v; c += Vec::kWidth)
      sum = Vec::fma(load_columns<Vec>(dout_row + c, p_.head_dim_v - c),
                     load_columns<Vec>(out + c, p_.head_dim_v - c), sum);
    const float d = Vec::sum(sum);
    return p_.has_dlse ? d - lse_of(args_.gradients.dlse, id) : d;
  }

  // Loads Q, dO and shift of the rows; zeros for missing rows.
  void load_rows() {
    for (int64_t r = begin_row_; r < end_row_; ++r) {
      Unit* q_row = q() + r * x_.k_stride;
      Unit* dout_row = dout() + r * x_.v_stride;
      if (span_of(r).is_empty()) {
        memset(q_row, 0, bytes(x_.k_stride));
        memset(dout_row, 0, bytes(x_.v_stride));
        continue;
      }
      const RowId id = row_id(first_row_ + r);
      Isa::copy_row(row_of(args_.q, id), p_.head_dim, q_row, x_.k_stride / kPair);
      Isa::copy_row(row_of(args_.gradients.dout, id), p_.head_dim_v, dout_row, x_.v_stride / kPair);
      rows_[r].shift = shift_of(id);
    }
  }

  // to [kRows][kKeys] = rows times the panels' keys.
  void multiply_panels(const Unit* rows, int64_t stride, const float* panels, int64_t panel_floats,
                       int64_t dim, float* to) {
    for (int64_t col = 0; col < num_keys_; col += kNr<Isa>) {
      const auto* panel = reinterpret_cast<const Unit*>(panels + col / kNr<Isa> * panel_floats);
      for (int64_t r = begin_row_; r < end_row_; r += Isa::kMr) {
        const Span block = block_span(r);
        if (block.is_empty() || block.end <= col || block.begin >= col + kNr<Isa>) continue;
        register_tile<Isa, false>(rows + r * stride, stride, panel, kNr<Isa>,
                                  (dim + kPair - 1) / kPair, to + r * kKeys + col, kKeys, nullptr);
      }
    }
  }

  // Turns scores and dP of a row with visible keys into P * Z and dS, zero for invisible keys.
  void finish_row(int64_t r) {
    constexpr int kW = Vec::kWidth;
    const Span span = span_of(r);
    const int begin = span.begin / kW * kW, end = (span.end + kW - 1) / kW * kW;
    const RowId id = row_id(first_row_ + r);
    float* scores = s(r);
    float* ds = dp(r);
    float scale = static_cast<float>(p_.softmax_scale);
    if (has_softcap(p_)) find_slopes(scores, begin, end);
    if (has_general_scores(p_) || !(scale > 0)) {
      general_scores<Vec>(p_, args_, id, first_key_, num_keys_, span, scores);
      scale = 1.0f;
    }
    if (has_dropout(p_)) {
      fill(keep(), begin, end, static_cast<float>(65536.0 / dropout_keep_threshold(p_.dropout_p)));
      dropout_row(p_, args_, id, first_key_, span, keep());
    }
    fill(scores, begin, span.begin, -kInfinity);
    fill(scores, span.end, end, -kInfinity);
    softmax_of_lse<Vec>(scores, begin, end, scale, rows_[r].lse);
    scores_gradient(scores, ds, begin, end, rows_[r].shift);
    fill(scores, 0, begin, 0.0f);
    fill(scores, end, kKeys, 0.0f);
    fill(ds, 0, span.begin, 0.0f);
    fill(ds, span.end, kKeys, 0.0f);
  }

  // 1 - tanh^2 of the scores before the softcap, as 4 e / (1 + e)^2 with e = exp(-2 |x|): where
  // tanh saturates, the difference would cancel.
  void find_slopes(const float* scores, int begin, int end) {
    const auto scale = Vec::set1(static_cast<float>(p_.softmax_scale));
    const auto minus_two_by_cap = Vec::set1(static_cast<float>(-2.0 / p_.softcap));
    for (int j = begin; j < end; j += Vec::kWidth) {
      const auto score = Vec::abs(Vec::mul(Vec::load(scores + j), scale));
      const auto e = exp<Vec>(Vec::mul(score, minus_two_by_cap));
      const auto both = Vec::add(e, Vec::set1(1.0f));
      Vec::store(slope() + j, Vec::div(Vec::mul(Vec::set1(4.0f), e), Vec::mul(both, both)));
    }
  }

  // The bias is added after the softcap, so its gradient excludes the slope: see with_slope_.
  void scores_gradient(float* probs, float* ds, int begin, int end, float shift) {
    const auto minus_shift = Vec::set1(-shift);
    for (int j = begin; j < end; j += Vec::kWidth) {
      const auto prob = Vec::load(probs + j);
      auto gradient = Vec::load(ds + j);
      if (has_dropout(p_)) {
        const auto kept = Vec::load(keep() + j);
        gradient = Vec::mul(gradient, kept);
        Vec::store(probs + j, Vec::mul(prob, kept));
      }
      gradient = Vec::mul(prob, Vec::add(gradient, minus_shift));
      if (has_softcap(p_) && with_slope_) gradient = Vec::mul(gradient, Vec::load(slope() + j));
      Vec::store(ds + j, gradient);
    }
  }

  // ---- the sums

  // Packs the operands of the sums into pairs: dS of neighbouring keys; P * Z, dS, Q and dO of
  // neighbouring rows.
  template <bool kWithDkv, bool kWithDq>
  void make_pairs() {
    for (int64_t r = begin_row_; r < end_row_; r += 2) {
      if constexpr (kWithDq) {
        Isa::round_row(dp(r), ds_rows() + r * (kKeys / 2), kKeys);
        Isa::round_row(dp(r + 1), ds_rows() + (r + 1) * (kKeys / 2), kKeys);
      }
      if constexpr (kWithDkv) {
        Isa::round_step(s(r), s(r + 1), s(r), kKeys);
        Isa::round_step(dp(r), dp(r + 1), dp(r), kKeys);
        pair_rows(q() + r * x_.k_stride, x_.k_stride, p_.head_dim, q_steps() + r / 2 * x_.k_stride);
        pair_rows(dout() + r * x_.v_stride, x_.v_stride, p_.head_dim_v,
                  dout_steps() + r / 2 * x_.v_stride);
      }
    }
  }
  static void pair_rows(const Unit* rows, int64_t stride, int64_t dim, Unit* step) {
    Isa::copy_step(reinterpret_cast<const E*>(rows), 2 * stride, 0, 2, dim, step, stride);
  }

  // dV += (P * Z)^T dO and dK += dS^T Q, unscaled.
  void add_dkv() {
    add_transposed(s(begin_row_), dout_steps(), x_.v_stride, p_.head_dim_v, dv());
    add_transposed(dp(begin_row_), q_steps(), x_.k_stride, p_.head_dim, dk());
  }
  void add_transposed(const float* weights, const Unit* steps, int64_t stride, int64_t dim,
                      float* to) {
    const Unit* a = reinterpret_cast<const Unit*>(weights);
    steps += begin_row_ / kPair * stride;
    for (int64_t c = 0; c < dim; c += kNr<Isa>) {
      for (int64_t key = 0; key < num_keys_; key += Isa::kMr)
        register_tile<Isa, true, true>(a + key, kPair * kKeys, steps + c, stride,
                                       (end_row_ - begin_row_) / kPair, to + key * stride + c,
                                       stride, kOnes);
    }
  }

  // dQ += dS K, unscaled; `to` is the first row of the tile.
  void add_dq(float* to) {
    for (int64_t c = 0; c < p_.head_dim; c += kNr<Isa>) {
      for (int64_t r = begin_row_; r < end_row_; r += Isa::kMr) {
        const Span block = block_span(r);
        if (block.is_empty()) continue;
        const int64_t begin = block.begin / kPair, end = (block.end + kPair - 1) / kPair;
        register_tile<Isa, true>(ds_rows() + r * (kKeys / kPair) + begin, kKeys / kPair,
                                 k_steps() + begin * x_.k_stride + c, x_.k_stride, end - begin,
                                 to + r * x_.k_stride + c, x_.k_stride, kOnes);
      }
    }
  }

  void store_dkv() {
    const auto scale = static_cast<float>(p_.softmax_scale);
    const Operand &to_k = args_.gradients.dk, &to_v = args_.gradients.dv;
    for (int64_t j = 0; j < num_keys_; ++j) {
      const int64_t row = sequence_.row_k + first_key_ + j;
      store_row<Vec>(dk() + j * x_.k_stride, p_.head_dim, scale,
                     static_cast<E*>(to_k.data) + row_offset(to_k, batch_idx_, row, kv_head_));
      store_row<Vec>(dv() + j * x_.v_stride, p_.head_dim_v, 1.0f,
                     static_cast<E*>(to_v.data) + row_offset(to_v, batch_idx_, row, kv_head_));
    }
  }

  void store_dq(Range rows) {
    const auto scale = static_cast<float>(p_.softmax_scale);
    const Operand& to = args_.gradients.dq;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const RowId id = row_id(row);
      store_row<Vec>(dq(row - rows.begin), p_.head_dim, scale,
                     static_cast<E*>(to.data) +
                         row_offset(to, batch_idx_, sequence_.row_q + id.q_idx, id.head));
    }
  }

  // ---- one tile of dbias, summed over the batch entries, heads, queries and keys that broadcast
  // it

  void run_dbias(int64_t task) {
    const DbiasTiles& tiles = call_.dbias_tiles;
    const ScoreOperand& to = args_.gradients.dbias;
    const int64_t key_tile = task % tiles.keys, row_tile = task / tiles.keys % tiles.rows;
    const int64_t head = task / tiles.keys / tiles.rows % tiles.heads;
    const int64_t batch_idx = task / tiles.keys / tiles.rows / tiles.heads;
    with_slope_ = false;
    memset(dbias(), 0, bytes(kRows * kKeys));
    const bool has_batches = p_.is_ragged ? to.stride_q != 0 : to.stride_batch != 0;
    const Range batches = has_batches ? Range{batch_idx, batch_idx + 1} : Range{0, p_.batch};
    const Range heads = to.stride_head != 0 ? Range{head, head + 1} : Range{0, p_.num_heads};
    for (int64_t b = batches.begin; b < batches.end; ++b) {
      for (int64_t h = heads.begin; h < heads.end; ++h) {
        start_sequence(b, h, 1);
        const Range rows{0, sequence_.seqlen_q}, keys{0, sequence_.seqlen_k};
        add_dbias(to.stride_q != 0 ? part(rows, row_tile, kRows) : rows,
                  to.stride_k != 0 ? part(keys, key_tile, kKeys) : keys);
      }
    }
    store_dbias(batch_idx, head, row_tile * kRows, key_tile * kKeys);
  }

  void add_dbias(Range rows, Range keys) {
    const ScoreOperand& to = args_.gradients.dbias;
    for (int64_t key = keys.begin; key < keys.end; key += kKeys) {
      load_keys(key);
      for (int64_t row = rows.begin; row < rows.end; row += kRows) {
        if (!make_scores_gradient(row)) continue;
        for (int64_t r = begin_row_; r < std::min(end_row_, num_rows_); ++r) {
          float* sums = dbias() + (to.stride_q != 0 ? r * kKeys : 0);
          for (int64_t j = 0; j < num_keys_; ++j) sums[to.stride_k != 0 ? j : 0] += dp(r)[j];
        }
      }
    }
  }

  void store_dbias(int64_t batch_idx, int64_t head, int64_t first_row, int64_t first_key) {
    const ScoreOperand& to = args_.gradients.dbias;
    int64_t num_rows = 1, packed_row = 0;
    if (to.stride_q != 0) {
      const Sequence sequence = sequence_of(p_, args_, batch_idx);
      num_rows = std::min(kRows, sequence.seqlen_q - first_row);
      packed_row = sequence.row_q + first_row;
    }
    const int64_t num_keys = to.stride_k != 0 ? std::min(kKeys, p_.seqlen_k - first_key) : 1;
    const int64_t first = batch_idx * to.stride_batch + head * to.stride_head +
                          packed_row * to.stride_q + first_key * to.stride_k;
    void* data = const_cast<void*>(to.data);
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t j = 0; j < num_keys; ++j)
        store_from_double(to.dtype, data, first + r * to.stride_q + j * to.stride_k,
                          static_cast<double>(dbias()[r * kKeys + j]) + 0.0);
    }
  }

  // ---- dsinks: a sink is an additional column of S with V = 0

  void run_dsinks(int64_t head) {
    const double sink = args_.sinks[head * args_.sinks_stride];
    double sum = 0;
    for (int64_t b = 0; b < p_.batch && std::isfinite(sink); ++b) {
      start_sequence(b, head, 1);
      for (int64_t i = 0; i < sequence_.seqlen_q; ++i) {
        const RowId id = row_id(i);
        const double lse = lse_of(args_.lse, id);
        if (lse == -kInfinity) continue;
        sum -= std::exp(sink - lse) * static_cast<double>(shift_of(id));
      }
    }
    args_.gradients.dsinks[head * args_.gradients.dsinks_stride] = static_cast<float>(sum + 0.0);
  }

  static_assert(Isa::kMr <= 16);
  static constexpr float kOnes[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

  const BackwardCall& call_;
  const Problem& p_;
  const AttentionArgs& args_;
  const BackwardScratch& x_;
  float* scratch_;
  int64_t index_;
  bool with_slope_ = true;
  int64_t batch_idx_ = 0, first_head_ = 0, num_heads_ = 1, kv_head_ = 0;
  Sequence sequence_;
  int64_t first_key_ = 0, first_row_ = 0, num_rows_ = 0;
  int num_keys_ = 0;
  int64_t begin_row_ = 0, end_row_ = 0;
  RowInfo rows_[kRows];
};

}  // namespace headrace::cpu::flash
