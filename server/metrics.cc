#include "metrics.h"

#include <algorithm>

namespace headrace::server {
namespace {

using Json = nlohmann::json;

std::string number(double value) { return Json(value).dump(); }

void print_one(std::string& text, const std::string& name, const char* type, const char* help,
               double value) {
  text += "# HELP headrace:" + name + ' ' + help + "\n# TYPE headrace:" + name + ' ' + type +
          "\nheadrace:" + name + ' ' + number(value) + '\n';
}

double milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

double used_share(const headrace_engine_stats& stats) {
  return stats.num_pages == 0
             ? 0
             : 1 - static_cast<double>(stats.num_free_pages) / static_cast<double>(stats.num_pages);
}

Json stats_json(const headrace_engine_stats& stats) {
  return {{"requests", stats.num_requests},
          {"waiting", stats.num_waiting},
          {"running", stats.num_running},
          {"preempted", stats.num_preempted},
          {"finished", stats.num_finished},
          {"steps", stats.num_steps},
          {"scheduled_tokens", stats.num_scheduled_tokens},
          {"generated_tokens", stats.num_generated_tokens},
          {"prompt_tokens", stats.num_prompt_tokens},
          {"cached_tokens", stats.num_cached_tokens},
          {"preemptions", stats.num_preemptions},
          {"host_seconds", stats.host_seconds}};
}

}  // namespace

void Latency::add(Clock::time_point now, double seconds) {
  const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
  ++counts_[static_cast<std::size_t>(bound - kBounds.begin())];
  sum_ += seconds;
  if (recent_.size() == kMaxRecent) recent_.pop_front();
  recent_.emplace_back(now, seconds);
}

void Latency::print(std::string& text, const std::string& name, const char* help) const {
  text += "# HELP headrace:" + name + ' ' + help + "\n# TYPE headrace:" + name + " histogram\n";
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    count += counts_[i];
    const std::string bound = i < kBounds.size() ? number(kBounds[i]) : "+Inf";
    text += "headrace:" + name + "_bucket{le=\"" + bound + "\"} " + std::to_string(count) + '\n';
  }
  text += "headrace:" + name + "_sum " + number(sum_) + '\n';
  text += "headrace:" + name + "_count " + std::to_string(count) + '\n';
}

Json Latency::last_minute(Clock::time_point now) const {
  std::vector<double> values;
  for (const auto& [when, seconds] : recent_)
    if (now - when <= std::chrono::minutes(1)) values.push_back(seconds * 1e3);
  std::sort(values.begin(), values.end());
  const auto percentile = [&](double fraction) {
    if (values.empty()) return Json();
    return Json(
        values[static_cast<std::size_t>(fraction * static_cast<double>(values.size() - 1))]);
  };
  return {{"count", values.size()},
          {"p50", percentile(0.5)},
          {"p90", percentile(0.9)},
          {"p99", percentile(0.99)}};
}

std::string prometheus_text(const Metrics& metrics, const headrace_engine_stats& stats) {
  std::string text;
  const auto gauge = [&](const char* name, const char* help, double value) {
    print_one(text, name, "gauge", help, value);
  };
  const auto counter = [&](const char* name, const char* help, auto value) {
    print_one(text, name, "counter", help, static_cast<double>(value));
  };
  gauge("num_requests_running", "Sequences that are computed.",
        static_cast<double>(stats.num_running));
  gauge("num_requests_waiting", "Sequences that have not started.",
        static_cast<double>(stats.num_waiting));
  gauge("num_requests_preparing", "Requests that are tokenized, or wait for it.",
        static_cast<double>(metrics.num_preparing));
  gauge("kv_cache_usage_perc", "Share of the pages in use, 0 to 1.", used_share(stats));
  gauge("num_connections", "Open connections.", static_cast<double>(metrics.num_connections));
  counter("prompt_tokens_total", "Tokens of prompts.", stats.num_prompt_tokens);
  counter("generation_tokens_total", "Tokens of answers.", stats.num_generated_tokens);
  counter("prefix_cache_queries_total", "Tokens looked up.", stats.num_prompt_tokens);
  counter("prefix_cache_hits_total", "Tokens found.", stats.num_cached_tokens);
  counter("num_preemptions_total", "Preempted sequences.", stats.num_preemptions);
  counter("num_steps_total", "Steps of the engine.", stats.num_steps);
  counter("step_host_seconds_total", "Of the steps, without waits for a GPU or a CPU's forward.",
          stats.host_seconds);
  counter("num_refused_total", "Requests answered with 429.", metrics.num_refused);
  text +=
      "# HELP headrace:request_success_total Samples that have ended.\n"
      "# TYPE headrace:request_success_total counter\n";
  constexpr const char* kReasons[] = {"", "stop", "length", "abort", "error"};
  for (std::size_t i = 1; i < std::size(kReasons); ++i)
    text += "headrace:request_success_total{finished_reason=\"" + std::string(kReasons[i]) +
            "\"} " + std::to_string(metrics.num_finished[i]) + '\n';
  metrics.first_token.print(text, "time_to_first_token_seconds", "From request to first token.");
  metrics.between_tokens.print(text, "inter_token_latency_seconds", "Between tokens of a sample.");
  metrics.whole.print(text, "e2e_request_latency_seconds", "From request to its end.");
  return text;
}

Json engine_state(const Metrics& metrics, const headrace_engine_stats& stats) {
  const Clock::time_point now = Clock::now();
  Json steps = Json::array();
  for (std::size_t i = 1; i < metrics.steps.size(); ++i) {
    const headrace_engine_stats& last = metrics.steps[i - 1].stats;
    const headrace_engine_stats& step = metrics.steps[i].stats;
    const std::int64_t tokens = step.num_scheduled_tokens - last.num_scheduled_tokens;
    const std::int64_t generated = step.num_generated_tokens - last.num_generated_tokens;
    steps.push_back({{"ms", metrics.steps[i].seconds * 1e3},
                     {"ms_ago", milliseconds(now - metrics.steps[i].end)},
                     {"tokens", tokens},
                     {"generated", generated},
                     {"running", step.num_running},
                     {"waiting", step.num_waiting}});
  }
  return {
      {"stats", stats_json(stats)},
      {"pages",
       {{"total", stats.num_pages},
        {"free", stats.num_free_pages},
        {"used", stats.num_pages - stats.num_free_pages}}},
      {"prefix_cache", {{"queries", stats.num_prompt_tokens}, {"hits", stats.num_cached_tokens}}},
      {"steps", std::move(steps)},
      {"last_minute_ms",
       {{"time_to_first_token", metrics.first_token.last_minute(now)},
        {"inter_token_latency", metrics.between_tokens.last_minute(now)}}},
      {"connections", metrics.num_connections},
      {"preparing", metrics.num_preparing},
      {"refused", metrics.num_refused}};
}

}  // namespace headrace::server
