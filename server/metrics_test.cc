// What /metrics and /v1/engine print: every count has a value of its own, and the whole answer is
// compared.
#include "metrics.h"

#include <gtest/gtest.h>

#include <cstring>

namespace headrace::server {
namespace {

using Json = nlohmann::json;

// The i-th count is first + i, in the order of the struct; host_seconds comes after them.
headrace_engine_stats counts_from(std::int64_t first) {
  headrace_engine_stats stats{};
  stats.struct_size = sizeof stats;
  static_assert(sizeof stats == 15 * sizeof(std::int64_t), "name the new count in these tests");
  std::array<std::int64_t, 13> counts;
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = first + static_cast<std::int64_t>(i);
  std::memcpy(&stats.num_requests, counts.data(), sizeof counts);
  stats.host_seconds = static_cast<double>(first) + 13.5;
  return stats;
}

Metrics metrics_at(Clock::time_point now) {
  Metrics metrics;
  // 10 values of 1 to 10 s, and one that is older than a minute.
  metrics.first_token.add(now - std::chrono::seconds(70), 100);
  for (int i = 10; i > 0; --i) metrics.first_token.add(now, i);
  for (const double seconds : {0.001, 0.0011, 0.3, 1e9}) metrics.between_tokens.add(now, seconds);
  metrics.whole.add(now, 7);
  metrics.num_finished = {0, 21, 22, 23, 24};
  metrics.num_refused = 31;
  metrics.num_connections = 32;
  metrics.num_preparing = 33;
  metrics.steps.push_back({now - std::chrono::seconds(3), 1, counts_from(200)});
  headrace_engine_stats next = counts_from(300);
  metrics.steps.push_back({now - std::chrono::seconds(2), 0.5, next});
  next.num_scheduled_tokens += 7;
  next.num_generated_tokens += 8;
  next.num_running = 9;
  next.num_waiting = 10;
  metrics.steps.push_back({now - std::chrono::seconds(1), 0.25, next});
  return metrics;
}

TEST(Metrics, TheStateOfTheEngineIsWhatWasCounted) {
  Json state = engine_state(metrics_at(Clock::now()), counts_from(100));
  std::vector<double> ages;
  for (Json& step : state["steps"]) {
    ages.push_back(step["ms_ago"]);
    step.erase("ms_ago");
  }
  ASSERT_EQ(ages.size(), 2u);
  EXPECT_GE(ages[0], 2000);
  EXPECT_LT(ages[0], 60000);
  EXPECT_NEAR(ages[0] - ages[1], 1000, 1e-3);
  EXPECT_EQ(state, Json::parse(R"({
    "stats": {"requests": 100, "waiting": 101, "running": 102, "preempted": 103, "finished": 106,
              "steps": 107, "scheduled_tokens": 108, "generated_tokens": 109,
              "prompt_tokens": 110, "cached_tokens": 111, "preemptions": 112,
              "host_seconds": 113.5},
    "pages": {"total": 104, "free": 105, "used": -1},
    "prefix_cache": {"queries": 110, "hits": 111},
    "steps": [{"ms": 500.0, "tokens": 100, "generated": 100, "running": 302, "waiting": 301},
              {"ms": 250.0, "tokens": 7, "generated": 8, "running": 9, "waiting": 10}],
    "last_minute_ms": {
      "time_to_first_token": {"count": 10, "p50": 5000.0, "p90": 9000.0, "p99": 9000.0},
      "inter_token_latency": {"count": 4, "p50": 1.1, "p90": 300.0, "p99": 300.0}},
    "connections": 32, "preparing": 33, "refused": 31})"));
}

// Of nothing: no steps, and no percentiles.
TEST(Metrics, TheStateOfAnEngineThatHasDoneNothing) {
  const Json none = {{"count", 0}, {"p50", nullptr}, {"p90", nullptr}, {"p99", nullptr}};
  const Json state = engine_state({}, {});
  EXPECT_EQ(state["steps"], Json::array());
  EXPECT_EQ(state["last_minute_ms"],
            Json({{"time_to_first_token", none}, {"inter_token_latency", none}}));
}

// The values of the lines "headrace:NAME VALUE", without buckets.
std::map<std::string, double> values_of(const std::string& text) {
  std::map<std::string, double> values;
  const std::string mark = "\nheadrace:";
  for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) {
    const std::size_t begin = at + mark.size(), space = text.find(' ', begin);
    const std::string name = text.substr(begin, space - begin);
    if (name.find("_bucket") == std::string::npos) values[name] = std::stod(text.substr(space));
  }
  return values;
}

TEST(Metrics, PrometheusReadsWhatWasCounted) {
  headrace_engine_stats stats = counts_from(100);
  stats.num_pages = 200;
  stats.num_free_pages = 150;
  const std::string text = prometheus_text(metrics_at(Clock::now()), stats);
  EXPECT_EQ(values_of(text), (std::map<std::string, double>{
                                 {"num_requests_running", 102},
                                 {"num_requests_waiting", 101},
                                 {"num_requests_preparing", 33},
                                 {"kv_cache_usage_perc", 0.25},
                                 {"num_connections", 32},
                                 {"prompt_tokens_total", 110},
                                 {"generation_tokens_total", 109},
                                 {"prefix_cache_queries_total", 110},
                                 {"prefix_cache_hits_total", 111},
                                 {"num_preemptions_total", 112},
                                 {"num_steps_total", 107},
                                 {"step_host_seconds_total", 113.5},
                                 {"num_refused_total", 31},
                                 {"request_success_total{finished_reason=\"stop\"}", 21},
                                 {"request_success_total{finished_reason=\"length\"}", 22},
                                 {"request_success_total{finished_reason=\"abort\"}", 23},
                                 {"request_success_total{finished_reason=\"error\"}", 24},
                                 {"time_to_first_token_seconds_sum", 155},
                                 {"time_to_first_token_seconds_count", 11},
                                 {"inter_token_latency_seconds_sum", 1e9 + 0.3021},
                                 {"inter_token_latency_seconds_count", 4},
                                 {"e2e_request_latency_seconds_sum", 7},
                                 {"e2e_request_latency_seconds_count", 1}}));
  // A value on a bound is in its bucket; buckets add up.
  const std::string name = "headrace:inter_token_latency_seconds_bucket";
  for (const auto& [bound, count] : std::map<std::string, int>{
           {"0.001", 1}, {"0.0025", 2}, {"0.25", 2}, {"0.5", 3}, {"60.0", 3}, {"+Inf", 4}})
    EXPECT_NE(text.find('\n' + name + "{le=\"" + bound + "\"} " + std::to_string(count) + '\n'),
              std::string::npos)
        << bound;
  // Every value has its help and its type, in front of it.
  for (const auto& [line, value] : values_of(text)) {
    if (line.ends_with("_sum") || line.ends_with("_count")) continue;
    const std::string plain = line.substr(0, line.find('{'));
    const char* type = plain.ends_with("_total") ? " counter\n" : " gauge\n";
    EXPECT_NE(text.find("# HELP headrace:" + plain + ' '), std::string::npos) << plain;
    EXPECT_NE(text.find("# TYPE headrace:" + plain + type), std::string::npos) << plain;
  }
  for (const char* histogram :
       {"time_to_first_token", "inter_token_latency", "e2e_request_latency"})
    EXPECT_NE(text.find("# TYPE headrace:" + std::string(histogram) + "_seconds histogram\n"),
              std::string::npos);
}

}  // namespace
}  // namespace headrace::server
