// The bound that the filters of a row leave (ops/logit_filter.h), and a token of what it keeps.
// Masses are integers, of kMassUnit, so that sums by many threads are those of the CPU.
#include <climits>

#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sampling/logit_filters.h"
#include "backends/cuda/sampling/logit_row.cuh"
#include "base/math.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
// Keys of logits are searched from the top, by digits of so many bits.
constexpr int kDigitBits = 11, kBins = 1 << kDigitBits, kBinsOfThread = kBins / kThreads;
// A bin is summed in parts, as shared memory adds 32 bits at a time: 2^19 of 12 bits fit.
constexpr int kParts = 3, kPartBits = 12;
constexpr int kLastToken = INT_MAX;
constexpr double kUnits = 1 / kMassUnit;  // of a weight of 1

using Mass = unsigned long long;
static_assert(kMaxDeviceLogits <= std::int64_t{1} << (32 - kPartBits - 1));
static_assert(kUnits < 0x1p36 && kParts * kPartBits == 36);

struct Shared {
  u32 bins[kParts][kBins];
  Mass of_warps[kWarps];
  int counts[kWarps];
  Mass before;
  int bin, token;
};

// Floats in the order of their keys; -0 has that of 0.
__device__ __forceinline__ u32 key_of(float x) {
  const u32 bits = __float_as_uint(__fadd_rn(x, 0.0f));
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float float_of(u32 key) {
  return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
}

// What a CTA knows of its row.
class FilteredRow {
 public:
  __device__ FilteredRow(const LogitQuery& query, int vocab_size, const float* maxima, float max,
                         Shared& shared, unsigned short* blocks)
      : query_(query),
        vocab_size_(vocab_size),
        maxima_(maxima),
        num_maxima_((vocab_size + kBlock - 1) / kBlock),
        max_(max),
        s_(shared),
        blocks_(blocks) {}

  __device__ const LogitBound& bound() const { return bound_; }
  __device__ void keep_min_p();
  __device__ void keep_top_k();
  __device__ void keep_top_p(const double* block_sums);
  // Of those kept.
  __device__ int draw(double& sum);

 private:
  static constexpr int kBlock = static_cast<int>(kLogitBlock);
  struct Reached {
    bool is_there;
    float logit;
    Mass before;  // of larger logits
  };

  __device__ int warp() const { return static_cast<int>(threadIdx.x) / 32; }
  __device__ Mass mass(float logit, float temperature) const {
    return __double2ull_rn(static_cast<double>(weight_of(logit, max_, temperature)) * kUnits);
  }
  template <class IsListed>
  __device__ void list_blocks(IsListed is_listed);
  template <class Visit>
  __device__ void visit_block(int i, Visit visit) const;
  template <class ForEach>
  __device__ Reached descend(Mass goal, ForEach for_each);
  template <class MassOf>
  __device__ Reached descend_kept(Mass goal, MassOf mass_of);
  template <class MassOf>
  __device__ Mass add_up(MassOf mass_of);
  template <class MassOf>
  __device__ int first_reaching(Mass goal, MassOf mass_of);
  __device__ Mass total_of(Mass mine);
  __device__ Mass total_of(const double* block_sums);

  const LogitQuery& query_;
  const int vocab_size_;
  const float* const maxima_;
  const int num_maxima_;
  const float max_;
  Shared& s_;
  unsigned short* const blocks_;  // that may have kept logits, ascending
  int num_blocks_ = 0;
  LogitBound bound_;
};

// Lists blocks by their maxima. A warp has a segment of them.
template <class IsListed>
__device__ void FilteredRow::list_blocks(IsListed is_listed) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int segment = (num_maxima_ + kThreads - 1) / kThreads * 32;
  const int first = warp() * segment, last = min(first + segment, num_maxima_);
  const auto is_kept = [&](int block) {
    return block < last && maxima_[block] > -INFINITY && is_listed(maxima_[block]);
  };
  int count = 0;
  for (int block = first; block < last; block += 32)
    count += __popc(__ballot_sync(kAll, is_kept(block + lane)));
  __syncthreads();
  if (lane == 0) s_.counts[warp()] = count;
  __syncthreads();
  int at = 0;
  num_blocks_ = 0;
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp()) at += s_.counts[i];
    num_blocks_ += s_.counts[i];
  }
  for (int block = first; block < last; block += 32) {
    const bool is_mine = is_kept(block + lane);
    const u32 kept = __ballot_sync(kAll, is_mine);
    if (is_mine)
      blocks_[at + __popc(kept & ((1u << lane) - 1))] = static_cast<unsigned short>(block + lane);
    at += __popc(kept);
  }
  __syncthreads();
}

// visit(token, logit, is_kept) by all lanes of a warp, for half of a block at a time.
template <class Visit>
__device__ void FilteredRow::visit_block(int i, Visit visit) const {
  float logits[2];
  const int first = blocks_[i] * kBlock + static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = first + half * 32;
    logits[half] = token < vocab_size_ ? logit_at(query_, token) : -INFINITY;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = first + half * 32;
    visit(token, logits[half], bound_.keeps(logits[half], token));
  }
}

// Where the masses, added from the largest logit on, reach the goal. for_each(add) calls
// add(logit, mass) for all.
template <class ForEach>
__device__ FilteredRow::Reached FilteredRow::descend(Mass goal, ForEach for_each) {
  u32 prefix = 0;
  Mass before = 0;
  for (int low = 32; low > 0;) {
    const int high = low;  // of the digit's bits
    low = max(0, high - kDigitBits);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kParts * kBins; i += kThreads)
      s_.bins[i / kBins][i % kBins] = 0;
    if (threadIdx.x == 0) s_.bin = -1;
    __syncthreads();
    for_each([&](float logit, Mass mass) {
      const u32 key = key_of(logit);
      if (high < 32 && key >> high != prefix) return;
      const u32 bin = key >> low & ((1u << (high - low)) - 1);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const u32 bits = static_cast<u32>(mass >> (part * kPartBits)) & ((1u << kPartBits) - 1);
        if (bits != 0) atomicAdd(&s_.bins[part][bin], bits);
      }
    });
    __syncthreads();
    // A thread has some bins, the first thread the largest.
    Mass mine[kBinsOfThread], sum = 0;
    const int top = kBins - 1 - static_cast<int>(threadIdx.x) * kBinsOfThread;
#pragma unroll
    for (int i = 0; i < kBinsOfThread; ++i) {
      mine[i] = 0;
      for (int part = 0; part < kParts; ++part)
        mine[i] += Mass{s_.bins[part][top - i]} << (part * kPartBits);
      sum += mine[i];
    }
    const Mass scanned = warp_scan(sum);
    if (threadIdx.x % 32 == 31) s_.of_warps[warp()] = scanned;
    __syncthreads();
    Mass reached = before + scanned - sum;
    for (int i = 0; i < warp(); ++i) reached += s_.of_warps[i];
#pragma unroll
    for (int i = 0; i < kBinsOfThread; ++i) {
      if (reached < goal && reached + mine[i] >= goal) {  // of one thread
        s_.bin = top - i;
        s_.before = reached;
      }
      reached += mine[i];
    }
    __syncthreads();
    if (s_.bin < 0) return {false, 0, 0};
    prefix = prefix << (high - low) | static_cast<u32>(s_.bin);
    before = s_.before;
  }
  return {true, float_of(prefix), before};
}

template <class MassOf>
__device__ FilteredRow::Reached FilteredRow::descend_kept(Mass goal, MassOf mass_of) {
  return descend(goal, [&](auto add) {
    for (int i = warp(); i < num_blocks_; i += kWarps)
      visit_block(i, [&](int, float logit, bool is_kept) {
        if (is_kept) add(logit, mass_of(logit));
      });
  });
}

// Of all threads; of_warps has those of each warp.
__device__ __forceinline__ Mass FilteredRow::total_of(Mass mine) {
  const Mass sum = warp_scan(mine);
  __syncthreads();
  if (threadIdx.x % 32 == 31) s_.of_warps[warp()] = sum;
  __syncthreads();
  Mass total = 0;
  for (const Mass of_warp : s_.of_warps) total += of_warp;
  return total;
}

// The masses of those kept; of_warps has those of each warp's segment of the listed blocks.
template <class MassOf>
__device__ Mass FilteredRow::add_up(MassOf mass_of) {
  const int segment = (num_blocks_ + kWarps - 1) / kWarps;
  Mass sum = 0;
  for (int i = warp() * segment; i < min((warp() + 1) * segment, num_blocks_); ++i)
    visit_block(i, [&](int, float logit, bool is_kept) { sum += is_kept ? mass_of(logit) : 0; });
  return total_of(sum);
}

// The first token, in the order of ids, at which the masses that add_up() added reach the goal.
template <class MassOf>
__device__ int FilteredRow::first_reaching(Mass goal, MassOf mass_of) {
  const int segment = (num_blocks_ + kWarps - 1) / kWarps;
  Mass before = 0;
  for (int i = 0; i < warp(); ++i) before += s_.of_warps[i];
  if (before < goal && before + s_.of_warps[warp()] >= goal)
    for (int i = warp() * segment; before < goal; ++i)
      visit_block(i, [&](int token, float logit, bool is_kept) {
        const Mass reached = before + warp_scan(is_kept ? mass_of(logit) : 0);
        const u32 there = __ballot_sync(kAll, reached >= goal);
        if (before < goal && there != 0 && static_cast<int>(threadIdx.x) % 32 == __ffs(there) - 1)
          s_.token = token;
        before = __shfl_sync(kAll, reached, 31);
      });
  __syncthreads();
  return s_.token;
}

__device__ inline Mass FilteredRow::total_of(const double* block_sums) {
  const int count =
      (vocab_size_ + static_cast<int>(kWeightBlock) - 1) / static_cast<int>(kWeightBlock);
  Mass sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads)
    sum += __double2ull_rn(block_sums[i] * kUnits);
  return total_of(sum);
}

__device__ inline void FilteredRow::keep_min_p() {
  if (!query_.filters.has_min_p()) return;
  const double least = __dadd_rn(static_cast<double>(max_), query_.filters.min_p_offset);
  bound_.raise({__double2float_ru(least), kLastToken});
}

__device__ inline void FilteredRow::keep_top_k() {
  const auto k = static_cast<Mass>(query_.filters.top_k);
  if (k == 0) return;
  // As many logits are at least as large as that maximum.
  const Reached maximum = descend(k, [&](auto add) {
    for (int i = static_cast<int>(threadIdx.x); i < num_maxima_; i += kThreads) add(maxima_[i], 1);
  });
  const float least = fmaxf(bound_.logit, maximum.is_there ? maximum.logit : -INFINITY);
  list_blocks([&](float of_block) { return of_block >= least; });
  const Reached last = descend_kept(k, [](float) { return Mass{1}; });
  if (!last.is_there) return;
  int token = kLastToken;
  if (!query_.filters.keeps_ties) {
    const auto is_tie = [&](float logit) { return Mass{logit == last.logit}; };
    add_up(is_tie);
    token = first_reaching(k - last.before, is_tie);
  }
  bound_.raise({last.logit, token});
}

__device__ inline void FilteredRow::keep_top_p(const double* block_sums) {
  const double top_p = query_.filters.top_p;
  if (!(top_p < 1)) return;
  const float temperature = query_.temperature;
  const auto mass_of = [&](float logit) { return mass(logit, temperature); };
  Mass total;
  if (bound_.keeps_all()) {
    total = total_of(block_sums);
    // As LogitFilter::least_for_top_p(): smaller ones are not needed.
    const double unneeded = 0.99 * (1 - top_p) * static_cast<double>(total) / vocab_size_ - 1;
    list_blocks([&](float of_block) { return static_cast<double>(mass_of(of_block)) >= unneeded; });
  } else {
    list_blocks([&](float of_block) { return of_block >= bound_.logit; });
    total = add_up(mass_of);
  }
  const Mass goal = __double2ull_ru(__dmul_rn(top_p, static_cast<double>(total)));
  const Reached last = descend_kept(goal, mass_of);
  if (!last.is_there) return;
  const auto of_tie = [&](float logit) { return logit == last.logit ? mass_of(logit) : 0; };
  add_up(of_tie);
  bound_.raise({last.logit, first_reaching(goal - last.before, of_tie)});
}

__device__ inline int FilteredRow::draw(double& sum) {
  list_blocks([&](float of_block) { return of_block >= bound_.logit; });
  const auto mass_of = [&](float logit) { return mass(logit, query_.filtered_temperature); };
  const Mass total = add_up(mass_of);
  sum = static_cast<double>(total) / kUnits;
  const double target = __dmul_rn(query_.uniform, sum) * kUnits;
  return first_reaching(min(__double2ull_rd(target) + 1, total), mass_of);
}

__global__ void __launch_bounds__(kThreads) filtered_draw_kernel(const DrawTokensArgs p) {
  extern __shared__ unsigned short blocks[];  // [blocks of logits]
  __shared__ Shared shared;
  const LogitQuery query = p.queries[blockIdx.x];
  if (!query.is_filtered) return;
  const std::int64_t num_maxima = (p.vocab_size + kLogitBlock - 1) / kLogitBlock;
  const std::int64_t num_sums = (p.vocab_size + kWeightBlock - 1) / kWeightBlock;
  const float* const maxima = p.maxima + blockIdx.x * num_maxima;
  const float max = row_max<kThreads>(maxima, num_maxima);
  if (!isfinite(max)) return;
  FilteredRow row(query, static_cast<int>(p.vocab_size), maxima, max, shared, blocks);
  if (query.filters.is_min_p_first) row.keep_min_p();
  row.keep_top_k();
  row.keep_top_p(p.block_sums + blockIdx.x * num_sums);
  if (!query.filters.is_min_p_first) row.keep_min_p();
  double sum;
  const int token = row.draw(sum);
  if (threadIdx.x > 0) return;
  p.drawn[blockIdx.x] = {.token = token,
                         .logit = logit_at(query, token),
                         .model_logit = query.model_row[token],
                         .max = max,
                         .sum = sum,
                         .bound = row.bound()};
  p.tokens[blockIdx.x] = token;
}

}  // namespace

Status draw_filtered(const DrawTokensArgs& call, Stream stream) {
  const std::int64_t bytes = ceil_div(call.vocab_size, kLogitBlock) * 2;
  return launch({.name = "logit_filters",
                 .grid = dim3(static_cast<unsigned>(call.num_queries)),
                 .block = dim3(kThreads),
                 .smem_bytes = static_cast<unsigned>(bytes)},
                static_cast<cudaStream_t>(stream), filtered_draw_kernel, call);
}

}  // namespace headrace::cuda
