// A row of scores (batch entry, head, query), computed by one warp whose lanes share the head dim.
// Base class of the forward and backward rows.
#pragma once

#include "backends/cuda/common/key_row.cuh"
#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/simple/params.h"
#include "core/philox.h"

namespace headrace::cuda::simple {

struct RowPlace {
  std::int64_t batch_idx, head, q_idx;
};
// Row `idx` of [batch, num_heads, seqlen_q]; ragged: seqlen_q of the longest sequence.
__device__ inline RowPlace place_of(const Problem& p, std::int64_t idx) {
  return {idx / p.seqlen_q / p.num_heads, idx / p.seqlen_q % p.num_heads, idx % p.seqlen_q};
}
// One thread per sequence reports lengths and pages that break a rule.
__device__ inline Sequence sequence_at(const Params& c, const RowPlace& place, int lane) {
  const Problem& p = c.problem;
  const bool reports = place.q_idx == 0 && place.head == 0 && lane == 0;
  const Sequence sequence =
      sequence_with_used_keys(sizes_of(p), c.lengths, c.used_keys, place.batch_idx, reports);
  if (reports && has_pages(p)) {
    for (std::int64_t key = 0; key < sequence.seqlen_k; key += p.page_size)
      if (!has_page(p, c.args.paged, sequence, place.batch_idx, key))
        report_length_error(c.lengths.error_word, LengthError::block_table, place.batch_idx);
  }
  if (reports && has_recent(p) && sequence.seqlen_q > 0) {
    std::int64_t key = first_recent_group(p, sequence) * p.recent_group;
    for (; key < sequence.seqlen_k; key += p.recent_group)
      if (!has_recent_page(p, c.args.recent, sequence, place.batch_idx, key))
        report_length_error(c.lengths.error_word, LengthError::block_table, place.batch_idx);
  }
  return sequence;
}

template <class T, int kPerLane, class Real>
__device__ void store_columns(const Operand& x, std::int64_t batch_idx, std::int64_t row,
                              std::int64_t head, std::int64_t dim, int lane,
                              const Real (&from)[kPerLane]) {
  const std::int64_t to = row_offset(x, batch_idx, row, head);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (32 * i + lane < dim) store_real(static_cast<T*>(x.data), to + 32 * i + lane, from[i]);
}

// kPerLane: head_dim and head_dim_v are at most 32 * kPerLane; lane l holds columns l, l + 32, ...
template <class T, int kPerLane>
class ScoreRow {
 public:
  using Real = typename ComputeType<T>::type;

  __device__ ScoreRow(const Problem& p, const AttentionArgs& args, const Sequence& sequence,
                      const RowPlace& place, int lane)
      : p_(p), args_(args), sequence_(sequence), place_(place), lane_(lane) {
    kv_head_ = place.head / group_size(p_);
    keys_ = visible_keys(p_, place.q_idx, sequence_.seqlen_q, sequence_.seqlen_k);
    diagonal_ = place.q_idx + diagonal_shift(p_, sequence_.seqlen_q, sequence_.seqlen_k);
  }

 protected:
  __device__ int column(int i) const { return 32 * i + lane_; }
  __device__ std::int64_t row_q() const { return sequence_.row_q + place_.q_idx; }

  // Columns beyond `dim` are 0.
  __device__ void load_columns(const Operand& x, std::int64_t row, std::int64_t head,
                               std::int64_t dim, Real (&to)[kPerLane]) const {
    const std::int64_t from = row_offset(x, place_.batch_idx, row, head);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      to[i] =
          column(i) < dim ? load_real(static_cast<const T*>(x.data), from + column(i)) : Real(0);
  }
  // Offset of key j in k or v (dk or dv).
  __device__ std::int64_t key_place(const Operand& x, std::int64_t j) const {
    return key_offset(p_, args_.paged, x, sequence_, place_.batch_idx, j, kv_head_);
  }
  // Dot product of registers and a key's row in memory, the same value in every lane.
  __device__ Real dot(const Real (&mine)[kPerLane], const Operand& x, std::int64_t j,
                      std::int64_t dim) const {
    const std::int64_t from = key_place(x, j);
    Real sum = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (column(i) < dim)
        sum += mine[i] * load_real(static_cast<const T*>(x.data), from + column(i));
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
  }

  // With codes: K or V of a key in the form that the query sees.
  __device__ KeyRow row_of_key(std::int64_t j, bool is_of_k) const {
    return headrace::key_row(p_, args_, sequence_, place_.batch_idx, kv_head_, diagonal_, j,
                             is_of_k);
  }
  __device__ Real code_product(std::int64_t j) const {
    const KeyRow key = row_of_key(j, true);
    Real sum = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (column(i) < p_.head_dim) sum += q_[i] * load_element<T>(key, column(i));
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
  }

  __device__ void load_query() { load_columns(args_.q, row_q(), place_.head, p_.head_dim, q_); }
  // scale * q.k of key j.
  __device__ Real scaled_product(std::int64_t j) const {
    const Real product = has_codes(p_) ? code_product(j) : dot(q_, args_.k, j, p_.head_dim);
    return product * Real(p_.softmax_scale);
  }
  // Softcap, ALiBi, bias.
  __device__ Real score(std::int64_t j, Real s) const {
    if (has_softcap(p_)) s = Real(p_.softcap) * tanh(s / Real(p_.softcap));
    if (p_.has_alibi) {
      const Real slope = args_.alibi_slopes[place_.batch_idx * args_.alibi_stride_batch +
                                            place_.head * args_.alibi_stride_head];
      s -= slope * Real(diagonal_ > j ? diagonal_ - j : j - diagonal_);
    }
    if (args_.bias.data != nullptr) s += load_bias(score_offset(args_.bias, j));
    return s;
  }
  __device__ Real score(std::int64_t j) const { return score(j, scaled_product(j)); }

  // Bool mask and tree mask; keys_ already has the causal mask and the window. Keys of a page that
  // does not exist are hidden.
  __device__ bool sees(std::int64_t j) const {
    if (!has_page_of_row(p_, args_, sequence_, place_.batch_idx, diagonal_, j)) return false;
    if (args_.mask.data != nullptr &&
        static_cast<const std::uint8_t*>(args_.mask.data)[score_offset(args_.mask, j)] == 0)
      return false;
    if (!p_.has_tree_mask) return true;
    const std::uint32_t* words = args_.tree_mask + place_.batch_idx * args_.tree_stride_batch +
                                 row_q() * args_.tree_stride_q;
    const std::int64_t bit = j - (sequence_.seqlen_k - sequence_.seqlen_q);
    return bit < 0 || (words[bit / 32] >> (bit % 32) & 1u) != 0;
  }

  // Dropout scale of a weight.
  __device__ Real kept(std::int64_t j) const {
    if (!has_dropout(p_)) return 1;
    const DropoutRow random{
        .seed = args_.dropout_seed,
        .offset = args_.dropout_offset,
        .batch_head = static_cast<std::uint32_t>(place_.batch_idx * p_.num_heads + place_.head),
        .query = static_cast<std::uint32_t>(place_.q_idx)};
    const std::uint32_t threshold = dropout_keep_threshold(p_.dropout_p);
    return random.bits16(j) < threshold ? Real(65536) / Real(threshold) : Real(0);
  }

  __device__ Real load_bias(std::int64_t offset) const {
    if (args_.bias.dtype == DType::f32)
      return load_real(static_cast<const float*>(args_.bias.data), offset);
    return load_real(static_cast<const T*>(args_.bias.data), offset);
  }
  // Ragged: bias and mask are indexed by packed rows.
  __device__ std::int64_t score_offset(const ScoreOperand& x, std::int64_t j) const {
    return place_.batch_idx * x.stride_batch + place_.head * x.stride_head + row_q() * x.stride_q +
           j * x.stride_k;
  }
  // Offset of the row in lse and dlse.
  __device__ std::int64_t lse_offset(const LseOperand& x) const {
    return place_.batch_idx * x.stride_batch + place_.head * x.stride_head + row_q() * x.stride_q;
  }

  // Terms per partial sum: a plain sum of 10^4 terms has too many rounding errors.
  static constexpr std::int64_t kTileTerms = 64;
  static constexpr Real kInfinity = static_cast<Real>(HUGE_VAL);

  const Problem& p_;
  const AttentionArgs& args_;
  const Sequence sequence_;
  const RowPlace place_;
  const int lane_;
  std::int64_t kv_head_, diagonal_;
  KeyRange keys_;
  Real q_[kPerLane];
};

}  // namespace headrace::cuda::simple
