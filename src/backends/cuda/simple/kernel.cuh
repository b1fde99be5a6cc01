// Attention forward for any GPU and every feature, written to be read. A warp computes a row (batch
// entry, head, query); its lanes share the head dimension. It goes over the keys twice: first the
// largest score and the sum of exponentials, then the weights and the sum of V. The second pass
// weighs with numbers of at most 1, so nothing overflows that the result would not. Invisible keys
// are never multiplied: whatever lies in their K and V reaches nobody.
#pragma once

#include "backends/cuda/common/element.cuh"
#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/simple/simple.h"
#include "core/philox.h"

namespace headrace::cuda::simple {

// kPerLane: head_dim and head_dim_v are at most 32 * kPerLane; lane l holds columns l, l + 32, ...
template <class T, int kPerLane>
class Row {
 public:
  using Real = typename Compute<T>::type;

  __device__ Row(const Params& c, std::int64_t row_idx, int lane)
      : p_(c.problem), args_(c.args), lane_(lane) {
    q_idx_ = row_idx % p_.seqlen_q;
    head_ = row_idx / p_.seqlen_q % p_.num_heads;
    batch_idx_ = row_idx / p_.seqlen_q / p_.num_heads;
    kv_head_ = head_ / group_size(p_);
    const bool reports = q_idx_ == 0 && head_ == 0 && lane == 0;
    sequence_ = device_sequence(p_, args_.ragged, batch_idx_, reports, c.error_word);
    keys_ = visible_keys(p_, q_idx_, sequence_.seqlen_q, sequence_.seqlen_k);
    diagonal_ = q_idx_ + diagonal_shift(p_, sequence_.seqlen_q, sequence_.seqlen_k);
  }

  // Ragged: the row may lie beyond the end of its sequence.
  __device__ bool exists() const { return q_idx_ < sequence_.seqlen_q; }

  __device__ void compute() {
    load_query();
    find_denominator();
    if (is_empty_) {
      write_empty();
      return;
    }
    write_lse(reference_ + log(denominator_));
    fill_probs(Real(0) / denominator_);  // 0, or NaN in a row of NaNs
    sum_values();
  }

 private:
  __device__ void load_query() {
    const std::int64_t from = row_offset(args_.q, batch_idx_, sequence_.row_q + q_idx_, head_);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      q_[i] = column(i) < p_.head_dim
                  ? load_real(static_cast<const T*>(args_.q.data), from + column(i))
                  : Real(0);
  }

  // The largest score and the sum of exponentials relative to it, the sink among them.
  __device__ void find_denominator() {
    Real top = -kInfinity, sum = 0;
    for (std::int64_t first = keys_.begin; first < keys_.end; first += kTileKeys) {
      Real tile_sum = 0;
      for (std::int64_t j = first; j < min(first + kTileKeys, keys_.end); ++j) {
        if (!sees(j)) continue;
        const Real s = score(j);
        if (s > top) {
          const Real rescale = exp(top - s);
          sum *= rescale;
          tile_sum *= rescale;
          top = s;
        }
        // A score of +inf gives inf - inf: NaN, like a score that is NaN. -inf weighs nothing.
        if (s != -kInfinity) tile_sum += exp(s - top);
      }
      sum += tile_sum;
    }
    is_empty_ = top == -kInfinity && sum == 0;
    reference_ = top;
    denominator_ = sum;
    if (is_empty_ || !p_.has_sinks) return;
    const Real sink = args_.sinks[head_ * args_.sinks_stride];
    if (sink == -kInfinity) return;
    if (sink > top) {
      reference_ = sink;
      denominator_ = sum * exp(top - sink);
    }
    denominator_ += sink == reference_ ? Real(1) : exp(sink - reference_);
  }

  // out = sum over visible keys of softmax * dropout * V.
  __device__ void sum_values() {
    Real out[kPerLane] = {};
    const DropoutRow random{
        .seed = args_.dropout_seed,
        .offset = args_.dropout_offset,
        .batch_head = static_cast<std::uint32_t>(batch_idx_ * p_.num_heads + head_),
        .query = static_cast<std::uint32_t>(q_idx_)};
    const std::uint32_t threshold = dropout_keep_threshold(p_.dropout_p);
    const Real keep_factor = Real(65536) / Real(threshold);
    for (std::int64_t first = keys_.begin; first < keys_.end; first += kTileKeys) {
      Real tile_out[kPerLane] = {};
      for (std::int64_t j = first; j < min(first + kTileKeys, keys_.end); ++j) {
        if (!sees(j)) continue;
        const Real s = score(j);
        Real weight = s == -kInfinity ? Real(0) : exp(s - reference_);
        weight /= denominator_;
        if (has_dropout(p_)) weight *= random.bits16(j) < threshold ? keep_factor : Real(0);
        if (lane_ == 0) write_prob(j, weight);
        const std::int64_t from = row_offset(args_.v, batch_idx_, sequence_.row_k + j, kv_head_);
#pragma unroll
        for (int i = 0; i < kPerLane; ++i)
          if (column(i) < p_.head_dim_v)
            tile_out[i] +=
                weight * load_real(static_cast<const T*>(args_.v.data), from + column(i));
      }
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) out[i] += tile_out[i];
    }
    write_out(out);
  }

  // Masks of every kind; the causal mask and the window already bound keys_.
  __device__ bool sees(std::int64_t j) const {
    if (args_.mask.data != nullptr &&
        static_cast<const std::uint8_t*>(args_.mask.data)[score_offset(args_.mask, j)] == 0)
      return false;
    if (!p_.has_tree_mask) return true;
    const std::uint32_t* words = args_.tree_mask + batch_idx_ * args_.tree_stride_batch +
                                 (sequence_.row_q + q_idx_) * args_.tree_stride_q;
    const std::int64_t bit = j - (sequence_.seqlen_k - sequence_.seqlen_q);
    return bit < 0 || (words[bit / 32] >> (bit % 32) & 1u) != 0;
  }

  // scale * q.k, softcap, ALiBi, bias: the same number in every lane.
  __device__ Real score(std::int64_t j) const {
    const std::int64_t from = row_offset(args_.k, batch_idx_, sequence_.row_k + j, kv_head_);
    Real s = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (column(i) < p_.head_dim)
        s += q_[i] * load_real(static_cast<const T*>(args_.k.data), from + column(i));
    for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(0xffffffffu, s, step);
    s *= Real(p_.softmax_scale);
    if (has_softcap(p_)) s = Real(p_.softcap) * tanh(s / Real(p_.softcap));
    if (p_.has_alibi) {
      const Real slope = args_.alibi_slopes[batch_idx_ * args_.alibi_stride_batch +
                                            head_ * args_.alibi_stride_head];
      s -= slope * Real(diagonal_ > j ? diagonal_ - j : j - diagonal_);
    }
    if (args_.bias.data != nullptr) s += load_bias(score_offset(args_.bias, j));
    return s;
  }

  __device__ Real load_bias(std::int64_t offset) const {
    if (args_.bias.dtype == DType::f32)
      return load_real(static_cast<const float*>(args_.bias.data), offset);
    return load_real(static_cast<const T*>(args_.bias.data), offset);
  }

  // In a ragged batch the query axis of bias and mask counts packed rows.
  __device__ std::int64_t score_offset(const ScoreOperand& x, std::int64_t j) const {
    return batch_idx_ * x.stride_batch + head_ * x.stride_head +
           (sequence_.row_q + q_idx_) * x.stride_q + j * x.stride_k;
  }

  __device__ void write_empty() {
    const Real zeros[kPerLane] = {};
    write_lse(-kInfinity);
    fill_probs(0);
    write_out(zeros);
  }

  __device__ void write_out(const Real (&out)[kPerLane]) {
    const std::int64_t to = row_offset(args_.out, batch_idx_, sequence_.row_q + q_idx_, head_);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (column(i) < p_.head_dim_v)
        store_real(static_cast<T*>(args_.out.data), to + column(i), out[i]);
  }

  __device__ void write_lse(Real lse) {
    if (args_.lse.data == nullptr || lane_ != 0) return;
    static_cast<Real*>(
        args_.lse.data)[batch_idx_ * args_.lse.stride_batch + head_ * args_.lse.stride_head +
                        (sequence_.row_q + q_idx_) * args_.lse.stride_q] = lse;
  }

  __device__ void write_prob(std::int64_t j, Real value) {
    if (args_.probs.data == nullptr) return;
    static_cast<Real*>(const_cast<void*>(args_.probs.data))[score_offset(args_.probs, j)] = value;
  }

  // Of the keys that sum_values() will not write.
  __device__ void fill_probs(Real value) {
    if (args_.probs.data == nullptr) return;
    for (std::int64_t j = lane_; j < sequence_.seqlen_k; j += 32) write_prob(j, value);
    __syncwarp();
  }

  __device__ int column(int i) const { return 32 * i + lane_; }

  // Sums of so many keys are added to the row's: a plain sum of 10^4 terms rounds too often.
  static constexpr std::int64_t kTileKeys = 64;
  static constexpr Real kInfinity = static_cast<Real>(HUGE_VAL);

  const Problem& p_;
  const AttentionArgs& args_;
  const int lane_;
  std::int64_t batch_idx_, head_, kv_head_, q_idx_, diagonal_;
  Sequence sequence_;
  KeyRange keys_;
  Real q_[kPerLane];
  Real reference_ = 0, denominator_ = 0;
  bool is_empty_ = false;
};

template <class T, int kPerLane>
__global__ void __launch_bounds__(32 * kWarps) forward(const __grid_constant__ Params params) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t step = std::int64_t{kWarps} * gridDim.x;
  for (std::int64_t row_idx = std::int64_t{kWarps} * blockIdx.x + warp; row_idx < params.num_rows;
       row_idx += step) {
    Row<T, kPerLane> row(params, row_idx, lane);
    if (row.exists()) row.compute();
  }
}

// Short rows and long ones: registers for 128 columns, or for all 576.
template <class T>
Status launch_rows(const char* name, const Params& params, std::int64_t num_ctas, Stream stream) {
  const LaunchShape shape{
      .name = name, .grid = dim3(static_cast<unsigned>(num_ctas)), .block = dim3(32 * kWarps)};
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  if (params.problem.head_dim <= 128 && params.problem.head_dim_v <= 128)
    return launch(shape, cuda_stream, forward<T, 4>, params);
  return launch(shape, cuda_stream, forward<T, 18>, params);
}

}  // namespace headrace::cuda::simple
