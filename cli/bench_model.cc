// headrace bench model: tokens per second of prompt processing (pp512) and generation (tg128).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

#include "ceilings_cache.h"
#include "command.h"
#include "machine.h"
#include "model_options.h"
#include "operator_times.h"
#include "options.h"
#include "probes/probes.h"
#include "progress.h"

namespace headrace::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchOptions {
  std::string path, like;  // one of them
  RandomModel random = {};
  std::vector<std::int64_t> prompts = {512}, answers = {128};
  std::vector<std::int64_t> threads;
  std::int64_t depth = 0;
  int reps = 5;
  double rest = 0;  // seconds
  std::string device = "cpu";
  bool is_exact = false, is_fast = false;
  bool skips_ceilings = false;
  bool is_by_operator = false;
  SessionChoice session;
  Format format = Format::text;
  std::string command_line;
};

struct Statistics {
  double mean, deviation;
};

Statistics statistics_of(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const auto n = static_cast<double>(values.size());
  for (const double value : values) squares += (value - sum / n) * (value - sum / n);
  return {sum / n, n > 1 ? std::sqrt(squares / (n - 1)) : 0.0};
}

// Arbitrary tokens: the work does not depend on them.
std::vector<std::int32_t> tokens_of(const headrace_model_info& info, std::int64_t count) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<std::int32_t>((i * 7919 + 17) % info.vocab_size));
  return tokens;
}

enum class Kind { prompt, answer };

// Seconds of one run after `depth` tokens: the whole prompt at once, or token by token.
double run_once(Session& session, const std::vector<std::int32_t>& tokens, Kind kind,
                std::int64_t depth) {
  session.truncate(depth);
  const Clock::time_point begin = Clock::now();
  if (kind == Kind::prompt)
    session.append(tokens);
  else
    for (const std::int32_t& token : tokens) session.append({&token, 1});
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Table make_table() {
  return {.key = "rows",
          .columns = {{"test", "test"},
                      {"threads", "threads"},
                      {"depth", "depth"},
                      {"tokens_per_s_mean", "tokens/s"},
                      {"tokens_per_s_stddev", "+-", 2},
                      {"tokens_per_s_best", "best"},
                      {"reps", "reps"},
                      {"weight_gbytes_per_s", "weights GB/s"},
                      {"read_gbytes_per_s", "read GB/s"},
                      {"percent_of_read_bandwidth", "% read"}},
          .rows = {}};
}

class Bench {
 public:
  explicit Bench(const BenchOptions& options) : options_(options), table_(make_table()) {}

  // Loads the model once per thread count: a model owns its threads.
  void run_with(int num_threads) {
    ModelChoice model_choice{.path = options_.path,
                             .num_threads = num_threads,
                             .is_exact = options_.is_exact,
                             .is_fast = options_.is_fast,
                             .device = options_.device};
    if (!options_.like.empty()) {
      model_choice.path = options_.like;
      model_choice.random = options_.random;
    }
    const Model model = load_model(model_choice);
    info_ = model.info();
    architecture_ = info_.architecture;
    name_ = info_.name;
    types_ = info_.weight_types;
    SessionChoice choice = options_.session;
    const auto longest = [](const std::vector<std::int64_t>& list) {
      return list.empty() ? std::int64_t{0} : *std::max_element(list.begin(), list.end());
    };
    const std::int64_t num_tokens =
        options_.depth +
        std::max({longest(options_.prompts), longest(options_.answers), std::int64_t{1}});
    if (choice.context == 0) choice.context = num_tokens;
    check_fits(model, choice, num_tokens, "test");
    Session session = make_session(model, choice);
    if (options_.depth > 0) session.append(tokens_of(info_, options_.depth));
    if (options_.is_by_operator) ceilings_ = cached_ceilings(device_of(num_threads));
    for (const std::int64_t n : options_.prompts) measure(session, Kind::prompt, n, num_threads);
    const double before = read_bandwidth(num_threads);
    for (const std::int64_t n : options_.answers) measure(session, Kind::answer, n, num_threads);
    add_bandwidth(std::max(before, read_bandwidth(num_threads)));
  }

  Report report() {
    Report report;
    report.notes = joined<Note>({run_notes("model", options_.command_line, cpu_info()),
                                 {{"model", name_},
                                  {"architecture", architecture_},
                                  {"weights", types_},
                                  {"parameters", info_.num_parameters},
                                  {"weight_bytes", info_.weight_bytes},
                                  {"bytes_per_token", info_.token_weight_bytes},
                                  {"exact", info_.exact != 0},
                                  {"fast", info_.fast != 0},
                                  {"device", device_note(options_.device)}}});
    if (options_.is_by_operator)
      report.notes.push_back(
          {"bounds", std::string(ceilings_.empty() ? "none: headrace roofline --device " +
                                                         options_.device + " measures the ceilings"
                                                   : "from measured ceilings")});
    report.tables.push_back(std::move(table_));
    if (options_.is_by_operator) report.tables.push_back(std::move(operators_));
    return report;
  }

 private:
  double read_bandwidth(int num_threads) const {
    if (options_.skips_ceilings || options_.answers.empty() || options_.device != "cpu") return 0;
    show_line("measuring the read bandwidth");
    return probes::measure_read_bandwidth(num_threads);
  }

  DeviceInfo device_of(int num_threads) const {
    DeviceInfo device = device_from_text(options_.device.c_str());
    if (options_.device == "cpu") device.num_units = num_threads;
    return device;
  }

  // An answer's steps are those of one token: short, so the median is of more of them.
  void time_operators(Session& session, const std::string& test, std::int64_t num_tokens,
                      int num_threads) {
    show_line(test + " by operator");
    session.truncate(options_.depth);
    const std::int64_t rounds = std::max(options_.reps, num_tokens == 1 ? 30 : 3);
    add_operator_times(test, time_step(session, num_tokens, rounds), device_of(num_threads),
                       ceilings_, operators_);
    show_line("");
  }

  void measure(Session& session, Kind kind, std::int64_t count, int num_threads) {
    const std::vector<std::int32_t> tokens = tokens_of(info_, count);
    const std::string test = (kind == Kind::prompt ? "pp" : "tg") + std::to_string(count);
    std::vector<double> rates;
    run_once(session, tokens, kind, options_.depth);  // touches memory, starts the threads
    for (int rep = 0; rep < options_.reps; ++rep) {
      show_line(test + " [" + std::to_string(rep + 1) + '/' + std::to_string(options_.reps) + ']');
      std::this_thread::sleep_for(std::chrono::duration<double>(options_.rest));
      rates.push_back(static_cast<double>(count) / run_once(session, tokens, kind, options_.depth));
    }
    show_line("");
    const Statistics s = statistics_of(rates);
    const double gbytes =
        s.mean * static_cast<double>(info_.token_weight_bytes) * 1e-9;  // weights only
    table_.rows.push_back({test, std::int64_t{num_threads}, options_.depth, s.mean, s.deviation,
                           *std::max_element(rates.begin(), rates.end()),
                           std::int64_t{options_.reps},
                           kind == Kind::answer ? Cell(gbytes) : Cell(), Cell(), Cell()});
    if (options_.is_by_operator)
      time_operators(session, test, kind == Kind::prompt ? count : 1, num_threads);
  }

  // Fills the bandwidth columns of this thread count's generation rows.
  void add_bandwidth(double gbytes) {
    show_line("");
    if (gbytes <= 0) return;
    for (std::vector<Cell>& row : table_.rows) {
      const double* used = std::get_if<double>(&row[7]);
      if (used == nullptr || row[8].index() != 0) continue;
      row[8] = gbytes;
      row[9] = 100 * *used / gbytes;
    }
  }

  const BenchOptions& options_;
  Table table_, operators_ = operator_times_table();
  std::vector<Ceiling> ceilings_;
  headrace_model_info info_{};
  std::string architecture_, name_, types_;  // copies: info_ points into the model
};

int run_bench(const BenchOptions& options) {
  std::vector<std::int64_t> threads = options.threads;
  if (threads.empty()) threads.push_back(cpu_info().num_units);
  Bench bench(options);
  for (const std::int64_t num_threads : threads) bench.run_with(static_cast<int>(num_threads));
  print_report(bench.report(), options.format);
  return kExitOk;
}

}  // namespace

void add_bench_model(CLI::App& bench, Action& action, const std::string& command_line) {
  CLI::App* app =
      bench.add_subcommand("model", "Tokens per second of prompt processing and generation");
  auto options = std::make_shared<BenchOptions>();
  options->command_line = command_line;
  add_model_or_random(*app, options->path, options->like, options->random);
  add_device_option(*app, options->device);
  constexpr std::int64_t kMost = 1 << 20;
  add_numbers(*app, "-p,--prompt,--n-prompt", options->prompts, {0, kMost},
              "prompt lengths in tokens; 0: none")
      ->option_text("N,... [512]");
  add_numbers(*app, "-n,--answer,--n-gen", options->answers, {0, kMost},
              "answer lengths in tokens; 0: none")
      ->option_text("N,... [128]");
  add_numbers(*app, "-t,--threads", options->threads, {1, 1024}, "thread counts")
      ->option_text("N,... [all]");
  app->add_option("-d,--depth,--n-depth", options->depth, "tokens in the context before each test")
      ->transform(whole_number({0, kMost}))
      ->option_text("N [0]");
  app->add_option("-r,--reps,--repetitions", options->reps, "runs of each test")
      ->transform(whole_number({1, 1000}))
      ->option_text("N [5]");
  app->add_option("--rest", options->rest,
                  "seconds without work before each run, off the power limit")
      ->transform(real_number({0, 60}))
      ->option_text("S [0]");
  app->add_flag("--exact", options->is_exact, "compute with f32 weights");
  add_fast_flag(*app, options->is_fast);
  app->add_flag("--no-ceilings", options->skips_ceilings,
                "do not measure the read bandwidth of the CPU");
  app->add_flag("--by-operator", options->is_by_operator,
                "also the time of each operator of a step, beside its bound");
  add_session_options(*app, options->session);
  add_format_option(*app, options->format);
  app->callback([&action, options] {
    if (options->path.empty() && options->like.empty())
      throw CLI::RequiredError("--model or --random");
    std::erase(options->prompts, 0);
    std::erase(options->answers, 0);
    action = [options] { return run_bench(*options); };
  });
}

}  // namespace headrace::cli
