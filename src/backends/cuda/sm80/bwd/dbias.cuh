// dbias: one CTA per tile of dbias, summed in registers over every batch entry, head, q-block and
// key tile that it broadcasts to, in a fixed order. It recomputes S and dP, so that nothing as
// large as the scores is stored, whatever axes broadcast.
#pragma once

#include "backends/cuda/common/element.cuh"
#include "backends/cuda/sm80/bwd/scores.cuh"

namespace headrace::cuda::sm80::bwd {

template <class T, class Shape>
class DBias {
  using Grads = ScoreGrads<T, true, Shape>;
  using QBlock = typename Grads::QBlock;
  using Scores = typename Grads::Scores;
  static constexpr int kRows = Grads::kRows, kKeys = Grads::kKeys, kThreads = Grads::kThreads;
  static constexpr int kLine = kKeys + 1;  // row stride in shared memory, in floats
  static_assert(kRows * kLine * 4 <= Grads::kSmem.p, "the sums lie where Q, K, V and dO were");

  struct Range {
    std::int64_t begin, end;
  };
  struct Place {
    std::int64_t batch_idx, head;
    int row, key;  // the first ones
  };

 public:
  __device__ explicit DBias(const DBiasParams& c) : c_(c), grads_(c.grads) {}

  __device__ void run(std::int64_t idx) {
    const DBiasTiles& tiles = c_.tiles;
    const ScoreOperand& to = c_.dbias;
    const Place place{idx / tiles.keys / tiles.rows / tiles.heads,
                      idx / tiles.keys / tiles.rows % tiles.heads,
                      static_cast<int>(idx / tiles.keys % tiles.rows) * kRows,
                      static_cast<int>(idx % tiles.keys) * kKeys};
#pragma unroll
    for (int n = 0; n < 4 * Grads::kRowBlocks * Grads::kKeyBlocks; ++n)
      sums_[n / 4 / Grads::kKeyBlocks][n / 4 % Grads::kKeyBlocks][n % 4] = 0.0f;
    const bool by_sequence = (c_.grads.sizes.is_ragged ? to.stride_q : to.stride_batch) != 0;
    const Range batches =
        by_sequence ? Range{place.batch_idx, place.batch_idx + 1} : Range{0, c_.grads.sizes.batch};
    const Range heads = to.stride_head != 0 ? Range{place.head, place.head + 1}
                                            : Range{0, c_.grads.sizes.num_heads};
    for (std::int64_t b = batches.begin; b < batches.end; ++b) {
      __syncthreads();
      if (threadIdx.x == 0) set_sequence(c_.grads, b, grads_.work());
      __syncthreads();
      for (std::int64_t head = heads.begin; head < heads.end; ++head) add_head(place, head);
    }
    gather();
    store(place);
  }

 private:
  __device__ void add_head(const Place& place, std::int64_t head) {
    const ScoreOperand& to = c_.dbias;
    const int end_key =
        to.stride_k != 0 ? min(place.key + 1, grads_.work().seqlen_k) : grads_.work().seqlen_k;
    for (int key = place.key; key < end_key; key += kKeys) {
      __syncthreads();
      if (threadIdx.x == 0) {
        grads_.work().kv_head = head / c_.grads.group;
        set_key_tile(Grads::kTile, key / kKeys, grads_.work());
      }
      __syncthreads();
      const QueryRange rows = grads_.work().rows;
      const int begin = max(place.row, rows.begin / kRows * kRows);
      const int end = to.stride_q != 0 ? min(place.row + 1, rows.end) : rows.end;
      if (begin >= end) continue;
      grads_.load_keys_and_values();
      grads_.clear_pad_columns();
      for (int row = begin; row < end; row += kRows) add_tile({head, row, 0});
    }
  }

  __device__ void add_tile(const QBlock& at) {
    grads_.load_q(at);
    grads_.load_dout(at);
    grads_.write_score_rows(at);
    cp_async_commit_group();
    cp_async_wait_group<0>();
    __syncthreads();
    Scores s, dp;
    grads_.compute_s_dp(at, s, dp);
    grads_.template compute_p_ds<false>(at, s, dp);
#pragma unroll
    for (int n = 0; n < 4 * Grads::kRowBlocks * Grads::kKeyBlocks; ++n)
      sums_[n / 4 / Grads::kKeyBlocks][n / 4 % Grads::kKeyBlocks][n % 4] +=
          dp[n / 4 / Grads::kKeyBlocks][n / 4 % Grads::kKeyBlocks][n % 4];
    __syncthreads();
  }

  // Moves the tile to shared memory and sums over its rows or keys if that axis broadcasts.
  static __device__ __forceinline__ float& sum_at(int row, int key) {
    return reinterpret_cast<float*>(dynamic_smem)[row * kLine + key];
  }
  __device__ void gather() const {
    __syncthreads();
    for_rows<Grads::kRowBlocks>([&](auto b, auto half) {
      const int row = Grads::warp_row() + 16 * b() + 8 * half() + (lane() >> 2);
#pragma unroll
      for (int n = 0; n < 2 * Grads::kKeyBlocks; ++n)
        sum_at(row, Grads::warp_key() + n / 2 * 8 + 2 * (lane() & 3) + n % 2) =
            sums_[b()][n / 2][2 * half() + n % 2];
    });
    __syncthreads();
    const int idx = static_cast<int>(threadIdx.x);
    if (c_.dbias.stride_q == 0 && idx < kKeys)
      for (int row = 1; row < kRows; ++row) sum_at(0, idx) += sum_at(row, idx);
    __syncthreads();
    if (c_.dbias.stride_k == 0 && idx < kRows)
      for (int key = 1; key < kKeys; ++key) sum_at(idx, 0) += sum_at(idx, key);
    __syncthreads();
  }

  __device__ void store(const Place& place) const {
    const ScoreOperand& to = c_.dbias;
    const auto within = [](std::int64_t count, int tile) {
      return static_cast<int>(min(count, std::int64_t{tile}));
    };
    int num_rows = 1, num_keys = 1;
    std::int64_t first_row = place.row;  // packed row
    if (to.stride_q != 0) {              // an empty batch still gets rows of zeros
      num_rows = within(
          (c_.grads.sizes.is_ragged ? grads_.work().seqlen_q : c_.grads.sizes.seqlen_q) - place.row,
          kRows);
      if (c_.grads.sizes.is_ragged) first_row += grads_.work().sequence.row_q;
    }
    if (to.stride_k != 0) num_keys = within(c_.grads.sizes.seqlen_k - place.key, kKeys);
    const std::int64_t first = place.batch_idx * to.stride_batch + place.head * to.stride_head +
                               first_row * to.stride_q + place.key * to.stride_k;
    void* data = const_cast<void*>(to.data);
    for (int i = static_cast<int>(threadIdx.x); i < num_rows * num_keys; i += kThreads) {
      const int row = i / num_keys, key = i % num_keys;
      const std::int64_t at = first + row * to.stride_q + key * to.stride_k;
      const float value = sum_at(row, key) + 0.0f;  // -0 becomes +0
      if (to.dtype == DType::f32) {
        store_real(static_cast<float*>(data), at, value);
      } else {
        store_real(static_cast<T*>(data), at, value);
      }
    }
  }

  const DBiasParams& c_;
  Grads grads_;
  Scores sums_;
};

template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kTile.threads(), Shape::kTile.min_ctas)
    dbias(const __grid_constant__ DBiasParams params) {
  for (std::int64_t work_idx = blockIdx.x; work_idx < params.tiles.count(); work_idx += gridDim.x) {
    DBias<T, Shape>(params).run(work_idx);
    __syncthreads();
  }
}

}  // namespace headrace::cuda::sm80::bwd
