// headrace bench engine: requests per second and latencies of continuous batching, without a
// server. All requests are there from the start.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>

#include "command.h"
#include "machine.h"
#include "model_options.h"
#include "options.h"
#include "progress.h"
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
  double temperature = 0;
  std::vector<std::int64_t> streams = {1, 8, 32};
  Format format = Format::text;
  std::string command_line;
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Prompts without a common prefix, so that each is computed.
Request request_of(const BenchOptions& options, std::int64_t vocab_size, std::int64_t idx) {
  Request request;
  for (std::int64_t i = 0; i < options.prompt; ++i)
    request.prompt.push_back(
        static_cast<std::int32_t>(((idx + 1) * 104729 + i * 7919 + 17) % vocab_size));
  request.sampling.temperature = options.temperature;
  request.sampling.seed = static_cast<std::uint64_t>(idx);
  request.max_new_tokens = options.answer;
  request.ignore_end = true;
  return request;
}

Table make_table() {
  return {.key = "rows",
          .columns = {{"streams", "streams"},
                      {"requests", "requests"},
                      {"prompt_tokens", "prompt"},
                      {"answer_tokens", "answer"},
                      {"seconds", "s"},
                      {"answer_tokens_per_s", "answer/s"},
                      {"total_tokens_per_s", "total/s"},
                      {"ttft_ms_median", "TTFT ms"},
                      {"itl_ms_median", "ITL ms"},
                      {"itl_ms_p99", "p99"},
                      {"steps", "steps"}},
          .rows = {}};
}

// Runs all requests, and returns a row of the table.
std::vector<Cell> run_with(const Model& model, const BenchOptions& options,
                           std::int64_t num_streams) {
  EngineOptions wanted = engine_options(model, options.session);
  const std::int64_t pages =
      (options.prompt + options.answer + wanted.page_size - 1) / wanted.page_size;
  const std::int64_t whole_context = (wanted.max_tokens + wanted.page_size - 1) / wanted.page_size;
  wanted.num_pages = std::max(whole_context, pages * std::min(num_streams, options.num_requests));
  wanted.max_num_seqs = num_streams;
  wanted.max_requests = options.num_requests;
  Engine engine(model, wanted);
  for (std::int64_t i = 0; i < options.num_requests; ++i)
    engine.add(request_of(options, model.info().vocab_size, i));

  std::map<std::int64_t, double> last_token;  // when a request's came
  std::vector<double> first_tokens, between;
  const Clock::time_point begin = Clock::now();
  while (engine.step()) {
    const double now = seconds_since(begin);
    while (const std::optional<Output> output = engine.poll()) {
      if (output->finish == HEADRACE_REQUEST_ERROR)
        throw Error(HEADRACE_INTERNAL,
                    "request " + std::to_string(output->id) + ": " + output->error);
      const auto [last, is_first] = last_token.try_emplace(output->id, now);
      if (is_first)
        first_tokens.push_back(now);
      else
        between.push_back(now - last->second);
      last->second = now;
    }
    show_line(std::to_string(num_streams) +
              " streams: " + std::to_string(engine.stats().num_finished) + " of " +
              std::to_string(options.num_requests) + " requests");
  }
  const double seconds = seconds_since(begin);
  show_line("");
  std::sort(first_tokens.begin(), first_tokens.end());
  std::sort(between.begin(), between.end());
  const headrace_engine_stats stats = engine.stats();
  const auto answers = static_cast<double>(stats.num_generated_tokens);
  return {num_streams,
          options.num_requests,
          options.prompt,
          options.answer,
          seconds,
          answers / seconds,
          (answers + static_cast<double>(stats.num_prompt_tokens)) / seconds,
          percentile(first_tokens, 0.5) * 1e3,
          percentile(between, 0.5) * 1e3,
          percentile(between, 0.99) * 1e3,
          std::int64_t{stats.num_steps}};
}

int run_bench(BenchOptions options) {
  options.model.path = options.path;
  if (!options.like.empty()) {
    options.model.path = options.like;
    options.model.random = options.random;
  }
  const Model model = load_model(options.model);
  const std::int64_t num_tokens = options.prompt + options.answer;
  check_fits(model, options.session, num_tokens, "request");
  if (options.session.context == 0) options.session.context = num_tokens;
  Table table = make_table();
  for (const std::int64_t num_streams : options.streams)
    table.rows.push_back(run_with(model, options, num_streams));
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
  constexpr std::int64_t kMost = 1 << 20;
  const auto add_count = [&](const char* names, std::int64_t& value, std::int64_t least,
                             const char* text) {
    app->add_option(names, value, text)
        ->transform(whole_number({least, kMost}))
        ->option_text("N [" + std::to_string(value) + ']');
  };
  add_count("-p,--prompt", options->prompt, 1, "tokens of a prompt");
  add_count("-n,--answer", options->answer, 1, "tokens of an answer");
  add_count("--requests", options->num_requests, 1, "requests of a run");
  add_numbers(*app, "--streams", options->streams, {1, 4096},
              "sequences computed at once; several: a run with each")
      ->option_text("N,... [1,8,32]");
  app->add_option("--temperature", options->temperature, "0: greedy")
      ->transform(real_number({.low = 1e-5, .high = 1e5, .also = 0}))
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
