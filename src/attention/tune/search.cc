#include "attention/tune/search.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "attention/predict/prediction.h"
#include "attention/select.h"

namespace headrace::tune {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Candidate {
  TuningConfig config{};
  double seconds = kInfinity;  // fastest round so far; predicted before there is one
};

double median_of(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class Search {
 public:
  Search(Plan& plan, const SearchOptions& options, const Measure& measure)
      : plan_(plan), options_(options), measure_(measure) {
    for (const TuningConfig& config : configs_of(*plan.kernel, plan.problem, plan.device))
      all_.push_back({config});
  }

  Status run(Found& found) {
    found.num_configs = num_left();
    HEADRACE_TRY(predict_all());
    drop_slow(kMostPredictedRatio);  // without a prediction all are 0
    found.num_timed = num_left();
    for (Candidate& c : all_) c.seconds = kInfinity;
    // Every sweep times all that are left once, and drops those that are far behind. The first one
    // also loads code and memory.
    for (const double ratio : {kInfinity, 1.5, 1.2, 1.1}) {
      for (Candidate& c : all_) {
        double seconds = 0;
        HEADRACE_TRY(time(c.config, seconds));
        c.seconds = std::min(c.seconds, seconds);
      }
      drop_slow(ratio);
    }
    found.call = {.config = {}, .seconds = all_[0].seconds, .own_seconds = all_[0].seconds};
    // The fastest of the sweeps may have been lucky: the next ones have a chance, too.
    constexpr std::size_t kMostFinalists = 3;
    for (std::size_t i = 0; i < kMostFinalists && all_.size() > 1; ++i) {
      const auto fastest = std::min_element(
          all_.begin() + 1, all_.end(),
          [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
      bool is_faster = false;
      HEADRACE_TRY(compare(fastest->config, found.call, is_faster));
      if (is_faster) break;
      all_.erase(fastest);
    }
    return std::nullopt;
  }

 private:
  int num_left() const { return static_cast<int>(all_.size()); }

  Status predict_all() {
    for (Candidate& c : all_) {
      HEADRACE_TRY(choose_config(c.config, plan_));
      c.seconds = predict::predict(plan_, options_.ceilings).seconds;
    }
    return std::nullopt;
  }

  Status time(const TuningConfig& config, double& seconds) {
    HEADRACE_TRY(choose_config(config, plan_));
    Result<double> measured = measure_(plan_);
    if (!measured.ok()) return std::move(measured.failure());
    seconds = measured.value();
    return std::nullopt;
  }

  // Removes candidates, but never the kernel's own choices, that take more than `ratio` times as
  // long as the fastest.
  void drop_slow(double ratio) {
    double fastest = kInfinity;
    for (const Candidate& c : all_) fastest = std::min(fastest, c.seconds);
    const TuningConfig own{};
    std::erase_if(
        all_, [&](const Candidate& c) { return c.config != own && c.seconds > ratio * fastest; });
  }

  // Times the two in turn, the first one alternating: what else the device does falls on both.
  Status compare(const TuningConfig& config, TunedCall& call, bool& is_faster) {
    std::vector<double> own_times, times;
    int num_wins = 0;
    for (int round = 0; round < options_.num_rounds; ++round) {
      double own = 0, other = 0;
      if (round % 2 == 0) HEADRACE_TRY(time({}, own));
      HEADRACE_TRY(time(config, other));
      if (round % 2 != 0) HEADRACE_TRY(time({}, own));
      own_times.push_back(own);
      times.push_back(other);
      num_wins += other < own;
    }
    const double own = median_of(own_times), other = median_of(times);
    is_faster = 4 * num_wins >= 3 * options_.num_rounds && own >= (1 + kLeastGain) * other;
    call = {.config = {}, .seconds = own, .own_seconds = own};
    if (is_faster) call = {.config = config, .seconds = other, .own_seconds = own};
    return std::nullopt;
  }

  Plan& plan_;
  const SearchOptions& options_;
  const Measure& measure_;
  std::vector<Candidate> all_{{}};  // the kernel's own choices first
};

}  // namespace

Result<Found> search(const Plan& plan, const SearchOptions& options, const Measure& measure) {
  Plan copy = plan;
  Found found;
  if (auto bad = Search(copy, options, measure).run(found)) return std::move(*bad);
  return found;
}

}  // namespace headrace::tune
