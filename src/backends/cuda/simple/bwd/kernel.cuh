// Attention backward for any GPU and every feature, written to be read: four kernels, no atomics,
// so the gradients have the same bits every time.
//
//   rows   one warp per query: D = dO . out, dQ
//   keys   one warp per key: dK and dV, over the queries of all heads of the group
//   bias   one warp per element of dbias, over the broadcast axes
//   sinks  one warp per head
//
// With P recomputed from the lse, Z the dropout scale and D as above:
//   dV = (P Z)^T dO      dS = P (dO V^T Z - D + dlse)      dQ = dS' K      dK = dS'^T Q
// where dS' is dS times scale and derivative of the softcap (FlashAttention, 2022, appendix B.2).
#pragma once

#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/simple/bwd/params.h"
#include "backends/cuda/simple/row.cuh"

namespace headrace::cuda::simple::bwd {

// A row with its lse, delta and dO.
template <class T, int kPerLane>
class BackwardRow : public ScoreRow<T, kPerLane> {
 public:
  using Base = ScoreRow<T, kPerLane>;
  using Real = typename Base::Real;

  // Contribution of a score to the gradients.
  struct Element {
    Real weight;  // of dO in dV: P times the dropout scale
    Real ds;      // gradient of the score, and of the bias
    Real factor;  // gradient of q.k
  };

  __device__ BackwardRow(const BackwardParams& c, const Sequence& sequence, const RowPlace& place,
                         int lane)
      : Base(c.forward.problem, c.forward.args, sequence, place, lane), d_(c.d) {
    lse_ = static_cast<const Real*>(args_.lse.data)[this->lse_offset(args_.lse)];
  }

  // No visible key, or scores of -inf only: out and lse are constant.
  __device__ bool is_empty() const { return lse_ == -Base::kInfinity; }
  __device__ bool sees_key(std::int64_t j) const {
    return j >= this->keys_.begin && j < this->keys_.end && this->sees(j);
  }

  // Stores D of the row for the kernels that follow.
  __device__ void find_d() {
    load();
    const Operand& out = args_.out;
    const std::int64_t from = row_offset(out, place_.batch_idx, this->row_q(), place_.head);
    Real sum = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (this->column(i) < p_.head_dim_v)
        sum += dout_[i] * load_real(static_cast<const T*>(out.data), from + this->column(i));
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    set_shift(sum);
    if (this->lane_ == 0) static_cast<Real*>(d_)[d_index()] = sum;
  }
  __device__ void load_with_d() {
    load();
    set_shift(static_cast<const Real*>(d_)[d_index()]);
  }

  __device__ Element at(std::int64_t j) const {
    const Real product = this->scaled_product(j);
    const Real s = this->score(j, product);
    const Real weight = s == -Base::kInfinity ? Real(0) : exp(s - lse_);
    const Real kept = this->kept(j);
    const Real dp = this->dot(dout_, args_.v, j, p_.head_dim_v);
    const Real ds = weight * (dp * kept + shift_);
    Real factor = ds * Real(p_.softmax_scale);
    if (has_softcap(p_)) {
      // 1 - tanh^2 without cancellation in the saturated range.
      const Real e = exp(-2 * abs(product) / Real(p_.softcap));
      factor *= 4 * e / ((1 + e) * (1 + e));
    }
    return {weight * kept, ds, factor};
  }

  __device__ void compute_dq() {
    Real dq[kPerLane] = {};
    find_d();
    for (std::int64_t first = this->keys_.begin; !is_empty() && first < this->keys_.end;
         first += Base::kTileTerms) {
      Real tile_dq[kPerLane] = {};
      for (std::int64_t j = first; j < min(first + Base::kTileTerms, this->keys_.end); ++j) {
        if (!this->sees(j)) continue;
        const Real factor = at(j).factor;
        const std::int64_t from =
            row_offset(args_.k, place_.batch_idx, sequence_.row_k + j, this->kv_head_);
#pragma unroll
        for (int i = 0; i < kPerLane; ++i)
          if (this->column(i) < p_.head_dim)
            tile_dq[i] +=
                factor * load_real(static_cast<const T*>(args_.k.data), from + this->column(i));
      }
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) dq[i] += tile_dq[i];
    }
    store_columns<T>(args_.gradients.dq, place_.batch_idx, this->row_q(), place_.head, p_.head_dim,
                     this->lane_, dq);
  }

  // Adds the contribution of the row to dK and dV of key j.
  __device__ void add_to_key(std::int64_t j, Real (&dk)[kPerLane], Real (&dv)[kPerLane]) const {
    const Element element = at(j);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      dk[i] += element.factor * this->q_[i];
      dv[i] += element.weight * dout_[i];
    }
  }

  // Of one key, or of all (-1).
  __device__ Real sum_of_ds(std::int64_t key) const {
    if (key >= 0) return sees_key(key) ? at(key).ds : Real(0);
    Real sum = 0;
    for (std::int64_t j = this->keys_.begin; j < this->keys_.end; ++j)
      if (this->sees(j)) sum += at(j).ds;
    return sum;
  }

  // exp(sink - lse) (dlse - D).
  __device__ Real sink_gradient(Real sink) const { return exp(sink - lse_) * shift_; }

  // Only dlse - D, for dsinks.
  __device__ void load_shift() { set_shift(static_cast<const Real*>(d_)[d_index()]); }

 private:
  using Base::args_;
  using Base::p_;
  using Base::place_;
  using Base::sequence_;

  __device__ void load() {
    this->load_query();
    this->load_columns(args_.gradients.dout, this->row_q(), place_.head, p_.head_dim_v, dout_);
  }
  __device__ void set_shift(Real d) {
    const LseOperand& dlse = args_.gradients.dlse;
    const Real of_lse = dlse.data == nullptr
                            ? Real(0)
                            : static_cast<const Real*>(dlse.data)[this->lse_offset(dlse)];
    shift_ = of_lse - d;
  }
  __device__ std::int64_t d_index() const {
    return (place_.batch_idx * p_.num_heads + place_.head) * p_.seqlen_q + place_.q_idx;
  }

  void* const d_;  // [batch, num_heads, seqlen_q] of Real
  Real lse_, shift_ = 0;
  Real dout_[kPerLane];
};

template <class T, class Real>
__device__ void store_bias(const ScoreOperand& to, const BiasIndex& at, Real value) {
  const std::int64_t offset = at.batch * to.stride_batch + at.head * to.stride_head +
                              at.row * to.stride_q + at.key * to.stride_k;
  void* data = const_cast<void*>(to.data);
  if (to.dtype == DType::f32) {
    store_real(static_cast<float*>(data), offset, static_cast<float>(value));
  } else {
    store_real(static_cast<T*>(data), offset, value);
  }
}

// Calls body(index, lane) for every index below count, one warp each.
template <class Body>
__device__ void for_each_of_warp(std::int64_t count, Body body) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (std::int64_t idx = std::int64_t{kWarps} * blockIdx.x + warp; idx < count;
       idx += std::int64_t{kWarps} * gridDim.x)
    body(idx, lane);
}

template <class T, int kPerLane>
__global__ void __launch_bounds__(32 * kWarps)
    backward_rows(const __grid_constant__ BackwardParams c) {
  for_each_of_warp(c.forward.num_rows, [&](std::int64_t idx, int lane) {
    const RowPlace place = place_of(c.forward.problem, idx);
    const Sequence sequence = sequence_at(c.forward, place, lane);
    if (place.q_idx < sequence.seqlen_q)
      BackwardRow<T, kPerLane>(c, sequence, place, lane).compute_dq();
  });
}

// Key j of a KV head: [batch, num_kv_heads, seqlen_k]; ragged: seqlen_k of the longest sequence.
template <class T, int kPerLane>
__global__ void __launch_bounds__(32 * kWarps)
    backward_keys(const __grid_constant__ BackwardParams c) {
  using Row = BackwardRow<T, kPerLane>;
  using Real = typename Row::Real;
  const Problem& p = c.forward.problem;
  for_each_of_warp(c.num_keys, [&](std::int64_t idx, int lane) {
    const std::int64_t j = idx % p.seqlen_k, kv_head = idx / p.seqlen_k % p.num_kv_heads;
    const std::int64_t batch_idx = idx / p.seqlen_k / p.num_kv_heads, group = group_size(p);
    const Sequence sequence = sequence_at(c.forward, {batch_idx, 1, 0}, lane);
    if (j >= sequence.seqlen_k) return;
    Real dk[kPerLane] = {}, dv[kPerLane] = {};
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      Real head_dk[kPerLane] = {}, head_dv[kPerLane] = {};
      for (std::int64_t i = 0; i < sequence.seqlen_q; ++i) {
        Row row(c, sequence, {batch_idx, head, i}, lane);
        if (!row.sees_key(j) || row.is_empty()) continue;
        row.load_with_d();
        row.add_to_key(j, head_dk, head_dv);
      }
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        dk[i] += head_dk[i];
        dv[i] += head_dv[i];
      }
    }
    const GradientArgs& to = c.forward.args.gradients;
    const std::int64_t row = sequence.row_k + j;
    store_columns<T>(to.dk, batch_idx, row, kv_head, p.head_dim, lane, dk);
    store_columns<T>(to.dv, batch_idx, row, kv_head, p.head_dim_v, lane, dv);
  });
}

// An element of dbias sums dS over the broadcast axes.
template <class T, int kPerLane>
__global__ void __launch_bounds__(32 * kWarps)
    backward_bias(const __grid_constant__ BackwardParams c) {
  using Row = BackwardRow<T, kPerLane>;
  using Real = typename Row::Real;
  const Problem& p = c.forward.problem;
  const BiasShape& shape = c.bias_shape;
  for_each_of_warp(shape.count(), [&](std::int64_t idx, int lane) {
    const BiasIndex at = shape.index(idx);
    Real sum = 0;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      if (shape.batch > 1 && b != at.batch) continue;
      const Sequence sequence = sequence_at(c.forward, {b, 1, 0}, lane);
      for (std::int64_t head = 0; head < p.num_heads; ++head) {
        if (shape.heads > 1 && head != at.head) continue;
        for (std::int64_t i = 0; i < sequence.seqlen_q; ++i) {
          if (shape.rows > 1 && sequence.row_q + i != at.row) continue;
          Row row(c, sequence, {b, head, i}, lane);
          if (row.is_empty()) continue;
          row.load_with_d();
          sum += row.sum_of_ds(shape.keys > 1 ? at.key : -1);
        }
      }
    }
    if (lane == 0) store_bias<T>(c.forward.args.gradients.dbias, at, sum);
  });
}

template <class T, int kPerLane>
__global__ void __launch_bounds__(32) backward_sinks(const __grid_constant__ BackwardParams c) {
  using Row = BackwardRow<T, kPerLane>;
  using Real = typename Row::Real;
  const Problem& p = c.forward.problem;
  const AttentionArgs& args = c.forward.args;
  const std::int64_t head = blockIdx.x;
  const Real sink = args.sinks[head * args.sinks_stride];
  Real sum = 0;
  for (std::int64_t n = threadIdx.x; isfinite(sink) && n < p.batch * p.seqlen_q; n += 32) {
    const RowPlace place{n / p.seqlen_q, head, n % p.seqlen_q};
    const Sequence sequence = sequence_at(c.forward, {place.batch_idx, 1, 0}, 0);
    if (place.q_idx >= sequence.seqlen_q) continue;
    Row row(c, sequence, place, 0);
    if (row.is_empty()) continue;
    row.load_shift();
    sum += row.sink_gradient(sink);
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x == 0)
    args.gradients.dsinks[head * args.gradients.dsinks_stride] = static_cast<float>(sum);
}

// All kernels of a call.
template <class T, int kPerLane>
Status launch_backward_rows(const char* name, const BackwardParams& c, Stream stream) {
  auto* s = static_cast<cudaStream_t>(stream);
  const auto shape_of = [&](std::int64_t count) {
    const std::int64_t ctas = (count + kWarps - 1) / kWarps;
    return LaunchShape{.name = name,
                       .grid = dim3(static_cast<unsigned>(ctas < c.num_ctas ? ctas : c.num_ctas)),
                       .block = dim3(32 * kWarps)};
  };
  const Problem& p = c.forward.problem;
  if (c.forward.num_rows > 0)
    HEADRACE_TRY(launch(shape_of(c.forward.num_rows), s, backward_rows<T, kPerLane>, c));
  if (c.num_keys > 0) HEADRACE_TRY(launch(shape_of(c.num_keys), s, backward_keys<T, kPerLane>, c));
  if (c.forward.args.gradients.dbias.data != nullptr && c.bias_shape.count() > 0)
    HEADRACE_TRY(launch(shape_of(c.bias_shape.count()), s, backward_bias<T, kPerLane>, c));
  if (p.has_dsinks == 0 || p.num_heads == 0) return std::nullopt;
  const LaunchShape heads{
      .name = name, .grid = dim3(static_cast<unsigned>(p.num_heads)), .block = dim3(32)};
  return launch(heads, s, backward_sinks<T, kPerLane>, c);
}

template <class T>
Status launch_backward(const char* name, const BackwardParams& c, Stream stream) {
  const Problem& p = c.forward.problem;
  if (p.head_dim <= 128 && p.head_dim_v <= 128) return launch_backward_rows<T, 4>(name, c, stream);
  return launch_backward_rows<T, 18>(name, c, stream);
}

}  // namespace headrace::cuda::simple::bwd
