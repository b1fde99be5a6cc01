// What the server counts, for Prometheus and for the page.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine_thread.h"

namespace headrace::server {

// Seconds, in buckets for Prometheus and one by one for the last minute.
class Latency {
 public:
  void add(Clock::time_point now, double seconds);
  void print(std::string& text, const std::string& name, const char* help) const;
  // {"count", "p50", "p90", "p99"} of the last minute, in ms.
  nlohmann::json last_minute(Clock::time_point now) const;

 private:
  static constexpr std::array kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                         0.5,   1.0,    2.5,   5.0,  10.0,  25.0, 60.0};
  static constexpr std::size_t kMaxRecent = 1 << 14;

  std::array<std::uint64_t, kBounds.size() + 1> counts_{};
  double sum_ = 0;
  std::deque<std::pair<Clock::time_point, double>> recent_;
};

struct Metrics {
  Latency first_token, between_tokens, whole;
  std::array<std::uint64_t, 5> num_finished{};  // samples, by headrace_request_finish
  std::uint64_t num_refused = 0;                // 429
  std::deque<StepOutputs::Step> steps;          // the latest
  std::uint64_t num_connections = 0;            // now
  std::uint64_t num_preparing = 0;              // requests, now

  static constexpr std::size_t kMaxSteps = 64;
};

std::string prometheus_text(const Metrics& metrics, const headrace_engine_stats& stats);
nlohmann::json engine_state(const Metrics& metrics, const headrace_engine_stats& stats);

}  // namespace headrace::server
