// Reference sampling in double for the tests, by the definitions in sampling.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ops/sampling.h"

namespace headrace::testing {

struct ReferenceDistribution {
  std::vector<bool> is_kept;
  std::vector<double> probability;  // at the options' temperature, 0 where not kept
};

class ReferenceFilters {
 public:
  explicit ReferenceFilters(const std::vector<float>& logits)
      : logits_(logits.begin(), logits.end()), kept_(logits.size()) {
    for (std::size_t i = 0; i < logits.size(); ++i) kept_[i] = !std::isinf(logits_[i]);
  }

  std::vector<double> probabilities(double temperature) const {
    double max = -std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < kept_.size(); ++i)
      if (kept_[i]) max = std::max(max, logits_[i]);
    std::vector<double> p(kept_.size());
    for (std::size_t i = 0; i < p.size(); ++i)
      p[i] = kept_[i] ? std::exp((logits_[i] - max) / temperature) : 0;
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& value : p) value /= sum;
    return p;
  }

  void top_k(std::int64_t k, bool with_ties) {
    const auto order = falling();
    if (k == 0 || k >= static_cast<std::int64_t>(order.size())) return;
    const double last = logits_[order[static_cast<std::size_t>(k - 1)]];
    for (std::size_t rank = static_cast<std::size_t>(k); rank < order.size(); ++rank)
      if (!with_ties || logits_[order[rank]] < last) kept_[order[rank]] = false;
  }

  void top_p(double top_p, double temperature) {
    if (top_p >= 1) return;
    const auto p = probabilities(temperature);
    double before = 0;
    for (const std::size_t i : falling()) {
      if (before >= top_p) kept_[i] = false;
      before += p[i];
    }
  }

  void min_p(double min_p, double temperature) {
    const auto p = probabilities(temperature);
    const double max = *std::max_element(p.begin(), p.end());
    for (std::size_t i = 0; i < p.size(); ++i)
      if (p[i] < min_p * max) kept_[i] = false;
  }

  ReferenceDistribution result(double temperature) const {
    return {kept_, probabilities(temperature)};
  }

 private:
  std::vector<std::size_t> falling() const {  // kept tokens, ties by id
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < kept_.size(); ++i)
      if (kept_[i]) order.push_back(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return logits_[a] > logits_[b]; });
    return order;
  }

  std::vector<double> logits_;
  std::vector<bool> kept_;
};

inline ReferenceDistribution reference_distribution(const std::vector<float>& logits,
                                                    const SamplingOptions& o) {
  ReferenceFilters filters(logits);
  if (o.order == SamplingOrder::vllm) {
    filters.min_p(o.min_p, o.temperature);
    filters.top_k(o.top_k, true);
    filters.top_p(o.top_p, o.temperature);
  } else if (o.order == SamplingOrder::transformers) {
    filters.top_k(o.top_k, true);
    filters.top_p(o.top_p, o.temperature);
    filters.min_p(o.min_p, o.temperature);
  } else {
    filters.top_k(o.top_k, false);
    filters.top_p(o.top_p, 1);
    filters.min_p(o.min_p, 1);
  }
  return filters.result(o.temperature);
}

}  // namespace headrace::testing
