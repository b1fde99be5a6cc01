// What the warps of a CTA do that has a part of a split (transposed_parts.cuh): load K or V, make P
// of S that was sent, add P, add P V.
#pragma once

#include "backends/cuda/device/cluster.cuh"
#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/sm90/fwd/transposed_produce.cuh"
#include "backends/cuda/sm90/fwd/transposed_softmax.cuh"
#include "backends/cuda/sm90/fwd/transposed_values.cuh"

namespace headrace::cuda::sm90::fwd {

// S that other CTAs of the cluster sent: of each k-block the registers of a thread, 16 bytes at a
// time beside those of the other threads.
template <Tile kTile>
class SentScores {
  using B = TransposedBarriers<kTile>;
  static constexpr TransposedSmem kSmem = transposed_smem(kTile);
  static constexpr int kKeyTiles = kTile.keys / 64, kRegisters = kTile.transposed_rows / 2;
  static constexpr int kChunks = kRegisters / 4;

 public:
  using Registers = float[kKeyTiles][kRegisters];
  static constexpr u32 kBytes = 128 * kKeyTiles * kRegisters * 4;  // of a k-block

  __device__ __forceinline__ explicit SentScores(u32 smem) : smem_(smem) {}

  // For S of the i-th of the next k-blocks. The memory model asks for an acquire of the cluster's
  // scope, which is the same instruction and then invalidates L1 (CCTL.IVALL), 200 clocks each
  // time. What st.async stores lies in shared memory, not in L1.
  __device__ __forceinline__ void wait(int i) const { mbarrier_wait(full(smem_, block_ + i), 0); }
  // S of the next k-block, which is there.
  __device__ __forceinline__ void read(Registers& s) {
#pragma unroll
    for (int i = 0; i < kKeyTiles * kChunks; ++i) {
      const Chunk c = load_chunk(chunk(smem_, block_, i));
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i / kChunks][i % kChunks * 4 + j] = __uint_as_float(c.words[j]);
    }
    ++block_;
  }
  __device__ __forceinline__ void unread() { --block_; }

  // By the threads that computed it. `to`: the shared memory of a CTA of the cluster.
  __device__ static __forceinline__ void send(const Registers& s, int block, u32 to) {
#pragma unroll
    for (int i = 0; i < kKeyTiles * kChunks; ++i) {
      const float* x = s[i / kChunks] + i % kChunks * 4;
      st_async(chunk(to, block, i), {x[0], x[1], x[2], x[3]}, full(to, block));
    }
  }
  __device__ static __forceinline__ u32 full(u32 smem, int block) {
    return smem + static_cast<u32>(kSmem.offset_barriers + 8 * (B::kScores + block));
  }

 private:
  __device__ static __forceinline__ u32 chunk(u32 smem, int block, int i) {
    return smem + static_cast<u32>(kSmem.offset_scores) + kBytes * static_cast<u32>(block) +
           16 * (128 * static_cast<u32>(i) + threadIdx.x % 128);
  }

  const u32 smem_;
  int block_ = 0;
};

// The k-blocks of an item that a CTA has: first, first + step and so on, from the right.
struct PartBlocks {
  int first, step;
  __device__ __forceinline__ int count(const SplitItem& item) const {
    return max(item.block_max - item.block_min - first + step - 1, 0) / step;
  }
};

// One of the warps that load K, or 64 columns of V.
template <Tile kTile, bool kIsV>
class PartLoader {
  using B = TransposedBarriers<kTile>;
  static constexpr TransposedSmem kSmem = transposed_smem(kTile);
  static constexpr int kAtoms = num_swizzle_atoms(kIsV ? columns_of_part(kTile) : kTile.head_dim);
  // Warps have parts of the columns, or every second or fourth stage.
  static constexpr int kGroups = kAtoms > 1 ? 2 : 1, kPhases = kPartLoaders / kGroups;
  static constexpr int kStages = kIsV ? kTile.v_stages : kTile.k_stages;
  static constexpr int kBlockStages = stages_of_barrier(kTile);
  static_assert(kStages % kBlockStages == 0);

 public:
  __device__ __forceinline__ PartLoader(const Params& p, const Maps& maps, u32 smem, int loader,
                                        int first_atom)
      : map_(kIsV ? maps.v : maps.k),
        smem_(smem),
        group_(loader % kGroups),
        next_(loader / kGroups),
        first_atom_(first_atom),
        loader_(p) {}

  // May be called again, for the same k-blocks.
  __device__ __forceinline__ void load(const SplitItem& item, const PartBlocks& blocks) {
    const int end = end_ + blocks.count(item) * kBlockStages;
    loader_.begin(item);
#pragma unroll 1
    for (; next_ < end; next_ += kPhases) {
      const int stage = next_ % kStages, i = next_ - end_;
      const int n = item.block_max - 1 - (blocks.first + i / kBlockStages * blocks.step);
      const int atom = group_ * (kAtoms / kGroups);
      const u32 to = smem_ + static_cast<u32>((kIsV ? kSmem.offset_v : kSmem.offset_k) +
                                              stage * (kIsV ? kSmem.v_stage : kSmem.stage) +
                                              atom * kStageKeys * kSwizzleRowBytes);
      loader_.load(map_, item, n * kTile.keys + i % kBlockStages * kStageKeys, first_atom_ + atom,
                   to, barrier((kIsV ? B::kVFull : B::kKFull) + stage / kBlockStages),
                   barrier((kIsV ? B::kVEmpty : B::kKEmpty) + stage / kBlockStages),
                   static_cast<u32>(next_ / kStages & 1),
                   group_ == 0 ? kAtoms * kStageKeys * kSwizzleRowBytes : 0);
    }
    end_ = end;
  }

 private:
  __device__ __forceinline__ u32 barrier(int i) const {
    return smem_ + static_cast<u32>(kSmem.offset_barriers + 8 * i);
  }

  const TensorMap& map_;
  const u32 smem_;
  const int group_;
  int next_;  // stage, of all that the CTA loads
  const int first_atom_;
  int end_ = 0;  // of those that are loaded
  StageLoader<kTile, kAtoms / kGroups> loader_;
};

// P of k-blocks, from the warpgroup that makes it to those that add it: buffers, each with what the
// softmax says of the rows.
template <Tile kTile>
class ProbRing {
  using B = TransposedBarriers<kTile>;
  static constexpr TransposedSmem kSmem = transposed_smem(kTile);
  static constexpr int kRows = kTile.transposed_rows;

 public:
  __device__ __forceinline__ explicit ProbRing(u32 smem) : smem_(smem) {}

  __device__ __forceinline__ int buffer() const { return ring_.stage; }
  __device__ __forceinline__ void wait_for_room() const {
    mbarrier_wait(barrier(B::kProbsEmpty), ring_.parity ^ 1);
  }
  __device__ __forceinline__ void wait_for_probs() const {
    mbarrier_wait(barrier(B::kProbsFull), ring_.parity);
  }
  // By all threads, behind what they stored, of one or more buffers, or read.
  template <int kCount = 1>
  __device__ __forceinline__ void publish() {
    fence_proxy_async();
#pragma unroll
    for (int i = 0; i < kCount; ++i) arrive(B::kProbsFull);
  }
  __device__ __forceinline__ void release() { arrive(B::kProbsEmpty); }
  __device__ __forceinline__ void next() { ring_.next(); }

  // Of a row: what O and its sum are multiplied by, where `moves`, and its reference.
  __device__ __forceinline__ u32 factor(int row) const { return message(4 * row); }
  __device__ __forceinline__ u32 reference(int row) const { return message(4 * (kRows + row)); }
  __device__ __forceinline__ u32 moves() const { return message(4 * 2 * kRows); }

 private:
  __device__ __forceinline__ u32 barrier(int first) const {
    return smem_ + static_cast<u32>(kSmem.offset_barriers + 8 * (first + ring_.stage));
  }
  __device__ __forceinline__ u32 message(int offset) const {
    return smem_ +
           static_cast<u32>(kSmem.offset_message + ring_.stage * message_bytes(kTile) + offset);
  }
  __device__ __forceinline__ void arrive(int first) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier(first));
    ring_.next();
  }

  const u32 smem_;
  Ring<num_prob_buffers(kTile)> ring_;
};

// The warpgroup that makes P.
template <Tile kTile, class Element>
class PartSoftmax {
  using Softmax = SplitSoftmax<kTile, Element>;
  using Scores = SentScores<kTile>;
  static constexpr int kBarrier = 1, kRows = kTile.transposed_rows;

 public:
  __device__ __forceinline__ PartSoftmax(const Params& p, u32 smem)
      : smem_(smem), softmax_(p, smem, kBarrier), probs_(smem) {}

  __device__ __forceinline__ void run(const SplitItem& item, bool is_precise) {
    Scores scores(smem_);
    softmax_.begin();
#pragma unroll 1
    for (int n = item.block_max - 1; n >= item.block_min;) {
      const bool is_first = n == item.block_max - 1;
      if (Softmax::kIsLazy && !is_precise && !is_first && n > item.block_min &&
          !item.is_masked(n) && !item.is_masked(n - 1))
        n -= make_two(item, n, scores);
      else
        n -= make_one(item, n, is_first, is_precise, scores);
    }
  }

 private:
  // Until S of so many k-blocks is there, and room for P.
  template <int kBlocks>
  __device__ __forceinline__ void wait(const Scores& scores) const {
    ProbRing<kTile> probs = probs_;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      scores.wait(i);
      probs.wait_for_room();
      probs.next();
    }
  }
  // Returns the k-blocks that it made.
  __device__ __forceinline__ int make_one(const SplitItem& item, int n, bool is_first,
                                          bool is_precise, Scores& scores) {
    typename Softmax::Registers s;
    typename Softmax::Factors factor;
    wait<1>(scores);
    scores.read(s);
    bool moves = softmax_.update(s, item, n, is_first, is_precise, factor);
    softmax_.store(s, probs_.buffer());
    if (Softmax::kIsLazy && !is_precise) moves |= corrects(s, is_first, factor);
    tell(n == item.block_min, moves, factor, probs_);
    probs_.publish();
    return 1;
  }
  // The same of two k-blocks that all rows see, of which most of the time is latency. Where the
  // first moves references, it is the only one.
  __device__ __forceinline__ int make_two(const SplitItem& item, int n, Scores& scores) {
    typename Softmax::Registers s, t;
    typename Softmax::Factors factor;
    wait<2>(scores);
    scores.read(s);
    scores.read(t);
    softmax_.exponentiate(s);
    softmax_.exponentiate(t);
    ProbRing<kTile> second = probs_;
    second.next();
    softmax_.store(s, probs_.buffer());
    softmax_.store(t, second.buffer());
    if (bar_any(kBarrier, 128, softmax_.is_large(s, false) || softmax_.is_large(t, false)))
        [[unlikely]] {
      scores.unread();
      tell(false, corrects(s, false, factor), factor, probs_);
      probs_.publish();
      return 1;
    }
    tell(false, false, factor, probs_);
    tell(n - 1 == item.block_min, false, factor, second);
    probs_.template publish<2>();
    return 2;
  }
  // Whether some sum is too large, and then other references.
  __device__ __forceinline__ bool corrects(typename Softmax::Registers& s, bool is_first,
                                           typename Softmax::Factors& factor) {
    if (!bar_any(kBarrier, 128, softmax_.is_large(s, is_first))) [[likely]]
      return false;
    float max = 0.0f;
    const float thread_sum = softmax_.sum_of_probs(probs_.buffer(), max);
    softmax_.lazy_update(s, probs_.buffer(), thread_sum, max, factor);
    return true;
  }
  // Beside P. Thread r has row r as the one whose P it adds.
  __device__ __forceinline__ void tell(bool is_last, bool moves,
                                       const typename Softmax::Factors& factor,
                                       const ProbRing<kTile>& probs) const {
    const int row = static_cast<int>(threadIdx.x);
    if (row >= kRows) return;
    if (row == 0) store_shared(probs.moves(), moves ? 1 : 0);
    if (moves) store_shared(probs.factor(row), __float_as_uint(factor[Softmax::kSummed]));
    if (is_last) store_shared(probs.reference(row), __float_as_uint(softmax_.reference()));
  }

  const u32 smem_;
  Softmax softmax_;
  ProbRing<kTile> probs_;
};

// Where the sums of P have been shared: of the warpgroups that add P, and P V.
inline constexpr int kSumsBarrier = 3;

// The warpgroup that adds P.
template <Tile kTile, class Element>
class PartSums {
  static constexpr bool kIsLazy = SplitSoftmax<kTile, Element>::kIsLazy;

 public:
  __device__ __forceinline__ explicit PartSums(u32 smem) : sums_(smem), probs_(smem) {}

  __device__ __forceinline__ void run(const SplitItem& item, bool is_precise) {
    const int row = static_cast<int>(threadIdx.x) % 32 % kTile.transposed_rows;
    sums_.begin();
#pragma unroll 1
    for (int n = item.block_max - 1; n >= item.block_min; --n) {
      probs_.wait_for_probs();
      // A lazy update multiplies the sum of the k-block, too.
      const bool moves = load_shared(probs_.moves()) != 0, is_last_step = kIsLazy && !is_precise;
      const float factor = moves ? __uint_as_float(load_shared(probs_.factor(row))) : 1.0f;
      if (moves && !is_last_step) sums_.scale(factor);
      if (is_precise)
        sums_.add_probs_precisely(probs_.buffer());
      else
        sums_.add_probs(probs_.buffer());
      if (moves && is_last_step) sums_.scale(factor);
      probs_.release();
    }
    sums_.share();
    bar_arrive(kSumsBarrier, 2 * 128);
  }

 private:
  SplitSums<kTile> sums_;
  ProbRing<kTile> probs_;
};

// The warpgroup that adds P V.
template <Tile kTile, class Element>
class PartValues {
  static constexpr int kBarrier = 2, kRows = kTile.transposed_rows;

 public:
  __device__ __forceinline__ PartValues(const Params& p, u32 smem, int part)
      : values_(p, smem, part, kBarrier),
        probs_(smem),
        next_(smem),
        lane_(static_cast<int>(threadIdx.x) & 31) {}

  // Then all threads have reported rows in `word`.
  __device__ __forceinline__ void run(const SplitItem& item, u32 rows, u32 word) {
    values_.begin();
    values_.zero_tail(item, item.block_max - 1);
    wait();
    float ref = 0.0f;
#pragma unroll 1
    for (int n = item.block_max - 1;; --n) {
      if (load_shared(next_.moves()) != 0 && n < item.block_max - 1) [[unlikely]]
        rescale();
      if (n == item.block_min) ref = __uint_as_float(load_shared(next_.reference(lane_ % kRows)));
      values_.issue(next_.buffer());
      values_.keep();
      values_.advance();
      next_.next();
      if (n > item.block_min) wait();  // while the product runs
      values_.finish();
      values_.release();
      probs_.release();
      if (n == item.block_min) break;
    }
    bar_sync(kSumsBarrier, 2 * 128);
    values_.store(item, ref, rows, word);
    bar_sync(kBarrier, 128);
  }

 private:
  __device__ __forceinline__ void wait() const {
    values_.wait();
    next_.wait_for_probs();
  }
  __device__ __forceinline__ void rescale() {
    float factor[TransposedThread<kRows>::kMine];
#pragma unroll
    for (int j = 0; j < TransposedThread<kRows>::kMine; ++j)
      factor[j] = __uint_as_float(load_shared(next_.factor(row_of_thread<kRows>(j, lane_))));
    values_.rescale(factor);
  }

  SplitValues<kTile, Element> values_;
  ProbRing<kTile> probs_, next_;
  const int lane_;
};

}  // namespace headrace::cuda::sm90::fwd
