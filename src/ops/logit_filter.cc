#include "ops/logit_filter.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "backends/cpu/sampling/sampling.h"
#include "base/math.h"
#include "core/sampling_args.h"

namespace headrace {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLeast = std::numeric_limits<float>::lowest();
constexpr std::int32_t kLastToken = std::numeric_limits<std::int32_t>::max();

bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

float round_up_to_float(double value) {
  const float nearest = static_cast<float>(value);
  return static_cast<double>(nearest) < value ? std::nextafter(nearest, kInfinity) : nearest;
}

}  // namespace

float kth_largest(std::span<const float> values, std::int64_t k, std::span<float> scratch) {
  if (k > std::ssize(values)) return -kInfinity;
  const auto begin = scratch.begin(), end = std::ranges::copy(values, begin).out;
  std::nth_element(begin, begin + (k - 1), end, std::greater<>());
  return begin[k - 1];
}

void keep_largest(std::vector<Candidate>& candidates, std::int64_t count) {
  if (std::ssize(candidates) > count) {
    std::ranges::nth_element(candidates, candidates.begin() + count, ranks_before);
    candidates.resize(static_cast<std::size_t>(count));
  }
  std::ranges::sort(candidates, ranks_before);
}

// exp((logit - max) / temperature) >= min_p
double min_p_offset(double min_p, double temperature) {
  return min_p == 0 ? -std::numeric_limits<double>::infinity() : temperature * std::log(min_p);
}

double filter_temperature(const SamplingOptions& o) {
  return o.order == SamplingOrder::llama_cpp ? 1 : o.temperature;
}

void LogitFilter::reserve(std::size_t vocab_size) {
  // The last of them, so that an allocation that failed is made again.
  if (weights_.size() >= vocab_size) return;
  all_tokens_.resize(vocab_size);
  std::iota(all_tokens_.begin(), all_tokens_.end(), 0);
  candidates_.reserve(vocab_size);
  const auto num_blocks = [&](std::int64_t block) {
    return static_cast<std::size_t>(ceil_div(static_cast<std::int64_t>(vocab_size), block));
  };
  maxima_.resize(num_blocks(kLogitBlock));
  selection_.resize(maxima_.size());
  block_sums_.resize(num_blocks(kWeightBlock));
  tokens_.resize(vocab_size);
  values_.resize(vocab_size);
  weights_.resize(vocab_size);
}

bool LogitFilter::begin(std::span<const float> logits) {
  reserve(logits.size());
  logits_ = logits;
  bound_ = {};
  num_logits_ = static_cast<std::int64_t>(logits.size());
  if (!cpu::block_maxima({logits.data(), num_logits_, maxima_.data()}, device_)) return false;
  const auto num_blocks = ceil_div(num_logits_, kLogitBlock);
  const auto end = maxima_.begin() + num_blocks;
  max_ = *std::max_element(maxima_.begin(), end);
  is_sparse_ = 4 * std::count(maxima_.begin(), end, -kInfinity) > 3 * num_blocks;
  return true;
}

std::int32_t LogitFilter::argmax() const {
  const auto block = std::find(maxima_.begin(), maxima_.end(), max_) - maxima_.begin();
  const auto found = std::find(logits_.begin() + block * kLogitBlock, logits_.end(), max_);
  return static_cast<std::int32_t>(found - logits_.begin());
}

// Sets candidates_ to the kept tokens with a logit of at least `at_least`, ascending by id.
void LogitFilter::gather(float at_least) {
  candidates_.clear();
  const float lowest = std::max(at_least, bound_.logit);
  const auto size = num_logits_;
  for (std::int64_t first = 0; first < size; first += kLogitBlock) {
    if (maxima_[static_cast<std::size_t>(first / kLogitBlock)] < lowest) continue;
    const std::int64_t last = std::min(first + kLogitBlock, size);
    Candidate block[kLogitBlock];
    // Branch-free: with a flat distribution half of the branches would be mispredicted.
    std::size_t count = 0;
    for (std::int64_t i = first; i < last; ++i) {
      block[count] = {logits_[static_cast<std::size_t>(i)], static_cast<std::int32_t>(i)};
      const bool is_large = block[count].logit >= at_least;
      count += is_large & bound_.keeps(block[count].logit, block[count].token) ? 1 : 0;
    }
    candidates_.insert(candidates_.end(), block, block + count);
  }
}

float LogitFilter::kth_largest_maximum(std::int64_t k) {
  const auto num_blocks = static_cast<std::size_t>(ceil_div(num_logits_, kLogitBlock));
  return kth_largest({maxima_.data(), num_blocks}, k, selection_);
}

// Moves the `count` largest to the front of candidates_, unordered but with the smallest of them
// last. False if fewer than `count` are kept; candidates_ then holds all of them.
bool LogitFilter::gather_largest(std::int64_t count) {
  gather(kth_largest_maximum(count));  // at least `count` logits are as large
  const auto size = static_cast<std::int64_t>(candidates_.size());
  if (size < count) return false;
  const auto begin = candidates_.begin();
  if (size > count) std::nth_element(begin, begin + (count - 1), candidates_.end(), ranks_before);
  if (size == count)
    std::iter_swap(std::max_element(begin, begin + count, ranks_before), begin + (count - 1));
  return true;
}

void LogitFilter::apply(const SamplingOptions& o) {
  const double temperature = filter_temperature(o);
  const bool is_min_p_first = o.order == SamplingOrder::vllm;
  if (is_min_p_first) keep_min_p(o.min_p, temperature);
  keep_top_k(o.top_k, o.order != SamplingOrder::llama_cpp);
  keep_top_p(o.top_p, temperature);
  if (!is_min_p_first) keep_min_p(o.min_p, temperature);
}

void LogitFilter::keep_top_k(std::int64_t k, bool with_ties) {
  if (k == 0 || k >= num_logits_ || !gather_largest(k)) return;
  const Candidate& last = candidates_[static_cast<std::size_t>(k - 1)];
  bound_.raise({last.logit, with_ties ? kLastToken : last.token});
}

void LogitFilter::keep_min_p(double min_p, double temperature) {
  if (min_p == 0) return;
  const double least = static_cast<double>(max_) + min_p_offset(min_p, temperature);
  bound_.raise({round_up_to_float(least), kLastToken});
}

void LogitFilter::keep_top_p(double top_p, double temperature) {
  if (top_p >= 1) return;
  const bool is_unfiltered = weighs_all();
  if (!is_unfiltered) gather(kLeast);
  const auto num_kept = is_unfiltered ? static_cast<std::size_t>(num_logits_) : candidates_.size();
  const double total =
      is_unfiltered ? weigh(logits_.data(), num_kept, temperature) : weigh_candidates(temperature);
  gather(least_for_top_p(top_p, temperature, total, num_kept));
  raise_to_mass(top_p * total, temperature);
}

// A bound that keeps enough for keep_top_p().
float LogitFilter::least_for_top_p(double top_p, double temperature, double total,
                                   std::size_t num_kept) const {
  // Weights below (1 - top_p) * total / num_kept sum to less than (1 - top_p) * total, so the
  // others reach top_p without them. 0.99, and a unit: margin for rounding.
  const double unneeded = 0.99 * (1 - top_p) * total / static_cast<double>(num_kept) - kMassUnit;
  if (unneeded <= 0) return -kInfinity;
  return static_cast<float>(static_cast<double>(max_) + temperature * std::log(unneeded));
}

// Raises the bound to the candidate at which the sum of the weights, in descending order, reaches
// the goal. Sums buckets of equal width in the logit first and sorts only the bucket that reaches
// it.
void LogitFilter::raise_to_mass(double goal, double temperature) {
  const std::size_t size = candidates_.size();
  float smallest = max_;
  for (const Candidate& candidate : candidates_) smallest = std::min(smallest, candidate.logit);
  const double range = static_cast<double>(max_) - static_cast<double>(smallest);
  const double scale = range > 0 ? (kNumBuckets - 1) / range : 0;
  const auto bucket_of = [&](float logit) {  // does not increase with the logit
    return static_cast<std::size_t>((static_cast<double>(max_) - static_cast<double>(logit)) *
                                    scale);
  };
  weigh_candidates(temperature);
  bucket_sums_.fill(0);
  for (std::size_t i = 0; i < size; ++i)
    bucket_sums_[bucket_of(candidates_[i].logit)] += mass_of(weights_[i]);
  double reached = 0;
  std::size_t bucket = 0;
  while (bucket < kNumBuckets && reached + bucket_sums_[bucket] < goal)
    reached += bucket_sums_[bucket++];
  if (bucket == kNumBuckets) return;  // of more than 2^19 tokens the sum may miss it by rounding
  std::erase_if(candidates_, [&](const Candidate& c) { return bucket_of(c.logit) != bucket; });
  std::sort(candidates_.begin(), candidates_.end(), ranks_before);
  weigh_candidates(temperature);
  std::size_t last = 0;
  for (; last + 1 < candidates_.size(); ++last) {
    reached += mass_of(weights_[last]);
    if (reached >= goal) break;
  }
  bound_.raise({candidates_[last].logit, candidates_[last].token});
}

std::span<const Candidate> LogitFilter::largest(std::int64_t count) {
  if (count == 0) return {};
  gather(kth_largest_maximum(count));
  keep_largest(candidates_, count);
  return candidates_;
}

double LogitFilter::weigh(const float* values, std::size_t n, double temperature) {
  num_weights_ = n;
  sum_ = cpu::exp_weights({.logits = values,
                           .num_logits = static_cast<std::int64_t>(n),
                           .max = max_,
                           .temperature = static_cast<float>(temperature),
                           .weights = weights_.data(),
                           .block_sums = block_sums_.data()},
                          device_);
  return sum_;
}

double LogitFilter::weigh_candidates(double temperature) {
  for (std::size_t i = 0; i < candidates_.size(); ++i) values_[i] = candidates_[i].logit;
  return weigh(values_.data(), candidates_.size(), temperature);
}

Distribution LogitFilter::distribution(double temperature) {
  if (weighs_all()) {
    weigh(logits_.data(), logits_.size(), temperature);
    return {{all_tokens_.data(), num_weights_}, {weights_.data(), num_weights_}, sum_};
  }
  gather(kLeast);
  for (std::size_t i = 0; i < candidates_.size(); ++i) tokens_[i] = candidates_[i].token;
  weigh_candidates(temperature);
  return {{tokens_.data(), num_weights_}, {weights_.data(), num_weights_}, sum_};
}

// The first index at which the cumulative mass exceeds u * sum. Block sums are compared first.
// u * sum may round to the sum; then the last one with a mass is picked.
std::size_t LogitFilter::pick(double u) const {
  const double target = u * sum_;
  const auto block_size = static_cast<std::size_t>(kWeightBlock);
  double before = 0;
  std::size_t picked = 0;
  for (std::size_t first = 0; first < num_weights_; first += block_size) {
    const double block_sum = block_sums_[first / block_size];
    const std::size_t last = std::min(first + block_size, num_weights_);
    const bool is_here = before + block_sum > target;
    if (is_here || last == num_weights_) {
      double reached = before;
      for (std::size_t i = first; i < last; ++i) {
        const double mass = mass_of(weights_[i]);
        if (mass == 0) continue;
        picked = i;
        reached += mass;
        if (reached > target) return picked;
      }
      return picked;
    }
    before += block_sum;
  }
  return picked;
}

}  // namespace headrace
