// The tokens that the filters of sampling.h keep, as one lower bound on (logit, id) that each
// filter raises. Only a few candidates are sorted.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/sampling_args.h"
#include "ops/sampling.h"

namespace headrace {

// The k-th largest; -infinity: there are fewer. Overwrites `scratch`, at least as large.
float kth_largest(std::span<const float> values, std::int64_t k, std::span<float> scratch);

// Leaves the `count` largest, descending, ties by id.
void keep_largest(std::vector<Candidate>& candidates, std::int64_t count);

// Behind temperature, what min_p adds to the largest logit; -infinity: there is no min_p.
double min_p_offset(double min_p, double temperature);

// At which filters apply.
double filter_temperature(const SamplingOptions& options);

class LogitFilter {
 public:
  explicit LogitFilter(const DeviceInfo& device) : device_(device) {}

  // Keeps all tokens above -infinity. Does not copy the logits. False: one is NaN or +infinity.
  bool begin(std::span<const float> logits);

  float max() const { return max_; }
  std::int32_t argmax() const;  // the lowest id of the largest logit

  // The filters of the options, in their order.
  void apply(const SamplingOptions& options);
  void keep_top_k(std::int64_t k, bool with_ties);
  void keep_top_p(double top_p, double temperature);
  void keep_min_p(double min_p, double temperature);

  // The `count` most likely tokens of those kept, descending, ties by id.
  std::span<const Candidate> largest(std::int64_t count);
  // The distribution of the kept tokens; pick() draws one of its indices by u in [0, 1).
  Distribution distribution(double temperature);
  std::size_t pick(double u) const;

 private:
  static constexpr std::size_t kNumBuckets = 1024;

  void reserve(std::size_t vocab_size);
  // Instead of gathering those that are kept, which are then few. Sums of masses are exact, so what
  // is drawn does not depend on it.
  bool weighs_all() const { return bound_.keeps_all() && !is_sparse_; }
  float kth_largest_maximum(std::int64_t k);
  float least_for_top_p(double top_p, double temperature, double total, std::size_t num_kept) const;
  void gather(float at_least);
  bool gather_largest(std::int64_t count);
  void raise_to_mass(double goal, double temperature);
  double weigh(const float* values, std::size_t n, double temperature);
  double weigh_candidates(double temperature);

  DeviceInfo device_;
  std::span<const float> logits_;
  std::int64_t num_logits_ = 0;
  float max_ = 0;
  bool is_sparse_ = false;  // most blocks have no logit above -infinity: those of a mask
  LogitBound bound_;
  std::vector<float> maxima_, selection_;  // of blocks of kLogitBlock logits
  std::vector<Candidate> candidates_;
  std::vector<std::int32_t> tokens_, all_tokens_;
  std::vector<float> values_, weights_;
  std::vector<double> block_sums_;  // of blocks of kWeightBlock weights
  std::array<double, kNumBuckets> bucket_sums_;
  std::size_t num_weights_ = 0;
  double sum_ = 0;
};

}  // namespace headrace
