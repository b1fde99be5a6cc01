// The tokens that the filters of sampling.h keep, as one lower bound on (logit, id) that each
// filter raises. Only a few candidates are sorted.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/sampling_args.h"
#include "ops/sampling.h"

namespace headrace {

// What is known of a row of logits without the logits.
struct LogitSummary {
  std::int64_t num_logits = 0;
  float max = 0;
  std::span<const float> maxima = {};  // of blocks of kLogitBlock logits
};

// Keeps logits above `logit`, and those equal to it with an id up to `last_token`.
struct LogitBound {
  float logit = -std::numeric_limits<float>::infinity();
  std::int32_t last_token = -1;
  bool keeps(float value, std::int32_t token) const {
    return (value > logit) | ((value == logit) & (token <= last_token));
  }
};

class LogitFilter {
 public:
  explicit LogitFilter(const DeviceInfo& device) : device_(device) {}

  // Keeps all tokens above -infinity. Does not copy the logits. False: one is NaN or +infinity.
  bool begin(std::span<const float> logits);

  // The same without the logits: `candidates` are all above -infinity that the filters may keep, or
  // that largest() may give, ascending by id.
  // sum: of the weights of all logits, at the temperature of keep_top_p() if it is the first
  // filter.
  void begin(const LogitSummary& summary, double sum, std::span<const Candidate> candidates);

  float max() const { return max_; }
  // No filter has taken a token.
  bool keeps_all() const { return bound_.last_token < 0; }
  std::int32_t argmax() const;  // the lowest id of the largest logit

  // The filters of the options, in their order.
  void apply(const SamplingOptions& options);
  // All that apply() may keep is above -infinity and at least this large. sum: as in begin().
  float needed(const SamplingOptions& options, const LogitSummary& summary, double sum);
  void keep_top_k(std::int64_t k, bool with_ties);
  void keep_top_p(double top_p, double temperature);
  void keep_min_p(double min_p, double temperature);

  // The `count` most likely tokens of those kept, descending, ties by id.
  std::span<const Candidate> largest(std::int64_t count);
  // The `count` largest logits of a row are at least this large.
  float least_of_largest(std::int64_t count, const LogitSummary& summary);

  // The distribution of the kept tokens; pick() draws one of its indices by u in [0, 1).
  Distribution distribution(double temperature);
  std::size_t pick(double u) const;

 private:
  static constexpr std::size_t kNumBuckets = 1024;

  bool has_logits() const { return !logits_.empty(); }
  void reserve(std::size_t vocab_size);
  float kth_largest_maximum(std::span<const float> maxima, std::int64_t k);
  float least_for_min_p(double min_p, double temperature) const;
  float least_for_top_p(double top_p, double temperature, double total, std::size_t num_kept) const;
  void raise(LogitBound bound);
  void gather(float at_least);
  bool gather_largest(std::int64_t count);
  void raise_to_mass(double goal, double temperature);
  double weigh(const float* values, std::size_t n, double temperature);
  double weigh_candidates(double temperature);

  DeviceInfo device_;
  std::span<const float> logits_;  // or, without them:
  std::span<const Candidate> known_;
  double known_sum_ = 0;
  std::int64_t num_logits_ = 0;
  float max_ = 0;
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
