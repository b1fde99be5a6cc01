// headrace bench serve: latencies and throughput of an OpenAI-compatible server, under an open
// load: requests come at their times, whether or not earlier ones have ended.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>

#include "command.h"
#include "files.h"
#include "load_client.h"
#include "machine.h"
#include "options.h"
#include "printable.h"
#include "progress.h"
#include "serve_prompts.h"
#include "times.h"

namespace headrace::cli {
namespace {

struct BenchOptions {
  std::string url = "http://127.0.0.1:8000";
  std::string key_file;
  PromptOptions prompts;
  std::string prompt_kind = "random", endpoint = "completions";
  std::int64_t num_requests = 200, burst = 1, concurrency = 4096, timeout = 600;
  std::string rate = "inf";                // requests per second
  double slo_ttft_ms = 0, slo_itl_ms = 0;  // 0: none
  Format format = Format::text;
  std::string command_line;
};

constexpr std::size_t kMaxDetailBytes = 72;  // of a failure: its row fits 100 columns
const Range<double> kRates = {.low = 1e-3, .high = 1e6};

[[noreturn]] void fail_url(const std::string& text, const std::string& reason) {
  throw Error(HEADRACE_INVALID_ARGUMENT,
              "--url: \"" + text + "\" " + reason + "; pass, for example, http://127.0.0.1:8000");
}

// http://HOST[:PORT][/PATH]; an IPv6 address is in brackets.
Url parse_url(const std::string& text) {
  constexpr std::string_view kScheme = "http://";
  if (text.starts_with("https://")) fail_url(text, "needs TLS, which is not supported");
  if (!text.starts_with(kScheme)) fail_url(text, "does not begin with http://");
  const auto is_bad = [](char c) { return c <= ' ' || c > '~'; };
  if (std::any_of(text.begin(), text.end(), is_bad)) fail_url(text, "has a space or no ASCII");
  const std::size_t slash = std::min(text.find('/', kScheme.size()), text.size());
  std::string authority = text.substr(kScheme.size(), slash - kScheme.size());
  Url url{.host = {}, .port = "80", .path = text.substr(slash)};
  while (url.path.ends_with('/')) url.path.pop_back();
  const std::size_t colon = authority.rfind(':');
  if (colon != std::string::npos && authority.find(']', colon) == std::string::npos) {
    url.port = authority.substr(colon + 1);
    authority.resize(colon);
    const bool is_number =
        !url.port.empty() && url.port.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number || url.port.size() > 5 || std::stoi(url.port) > 65535)
      fail_url(text, "has the port \"" + url.port + "\", which is no number up to 65535");
  }
  if (authority.starts_with('[') && authority.ends_with(']'))
    authority = authority.substr(1, authority.size() - 2);
  if (authority.empty()) fail_url(text, "names no host");
  url.host = std::move(authority);
  return url;
}

std::string key_of(const std::string& path) {
  if (path.empty()) return {};
  const std::string text = read_text(path);
  std::string key = text.substr(0, text.find_first_of("\r\n"));
  if (key.empty())
    throw Error(HEADRACE_INVALID_ARGUMENT, path + ": the first line is empty; write the key there");
  return key;
}

// Seconds after the start. Groups of `burst` requests come together, at intervals with an
// exponential distribution, so that their mean rate is `rate`: a Poisson process if `burst` is 1.
std::vector<double> arrivals_of(const BenchOptions& options) {
  constexpr std::int64_t kArrivalStream = -3;
  RandomNumbers random(options.prompts.seed, kArrivalStream);
  const double rate = options.rate == "inf" ? HUGE_VAL : std::stod(options.rate);
  const auto burst = static_cast<double>(options.burst);
  std::vector<double> arrivals;
  double time = 0;
  for (std::int64_t i = 0; i < options.num_requests; ++i) {
    if (i > 0 && i % options.burst == 0) time -= std::log(random.unit()) * burst / rate;
    arrivals.push_back(time);
  }
  return arrivals;
}

// Latencies of the complete requests in milliseconds, and what they add up to.
struct Summary {
  std::int64_t num_complete = 0, num_good = 0, num_prompt_tokens = 0, num_answer_tokens = 0;
  double seconds = 0;
  std::vector<double> ttft, tpot, itl, latency, wait;
  std::map<std::string, std::pair<std::int64_t, std::string>> failures;  // count, first detail
};

void add_complete(const LoadResult& result, const BenchOptions& options, Summary& summary) {
  const double ttft = (result.tokens.front() - result.sent) * 1e3;
  double longest_itl = 0;
  for (std::size_t i = 1; i < result.tokens.size(); ++i) {
    summary.itl.push_back((result.tokens[i] - result.tokens[i - 1]) * 1e3);
    longest_itl = std::max(longest_itl, summary.itl.back());
  }
  summary.ttft.push_back(ttft);
  if (result.num_answer_tokens > 1)
    summary.tpot.push_back((result.tokens.back() - result.tokens.front()) * 1e3 /
                           static_cast<double>(result.num_answer_tokens - 1));
  summary.latency.push_back((result.end - result.sent) * 1e3);
  summary.wait.push_back((result.sent - result.due) * 1e3);
  ++summary.num_complete;
  summary.num_prompt_tokens += result.num_prompt_tokens;
  summary.num_answer_tokens += result.num_answer_tokens;
  const auto meets = [](double value, double slo) { return slo == 0 || value <= slo; };
  if (meets(ttft, options.slo_ttft_ms) && meets(longest_itl, options.slo_itl_ms))
    ++summary.num_good;
}

Summary summary_of(const std::vector<LoadResult>& results, const BenchOptions& options) {
  Summary summary;
  for (const LoadResult& result : results) {
    summary.seconds = std::max(summary.seconds, result.end);
    if (result.failure.empty()) {
      add_complete(result, options, summary);
      continue;
    }
    auto& [count, detail] = summary.failures[result.failure];
    if (count++ == 0) detail = printable(result.detail.substr(0, kMaxDetailBytes));
  }
  return summary;
}

Table throughput_table(const Summary& summary, const BenchOptions& options) {
  const auto per_second = [&](std::int64_t count) {
    return static_cast<double>(count) / summary.seconds;
  };
  const bool has_slo = options.slo_ttft_ms > 0 || options.slo_itl_ms > 0;
  return {
      .key = "rows",
      .columns = {{"requests", "requests"},
                  {"complete", "complete"},
                  {"failed", "failed"},
                  {"seconds", "s", 2},
                  {"requests_per_s", "requests/s", 2},
                  {"goodput_per_s", "goodput/s", 2},
                  {"prompt_tokens", "prompt"},
                  {"answer_tokens", "answer"},
                  {"answer_tokens_per_s", "answer/s"},
                  {"total_tokens_per_s", "total/s"}},
      .rows = {{options.num_requests, summary.num_complete,
                options.num_requests - summary.num_complete, summary.seconds,
                per_second(summary.num_complete),
                has_slo ? Cell(per_second(summary.num_good)) : Cell(), summary.num_prompt_tokens,
                summary.num_answer_tokens, per_second(summary.num_answer_tokens),
                per_second(summary.num_prompt_tokens + summary.num_answer_tokens)}}};
}

Table latency_table(const Summary& summary) {
  Table table{.key = "latencies",
              .columns = {{"latency", "latency, ms"},
                          {"count", "count"},
                          {"ms_mean", "mean", 2},
                          {"ms_median", "median", 2},
                          {"ms_p90", "p90", 2},
                          {"ms_p99", "p99", 2},
                          {"ms_max", "max", 2}},
              .rows = {}};
  const auto add = [&](const char* name, std::vector<double> ms) {
    if (ms.empty()) return;
    std::sort(ms.begin(), ms.end());
    const auto count = static_cast<std::int64_t>(ms.size());
    const double sum = std::accumulate(ms.begin(), ms.end(), 0.0);
    table.rows.push_back({std::string(name), count, sum / static_cast<double>(count),
                          percentile(ms, 0.5), percentile(ms, 0.9), percentile(ms, 0.99),
                          ms.back()});
  };
  add("TTFT", summary.ttft);
  add("TPOT", summary.tpot);
  add("ITL", summary.itl);
  add("request", summary.latency);
  add("client queue", summary.wait);
  return table;
}

Table failure_table(const Summary& summary) {
  Table table{.key = "failures",
              .columns = {{"failure", "failure"}, {"count", "count"}, {"detail", "the first"}},
              .rows = {}};
  for (const auto& [name, failure] : summary.failures)
    table.rows.push_back({name, failure.first, failure.second});
  return table;
}

int run_bench(BenchOptions options) {
  static const std::map<std::string, PromptKind> kKinds = {{"random", PromptKind::random},
                                                           {"prefix", PromptKind::prefix},
                                                           {"sharegpt", PromptKind::sharegpt}};
  PromptOptions& wanted = options.prompts;
  wanted.kind = kKinds.at(options.prompt_kind);
  wanted.is_chat = options.endpoint == "chat";
  if (wanted.kind == PromptKind::prefix) wanted.prefix_tokens = wanted.prompt_tokens / 2;
  if (wanted.kind == PromptKind::sharegpt && wanted.file.empty())
    throw Error(HEADRACE_INVALID_ARGUMENT, "--prompt sharegpt: no file; pass --file FILE");
  const ServePrompts prompts(wanted);
  Progress progress("requests");
  const Load load{.url = parse_url(options.url),
                  .path = wanted.is_chat ? "/v1/chat/completions" : "/v1/completions",
                  .api_key = key_of(options.key_file),
                  .arrivals = arrivals_of(options),
                  .body = [&](std::int64_t idx) { return prompts.body(idx); },
                  .concurrency = options.concurrency,
                  .timeout = options.timeout,
                  .on_end =
                      [&](std::int64_t num_ended) {
                        progress.show(
                            static_cast<std::uint64_t>(num_ended),
                            static_cast<std::uint64_t>(options.num_requests),
                            std::to_string(num_ended) + '/' + std::to_string(options.num_requests));
                      }};
  const Summary summary = summary_of(run_load(load), options);
  progress.clear();
  Report report;
  report.notes = joined<Note>({run_notes("serve", options.command_line, cpu_info()),
                               {{"url", options.url},
                                {"model", wanted.model},
                                {"endpoint", options.endpoint},
                                {"prompts", options.prompt_kind},
                                {"rate", options.rate}}});
  report.tables = {throughput_table(summary, options), latency_table(summary)};
  if (!summary.failures.empty()) report.tables.push_back(failure_table(summary));
  print_report(report, options.format);
  return summary.num_complete > 0 ? kExitOk : kExitFailure;
}

void add_load_options(CLI::App& app, BenchOptions& options) {
  const auto add_count = [&](const char* name, std::int64_t& value, std::int64_t most,
                             const char* text) {
    app.add_option(name, value, text)
        ->transform(whole_number({1, most}))
        ->option_text("N [" + std::to_string(value) + ']');
  };
  add_count("--requests", options.num_requests, 1 << 20, "requests of the run");
  const auto check_rate = [](std::string& text) {
    return text == "inf" ? std::string() : real_number(kRates)(text);
  };
  app.add_option("--rate", options.rate, "requests per second, at random times; inf: all at once")
      ->check(CLI::Validator(check_rate, "RATE"))
      ->option_text("X [inf]");
  add_count("--burst", options.burst, 1 << 20, "requests that come together");
  add_count("--concurrency", options.concurrency, 1 << 16, "open requests; others wait for an end");
  add_count("--timeout", options.timeout, 86400, "seconds without a byte until a request fails");
  const auto add_slo = [&](const char* name, double& value, const char* text) {
    app.add_option(name, value, text)
        ->transform(real_number({.low = 1e-3, .high = 1e9}))
        ->option_text("MS");
  };
  add_slo("--slo-ttft", options.slo_ttft_ms, "goodput: longest TTFT of a request");
  add_slo("--slo-itl", options.slo_itl_ms, "goodput: longest ITL of a request");
}

void add_prompt_options(CLI::App& app, BenchOptions& options) {
  PromptOptions& prompts = options.prompts;
  constexpr std::int64_t kMost = 1 << 20;
  app.add_option("--endpoint", options.endpoint, "of the API")
      ->check(CLI::IsMember({"completions", "chat"}))
      ->option_text("completions|chat [completions]");
  app.add_option("--prompt", options.prompt_kind,
                 "prefix: prompts share their first half; sharegpt: of a file")
      ->check(CLI::IsMember({"random", "prefix", "sharegpt"}))
      ->option_text("random|prefix|sharegpt [random]");
  app.add_option("-f,--file", prompts.file, "conversations in ShareGPT's JSON")
      ->option_text("FILE");
  const auto add_count = [&](const char* name, std::int64_t& value, const char* text) {
    app.add_option(name, value, text)
        ->transform(whole_number({1, kMost}))
        ->option_text("N [" + std::to_string(value) + ']');
  };
  add_count("--prompt-tokens", prompts.prompt_tokens, "of a prompt; words of a chat");
  add_count("--answer-tokens", prompts.answer_tokens, "of an answer, at most");
  add_count("--vocab", prompts.vocab, "random token ids are below it");
  app.add_option("--seed", prompts.seed, "of prompts and arrivals")
      ->transform(whole_number({0, std::int64_t{1} << 62}))
      ->option_text("N [0]");
  app.add_option("--temperature", prompts.temperature, "0: greedy")
      ->transform(real_number({.low = 1e-5, .high = 1e5, .also = 0}))
      ->option_text("X [0]");
  app.add_flag("--ignore-eos", prompts.ignore_eos, "continue past end-of-text");
}

}  // namespace

void add_bench_serve(CLI::App& bench, Action& action, const std::string& command_line) {
  CLI::App* app = bench.add_subcommand(
      "serve", "Load an OpenAI-compatible server: latencies, throughput, goodput");
  auto options = std::make_shared<BenchOptions>();
  options->command_line = command_line;
  app->add_option("--url", options->url, "of the server")
      ->option_text("URL [http://127.0.0.1:8000]");
  app->add_option("--model", options->prompts.model, "name of the model in requests")
      ->required()
      ->option_text("NAME");
  app->add_option("--api-key-file", options->key_file, "the key is its first line")
      ->option_text("FILE");
  add_prompt_options(*app, *options);
  add_load_options(*app, *options);
  add_format_option(*app, options->format);
  app->callback([&action, options] { action = [options] { return run_bench(*options); }; });
}

}  // namespace headrace::cli
