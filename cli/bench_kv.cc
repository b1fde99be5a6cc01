// headrace bench kv: how full the pages of a paged KV cache are, and what sequences of one request
// save by sharing them. Requests of random lengths are decoded one after another in a cache; no
// model and no kernel runs.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "command.h"
#include "headrace/kv_cache.hpp"
#include "machine.h"
#include "options.h"
#include "progress.h"

namespace headrace::cli {
namespace {

struct BenchOptions {
  std::vector<std::string> lengths = {"sharegpt", "alpaca"};
  std::vector<std::int64_t> widths = {2, 4, 6};
  std::int64_t num_requests = 500;
  std::int64_t page_size = 16;
  std::int64_t seed = 1;
  Format format = Format::text;
  std::string command_line;
};

// Mean tokens of prompts and outputs of a data set: Kwon et al. 2023, figure 11.
struct Lengths {
  const char* name;
  double mean_prompt, mean_output;
};
constexpr Lengths kLengths[] = {{"sharegpt", 161.31, 337.99}, {"alpaca", 19.31, 58.45}};
constexpr std::int64_t kMaxTokens = 1024;  // of a prompt, and of an output

enum class Decoding { sampling, beam };

struct Workload {
  const Lengths& lengths;
  Decoding decoding;
  std::int64_t width;  // sequences of a request
};

// The same numbers on every machine and standard library.
class Random {
 public:
  explicit Random(std::int64_t seed) : engine_(static_cast<std::uint64_t>(seed)) {}
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(bound));
  }
  // Log-normal with sigma 1 of the logarithm and this mean, before the bounds.
  std::int64_t length(double mean) {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    const double normal = radius * std::cos(2 * 3.14159265358979323846 * uniform());
    const double tokens = std::round(mean * std::exp(normal - 0.5));
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(tokens), 1, kMaxTokens);
  }
  std::int32_t token() { return static_cast<std::int32_t>(below(1 << 30)); }

 private:
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  std::mt19937_64 engine_;
};

// Sums over all steps: a step is a token of every sequence of a request.
struct Sums {
  std::int64_t prompt_tokens = 0, output_tokens = 0;  // of requests
  std::int64_t slots = 0, unused_slots = 0;
  std::int64_t pages = 0, pages_alone = 0;  // pages_alone: if no sequence shared any
  std::int64_t page_copies = 0;
  double seconds = 0;
};

// The sequences of one request. `random` draws tokens and beams.
class Request {
 public:
  Request(KvCache& cache, const BenchOptions& options, const Workload& workload,
          std::int64_t num_prompt_tokens, Random& random)
      : cache_(cache),
        options_(options),
        workload_(workload),
        random_(random),
        length_(num_prompt_tokens) {
    std::vector<std::int32_t> prompt(static_cast<std::size_t>(num_prompt_tokens));
    for (std::int32_t& token : prompt) token = random.token();
    const std::int64_t first = cache.add(prompt).sequence;
    cache.reserve(first, length_);
    cache.commit(first, prompt);
    sequences_.push_back(first);
    while (static_cast<std::int64_t>(sequences_.size()) < workload.width)
      sequences_.push_back(cache.fork(first));
  }
  Request(const Request&) = delete;

  void decode_step(Sums& sums) {
    if (workload_.decoding == Decoding::beam) select_beams();
    for (const std::int64_t sequence : sequences_) {
      const std::int32_t token = random_.token();
      cache_.reserve(sequence, 1);
      cache_.commit(sequence, {&token, 1});
    }
    ++length_;
    const headrace_kv_cache_stats stats = cache_.stats();
    const std::int64_t pages_of_one = (length_ + options_.page_size - 1) / options_.page_size;
    sums.slots += stats.num_used_pages * options_.page_size;
    sums.unused_slots += stats.num_unused_slots;
    sums.pages += stats.num_used_pages;
    sums.pages_alone += workload_.width * pages_of_one;
  }
  void free() {
    for (const std::int64_t sequence : sequences_) cache_.free(sequence);
  }

 private:
  // Every new beam continues an old one, each with the same probability.
  void select_beams() {
    std::vector<std::int64_t> survivors;
    for (std::int64_t i = 0; i < workload_.width; ++i)
      survivors.push_back(
          cache_.fork(sequences_[static_cast<std::size_t>(random_.below(workload_.width))]));
    free();
    sequences_ = std::move(survivors);
  }

  KvCache& cache_;
  const BenchOptions& options_;
  const Workload& workload_;
  Random& random_;
  std::int64_t length_;
  std::vector<std::int64_t> sequences_;
};

Sums run_workload(const BenchOptions& options, const Workload& workload) {
  // Beams exist twice while they are selected; a page is the least that a cache can hold.
  const std::int64_t pages_of_one = 2 * kMaxTokens / options.page_size + 2;
  KvCache cache({.num_layers = 1,
                 .num_kv_heads = 1,
                 .head_dim = 1,
                 .num_pages = 2 * workload.width * pages_of_one,
                 .page_size = options.page_size});
  // The requests of every row have the same lengths.
  Random lengths(options.seed), random(options.seed + 1);
  Sums sums;
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < options.num_requests; ++i) {
    const std::int64_t num_prompt_tokens = lengths.length(workload.lengths.mean_prompt);
    const std::int64_t num_steps = lengths.length(workload.lengths.mean_output);
    Request request(cache, options, workload, num_prompt_tokens, random);
    sums.prompt_tokens += num_prompt_tokens;
    sums.output_tokens += num_steps;
    for (std::int64_t step = 0; step < num_steps; ++step) request.decode_step(sums);
    request.free();
  }
  sums.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  sums.page_copies = cache.stats().num_page_copies;
  return sums;
}

Table make_table() {
  return {.key = "rows",
          .columns = {{.key = "lengths", .title = "lengths", .is_key = true},
                      {.key = "decoding", .title = "decoding", .is_key = true},
                      {.key = "width", .title = "width", .is_key = true},
                      {"requests", "requests"},
                      {"mean_prompt", "prompt"},
                      {"mean_output", "output"},
                      {"unused_percent", "% unused", 2},
                      {"saved_percent", "% saved", 1},
                      {"copies_per_1000", "copies/1000", 1},
                      {"us_per_token", "us/token", 2}},
          .rows = {}};
}

std::vector<Cell> row_of(const BenchOptions& options, const Workload& workload, const Sums& sums) {
  const auto number = [](std::int64_t x) { return static_cast<double>(x); };
  const double requests = number(options.num_requests);
  const double tokens = number(sums.output_tokens * workload.width);
  const char* decoding = workload.decoding == Decoding::beam ? "beam"
                         : workload.width > 1                ? "parallel"
                                                             : "single";
  return {std::string(workload.lengths.name),
          std::string(decoding),
          workload.width,
          options.num_requests,
          number(sums.prompt_tokens) / requests,
          number(sums.output_tokens) / requests,
          100 * number(sums.unused_slots) / number(sums.slots),
          100 * (1 - number(sums.pages) / number(sums.pages_alone)),
          1000 * number(sums.page_copies) / tokens,
          1e6 * sums.seconds / tokens};
}

int run_bench(const BenchOptions& options) {
  Report report;
  report.notes = joined<Note>(
      {run_notes("kv", options.command_line, cpu_info()),
       {{"page_size", options.page_size},
        {"seed", options.seed},
        {"lengths", std::string("log-normal, sigma 1, at most 1024 tokens, with the means of "
                                "Kwon et al. 2023 (figure 11): sharegpt 161.31 and 337.99, "
                                "alpaca 19.31 and 58.45")},
        {"beams", std::string("every new beam continues an old one, all with the same "
                              "probability")}}});
  report.tables.push_back(make_table());
  for (const std::string& name : options.lengths) {
    const Lengths& lengths =
        *std::find_if(std::begin(kLengths), std::end(kLengths),
                      [&](const Lengths& known) { return known.name == name; });
    std::vector<Workload> workloads = {{lengths, Decoding::sampling, 1}};
    for (const Decoding decoding : {Decoding::sampling, Decoding::beam})
      for (const std::int64_t width : options.widths)
        workloads.push_back({lengths, decoding, width});
    for (const Workload& workload : workloads) {
      show_line(name + ", width " + std::to_string(workload.width));
      report.tables[0].rows.push_back(row_of(options, workload, run_workload(options, workload)));
    }
  }
  show_line("");
  print_report(report, options.format);
  return kExitOk;
}

}  // namespace

void add_bench_kv(CLI::App& bench, Action& action, const std::string& command_line) {
  CLI::App* app = bench.add_subcommand(
      "kv", "Unused slots and shared pages of a paged KV cache; no kernel runs");
  auto options = std::make_shared<BenchOptions>();
  options->command_line = command_line;
  add_list(*app, "--lengths", options->lengths, "lengths of prompts and outputs")
      ->delimiter(',')
      ->check(CLI::IsMember({"sharegpt", "alpaca"}))
      ->option_text("sharegpt|alpaca,... [sharegpt,alpaca]");
  add_numbers(*app, "--width", options->widths, {2, 64},
              "sequences of a request: samples, or beams")
      ->option_text("N,... [2,4,6]");
  app->add_option("--requests", options->num_requests, "requests per row")
      ->transform(whole_number({1, 1000000}))
      ->option_text("N [500]");
  app->add_option("--page-size", options->page_size, "tokens per page")
      ->transform(whole_number({1, 1024}))
      ->option_text("N [16]");
  app->add_option("--seed", options->seed, "of the lengths and beams")
      ->transform(whole_number({0, std::int64_t{1} << 62}))
      ->option_text("N [1]");
  add_format_option(*app, options->format);
  app->callback([&action, options] { action = [options] { return run_bench(*options); }; });
}

}  // namespace headrace::cli
