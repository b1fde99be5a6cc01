// The warpgroup of the transposed kernel that computes.
#pragma once

#include "backends/cuda/sm90/fwd/transposed_scores.cuh"
#include "backends/cuda/sm90/fwd/transposed_softmax.cuh"
#include "backends/cuda/sm90/fwd/transposed_values.cuh"

namespace headrace::cuda::sm90::fwd {

template <Tile kTile, class Element>
class SplitConsumer {
  using Softmax = SplitSoftmax<kTile, Element>;
  static constexpr int kBarrier = 1;

 public:
  __device__ __forceinline__ SplitConsumer(const Params& p, u32 smem)
      : smem_(smem),
        scores_(smem),
        softmax_(p, smem, kBarrier),
        sums_(smem),
        values_(p, smem, 0, kBarrier) {}

  __device__ __forceinline__ void run() {
    PublishedItems<kTile> published(smem_);
    for (;;) {
      const PublishedItem x = published.read();
      if (x.item.batch == kNoItem) return;
      item_ = x.item;
      sum_blocks(x.rows != 0);
      sums_.share();
      bar_sync(kBarrier, 128);
      values_.store(item_, softmax_.reference(), x.rows, x.word);
      bar_sync(kBarrier, 128);  // all warps have reported
      published.release(x.loaded(), threadIdx.x == 0);
    }
  }

 private:
  // One loop has all of it, so that the code is there once: the first P V and the last S are of
  // whatever lies in shared memory, too, and not used.
  __device__ __forceinline__ void sum_blocks(bool is_precise) {
    softmax_.begin();
    sums_.begin();
    values_.begin();
    has_sums_ = false;
    scores_.begin();
#pragma unroll 1
    for (int n = item_.block_max - 1;; --n) {
      // S of a k-block and P V of the one to its right; beside them the sums of P of that one.
      const bool is_first = n == item_.block_max - 1, is_last = n < item_.block_min;
      if (!is_last) scores_.wait();
      if (!is_first) values_.wait();
      scores_.issue(s_);
      values_.issue(buffer_);
      if (!is_first) values_.keep();
      if (has_sums_) sums_.add_probs(buffer_);
      scores_.template finish<1>(s_);
      if (is_last) break;
      scores_.release();
      make_probs(n, is_first, is_precise);
      if (is_first) values_.zero_tail(item_, n);
    }
    values_.finish();
    values_.advance();
    values_.release();
    scores_.end();
  }

  // Also waits for P V of the k-block to the right.
  __device__ __forceinline__ void make_probs(int n, bool is_first, bool is_precise) {
    typename Softmax::Factors factor;
    bool moves = softmax_.update(s_, item_, n, is_first, is_precise, factor);
    if (!Softmax::kIsLazy || is_precise) sums_.scale(factor[Softmax::kSummed]);
    buffer_ ^= 1;
    softmax_.store(s_, buffer_);
    values_.finish();
    if (!is_first) {
      values_.advance();
      values_.release();
    }
    const bool is_large = publish(Softmax::kIsLazy && softmax_.is_large(s_, is_first));
    has_sums_ = true;
    if (is_precise) {
      has_sums_ = false;
      sums_.add_probs_precisely(buffer_);
    } else if (Softmax::kIsLazy && is_large) [[unlikely]] {
      has_sums_ = false;
      float max = 0.0f;
      const float thread_sum = softmax_.sum_of_probs(buffer_, max);
      sums_.add(thread_sum);
      softmax_.lazy_update(s_, buffer_, thread_sum, max, factor);
      sums_.scale(factor[Softmax::kSummed]);
      publish(false);
      moves = true;
    }
    if (!is_first && moves) [[unlikely]]
      values_.rescale(factor);
  }
  // What the threads stored is read by wgmma and by other threads. Whether any of them has `x`.
  __device__ __forceinline__ static bool publish(bool x) {
    fence_proxy_async();
    return bar_any(kBarrier, 128, x);
  }

  const u32 smem_;
  ComputedScores<kTile, Element> scores_;
  Softmax softmax_;
  SplitSums<kTile> sums_;
  SplitValues<kTile, Element> values_;
  SplitItem item_{};
  typename Softmax::Registers s_;
  int buffer_ = 0;         // of P
  bool has_sums_ = false;  // of P that are not added yet
};

}  // namespace headrace::cuda::sm90::fwd
