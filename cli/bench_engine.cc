// headrace bench engine: requests per second and latencies of continuous batching, without a
// server. All requests are there from the start, or come at the times of a trace.
#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <unordered_map>
#include <utility>

#include "command.h"
#include "files.h"
#include "machine.h"
#include "model_options.h"
#include "options.h"
#include "progress.h"
#include "request_trace.h"
#include "times.h"

namespace headrace::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchOptions {
  ModelChoice model;
  std::string path, like;  // one of them
  RandomModel random = {};
  SessionChoice session;
  std::int64_t num_requests = 64, prompt = 512, answer = 128;
  std::vector<std::string> traces;  // files instead of them
  double rest = 0;                  // seconds before each run
  SamplingOptions sampling = {};
  std::vector<std::int64_t> streams = {1, 8, 32};
  Format format = Format::text;
  std::string command_line;
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Workload {
  std::string trace;  // its file; empty: none
  std::vector<TracedRequest> requests;
};

std::vector<Workload> workloads_of(const BenchOptions& options) {
  std::vector<Workload> workloads;
  for (const std::string& path : options.traces)
    workloads.push_back({path, request_trace(read_text(path), path)});
  if (workloads.empty())
    workloads.push_back(
        {"", std::vector<TracedRequest>(static_cast<std::size_t>(options.num_requests),
                                        {.prompt = options.prompt, .answer = options.answer})});
  return workloads;
}

std::int64_t longest_of(const std::vector<Workload>& workloads) {
  std::int64_t num_tokens = 0;
  for (const Workload& workload : workloads)
    for (const TracedRequest& request : workload.requests)
      num_tokens = std::max(num_tokens, request.prompt + request.answer);
  return num_tokens;
}

// Prompts without a common prefix, so that each is computed.
Request request_of(const BenchOptions& options, const TracedRequest& traced,
                   std::int64_t vocab_size, std::int64_t idx) {
  Request request;
  for (std::int64_t i = 0; i < traced.prompt; ++i)
    request.prompt.push_back(
        static_cast<std::int32_t>(((idx + 1) * 104729 + i * 7919 + 17) % vocab_size));
  request.sampling = options.sampling;
  request.sampling.seed = static_cast<std::uint64_t>(idx);
  request.max_new_tokens = traced.answer;
  request.ignore_end = true;
  return request;
}

// Of the `num_streams` longest requests: no sequence waits for a page.
std::int64_t pages_of(const std::vector<TracedRequest>& requests, std::int64_t num_streams,
                      std::int64_t page_size) {
  std::vector<std::int64_t> pages;
  for (const TracedRequest& request : requests)
    pages.push_back((request.prompt + request.answer + page_size - 1) / page_size);
  std::sort(pages.begin(), pages.end(), std::greater<>());
  const auto num = std::min(pages.size(), static_cast<std::size_t>(num_streams));
  return std::accumulate(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(num),
                         std::int64_t{0});
}

struct Latencies {
  double seconds = 0;                         // of the run
  std::vector<double> first_tokens, between;  // sorted
  std::vector<double> host;                   // of the host, per step; sorted
};

// Adds each request when it is due, and takes the times of the tokens.
Latencies run_requests(Engine& engine, const std::vector<TracedRequest>& requests,
                       const std::function<Request(std::int64_t idx)>& request_at,
                       const std::string& label) {
  Latencies result;
  struct Times {
    double due = 0, last_token = -1;  // below 0: there was none
  };
  std::unordered_map<std::int64_t, Times> times;  // of a request's id
  const auto num_requests = static_cast<std::int64_t>(requests.size());
  const Clock::time_point begin = Clock::now();
  double host_seconds = 0;  // of the steps before
  for (std::int64_t next = 0;;) {
    for (; next < num_requests; ++next) {
      const double arrival = requests[static_cast<std::size_t>(next)].arrival;
      if (arrival > seconds_since(begin)) break;
      times[engine.add(request_at(next))].due = arrival;
    }
    if (!engine.step()) {
      if (next == num_requests) break;
      const double arrival = requests[static_cast<std::size_t>(next)].arrival;
      std::this_thread::sleep_for(
          std::chrono::duration<double>(std::max(0.0, arrival - seconds_since(begin))));
      continue;
    }
    const double now = seconds_since(begin);
    const headrace_engine_stats stats = engine.stats();
    result.host.push_back(stats.host_seconds - std::exchange(host_seconds, stats.host_seconds));
    while (const std::optional<Output> output = engine.poll()) {
      if (output->finish == HEADRACE_REQUEST_ERROR)
        throw Error(HEADRACE_INTERNAL,
                    "request " + std::to_string(output->id) + ": " + output->error);
      Times& of_request = times.at(output->id);
      if (of_request.last_token < 0)
        result.first_tokens.push_back(now - of_request.due);
      else
        result.between.push_back(now - of_request.last_token);
      of_request.last_token = now;
    }
    show_line(label + std::to_string(stats.num_finished) + " of " + std::to_string(num_requests) +
              " requests");
  }
  result.seconds = seconds_since(begin);
  show_line("");
  std::sort(result.first_tokens.begin(), result.first_tokens.end());
  std::sort(result.between.begin(), result.between.end());
  std::sort(result.host.begin(), result.host.end());
  return result;
}

double mean_of(const std::vector<TracedRequest>& requests, std::int64_t TracedRequest::*tokens) {
  double sum = 0;
  for (const TracedRequest& request : requests) sum += static_cast<double>(request.*tokens);
  return sum / static_cast<double>(requests.size());
}

Table make_table() {
  return {.key = "rows",
          .columns = {{.key = "trace", .title = "trace", .is_key = true},
                      {"streams", "streams"},
                      {"requests", "reqs"},
                      {"prompt_tokens", "prompt"},
                      {"answer_tokens", "answer"},
                      {"seconds", "s"},
                      {"answer_tokens_per_s", "answer/s"},
                      {"total_tokens_per_s", "total/s"},
                      {"ttft_ms_median", "TTFT ms"},
                      {"ttft_ms_p99", "p99"},
                      {"itl_ms_median", "ITL ms"},
                      {"itl_ms_p99", "p99"},
                      {"steps", "steps"},
                      {"host_us_per_step", "host us"},
                      {"host_us_median", "median"}},
          .rows = {}};
}

// Runs all requests, and returns a row of the table.
std::vector<Cell> run_with(const Model& model, const BenchOptions& options,
                           const Workload& workload, std::int64_t num_streams) {
  std::this_thread::sleep_for(std::chrono::duration<double>(options.rest));
  const std::vector<TracedRequest>& requests = workload.requests;
  EngineOptions wanted = engine_options(model, options.session);
  const std::int64_t whole_context = (wanted.max_tokens + wanted.page_size - 1) / wanted.page_size;
  wanted.num_pages = std::max(whole_context, pages_of(requests, num_streams, wanted.page_size));
  wanted.max_num_seqs = num_streams;
  const auto num_requests = static_cast<std::int64_t>(requests.size());
  wanted.max_requests = num_requests;
  Engine engine(model, wanted);
  const std::int64_t vocab_size = model.info().vocab_size;
  const Latencies times = run_requests(
      engine, requests,
      [&](std::int64_t idx) {
        return request_of(options, requests[static_cast<std::size_t>(idx)], vocab_size, idx);
      },
      std::to_string(num_streams) + " streams: ");
  const headrace_engine_stats stats = engine.stats();
  const auto answers = static_cast<double>(stats.num_generated_tokens);
  return {workload.trace.empty() ? Cell() : Cell(workload.trace),
          num_streams,
          num_requests,
          mean_of(requests, &TracedRequest::prompt),
          mean_of(requests, &TracedRequest::answer),
          times.seconds,
          answers / times.seconds,
          (answers + static_cast<double>(stats.num_prompt_tokens)) / times.seconds,
          percentile(times.first_tokens, 0.5) * 1e3,
          percentile(times.first_tokens, 0.99) * 1e3,
          percentile(times.between, 0.5) * 1e3,
          percentile(times.between, 0.99) * 1e3,
          std::int64_t{stats.num_steps},
          stats.host_seconds / static_cast<double>(stats.num_steps) * 1e6,
          percentile(times.host, 0.5) * 1e6};
}

int run_bench(BenchOptions options) {
  options.model.path = options.path;
  if (!options.like.empty()) {
    options.model.path = options.like;
    options.model.random = options.random;
  }
  const std::vector<Workload> workloads = workloads_of(options);
  const std::int64_t num_tokens = longest_of(workloads);
  const Model model = load_model(options.model);
  check_fits(model, options.session, num_tokens, "request");
  if (options.session.context == 0) options.session.context = num_tokens;
  Table table = make_table();
  for (const Workload& workload : workloads)
    for (const std::int64_t num_streams : options.streams)
      table.rows.push_back(run_with(model, options, workload, num_streams));
  Report report;
  report.notes = joined<Note>({run_notes("engine", options.command_line, cpu_info()),
                               {{"model", std::string(model.info().name)},
                                {"weights", std::string(model.info().weight_types)},
                                {"device", device_note(options.model.device)}}});
  report.tables.push_back(std::move(table));
  print_report(report, options.format);
  return kExitOk;
}

}  // namespace

void add_bench_engine(CLI::App& bench, Action& action, const std::string& command_line) {
  CLI::App* app = bench.add_subcommand(
      "engine", "Requests by continuous batching: tokens per second and latencies");
  auto options = std::make_shared<BenchOptions>();
  options->command_line = command_line;
  add_model_or_random(*app, options->path, options->like, options->random);
  add_device_option(*app, options->model.device);
  add_fast_flag(*app, options->model.is_fast);
  CLI::Option* trace =
      app->add_option("--trace", options->traces,
                      "a trace's requests at their times, not these; several: a run each")
          ->allow_extra_args(false)
          ->option_text("FILE ...");
  constexpr std::int64_t kMost = 1 << 20;
  const auto add_count = [&](const char* names, std::int64_t& value, std::int64_t least,
                             const char* text) {
    app->add_option(names, value, text)
        ->transform(whole_number({least, kMost}))
        ->option_text("N [" + std::to_string(value) + ']')
        ->excludes(trace);
  };
  add_count("-p,--prompt", options->prompt, 1, "tokens of a prompt");
  add_count("-n,--answer", options->answer, 1, "tokens of an answer");
  add_count("--requests", options->num_requests, 1, "requests of a run");
  add_numbers(*app, "--streams", options->streams, {1, 4096},
              "sequences computed at once; several: a run with each")
      ->option_text("N,... [1,8,32]");
  add_filter_options(*app, options->sampling);
  app->add_option("--rest", options->rest, "seconds before each run, for a cool device")
      ->transform(real_number({.low = 0, .high = 600}))
      ->option_text("X [0]");
  app->add_option("-t,--threads", options->model.num_threads, "threads (default: all allowed)")
      ->transform(whole_number({1, 1024}))
      ->option_text("N");
  add_session_options(*app, options->session);
  add_format_option(*app, options->format);
  app->callback([&action, options] {
    if (options->path.empty() && options->like.empty())
      throw CLI::RequiredError("--model or --random");
    action = [options] { return run_bench(*options); };
  });
}

}  // namespace headrace::cli
