// Attention forward for any GPU and every feature, written to be read. One warp computes one row in
// two passes over the keys: row max and sum of exponentials, then P and P V. P is at most 1 in the
// second pass, so the output overflows only if the exact result does. Masked keys are never
// multiplied: NaN in their K or V has no effect.
#pragma once

#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/simple/fwd/launch.h"
#include "backends/cuda/simple/row.cuh"

namespace headrace::cuda::simple::fwd {

template <class T, int kPerLane>
class ForwardRow : ScoreRow<T, kPerLane> {
 public:
  using Base = ScoreRow<T, kPerLane>;
  using Base::Base;
  using Real = typename Base::Real;

  __device__ void compute() {
    this->load_query();
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
  using Base::args_;
  using Base::column;
  using Base::keys_;
  using Base::kInfinity;
  using Base::kTileTerms;
  using Base::kv_head_;
  using Base::lane_;
  using Base::p_;
  using Base::place_;
  using Base::row_q;
  using Base::score;
  using Base::score_offset;
  using Base::sees;
  using Base::sequence_;

  // Row max and sum of exponentials relative to it, including the sink. The reference moves at most
  // once per tile: moving it with every new maximum would round the sum once per key if scores rise
  // along the keys.
  __device__ void find_denominator() {
    Real top = -kInfinity, sum = 0;
    for (std::int64_t first = keys_.begin; first < keys_.end; first += kTileTerms) {
      const auto count = static_cast<int>(min(kTileTerms, keys_.end - first));
      Real scores[kTileTerms];
      const Real before = top;
      for (int i = 0; i < count; ++i) {
        scores[i] = sees(first + i) ? score(first + i) : -kInfinity;
        if (scores[i] > top) top = scores[i];
      }
      if (top > before) sum *= exp(before - top);
      // A score of +inf gives Inf - Inf = NaN, like a NaN score. -inf adds nothing.
      Real tile_sum = 0;
      for (int i = 0; i < count; ++i)
        if (scores[i] != -kInfinity) tile_sum += exp(scores[i] - top);
      sum += tile_sum;
    }
    is_empty_ = top == -kInfinity && sum == 0;
    reference_ = top;
    denominator_ = sum;
    if (is_empty_ || !p_.has_sinks) return;
    const Real sink = args_.sinks[place_.head * args_.sinks_stride];
    if (sink == -kInfinity) return;
    if (sink > top) {
      reference_ = sink;
      denominator_ = sum * exp(top - sink);
    }
    denominator_ += sink == reference_ ? Real(1) : exp(sink - reference_);
  }

  // out = sum over visible keys of P * dropout * V.
  __device__ void sum_values() {
    Real out[kPerLane] = {};
    for (std::int64_t first = keys_.begin; first < keys_.end; first += kTileTerms) {
      Real tile_out[kPerLane] = {};
      for (std::int64_t j = first; j < min(first + kTileTerms, keys_.end); ++j) {
        if (!sees(j)) continue;
        const Real s = score(j);
        Real weight = s == -kInfinity ? Real(0) : exp(s - reference_);
        weight /= denominator_;
        weight *= this->kept(j);
        if (lane_ == 0) write_prob(j, weight);
        if (has_codes(p_)) {
          add_codes(j, weight, tile_out);
          continue;
        }
        const std::int64_t from = this->key_place(args_.v, j);
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

  __device__ void add_codes(std::int64_t j, Real weight, Real (&out)[kPerLane]) {
    const KeyRow value = this->row_of_key(j, false);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (column(i) < p_.head_dim_v) out[i] += weight * load_element<T>(value, column(i));
  }

  __device__ void write_empty() {
    const Real zeros[kPerLane] = {};
    write_lse(-kInfinity);
    fill_probs(0);
    write_out(zeros);
  }

  __device__ void write_out(const Real (&out)[kPerLane]) {
    store_columns<T>(args_.out, place_.batch_idx, row_q(), place_.head, p_.head_dim_v, lane_, out);
  }

  __device__ void write_lse(Real lse) {
    if (args_.lse.data != nullptr && lane_ == 0)
      static_cast<Real*>(args_.lse.data)[this->lse_offset(args_.lse)] = lse;
  }

  __device__ void write_prob(std::int64_t j, Real value) {
    if (args_.probs.data == nullptr) return;
    static_cast<Real*>(const_cast<void*>(args_.probs.data))[score_offset(args_.probs, j)] = value;
  }

  // Probs of the keys that sum_values() does not write.
  __device__ void fill_probs(Real value) {
    if (args_.probs.data == nullptr) return;
    for (std::int64_t j = lane_; j < sequence_.seqlen_k; j += 32) write_prob(j, value);
    __syncwarp();
  }

  Real reference_ = 0, denominator_ = 0;
  bool is_empty_ = false;
};

template <class T, int kPerLane>
__global__ void __launch_bounds__(32 * kWarps) forward(const __grid_constant__ Params params) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t step = std::int64_t{kWarps} * gridDim.x;
  for (std::int64_t row_idx = std::int64_t{kWarps} * blockIdx.x + warp; row_idx < params.num_rows;
       row_idx += step) {
    const RowPlace place = place_of(params.problem, row_idx);
    const Sequence sequence = sequence_at(params, place, lane);
    if (place.q_idx < sequence.seqlen_q)
      ForwardRow<T, kPerLane>(params.problem, params.args, sequence, place, lane).compute();
  }
}

// Two instances: registers for 128 columns, or for 576.
template <class T>
Status launch_rows(const char* name, const Params& params, std::int64_t num_ctas, Stream stream) {
  const LaunchShape shape{
      .name = name, .grid = dim3(static_cast<unsigned>(num_ctas)), .block = dim3(32 * kWarps)};
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  if (params.problem.head_dim <= 128 && params.problem.head_dim_v <= 128)
    return launch(shape, cuda_stream, forward<T, 4>, params);
  return launch(shape, cuda_stream, forward<T, 18>, params);
}

}  // namespace headrace::cuda::simple::fwd
