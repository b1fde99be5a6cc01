// headrace_stress: GPU kernels of attention, of SparQ attention and of products under stress.
// Repeats calls on shapes with many tiles and lengths around every tile size, and compares their
// bits with those of the first call, and the first call with a computation in double.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <map>
#include <stdexcept>
#include <variant>

#include "backends/cuda/backend.h"
#include "cli/table.h"
#include "stress/codes_case.h"
#include "stress/stress_run.h"

namespace headrace::testing {
namespace {

struct CommandLine {
  double seconds = 300;
  std::uint64_t seed = 1;
  std::string kernel, replay;
  cli::Format format = cli::Format::text;
  bool is_named_only = false, is_list = false, is_fail_fast = false;
  double case_seconds = 0.25;
};

struct Row {
  std::int64_t num_cases = 0, num_calls = 0, num_wrong = 0;
  std::string refusal;  // reason of a kernel that refused its cases
};

using AnyCell = std::variant<Cell, ProductCell, SparqCell>;

struct Failure {
  std::string name, text;  // of a case, or of a row that ran none
  std::int64_t num_calls, num_wrong;
};

std::string row_name(const Cell& c) {
  std::string name =
      format_text("{}{} {} hd{}", c.kernel,
                  std::string_view(c.kernel) == "cuda_simple" && c.is_backward ? "_bwd" : "",
                  dtype_name(c.dtype), c.head_dim);
  if (c.head_dim_v != c.head_dim) name += format_text("/{}", c.head_dim_v);
  if (c.codes) name += ' ' + name_of(*c.codes);
  if (c.feature != Feature::plain) name += format_text(" {}", name_of(c.feature));
  if (c.keys != Keys::contiguous) name += c.keys == Keys::paged ? " paged" : " shared";
  if (c.has_few_rows) name += " few rows";
  if (c.is_strict) name += " strict rows";
  return c.is_deterministic ? name + " deterministic" : name;
}

template <class AnyKind>
bool is_named(const AnyKind& cell, const std::string& part) {
  return row_name(cell).find(part) != std::string::npos;
}

std::vector<AnyCell> rows_named(const std::string& part) {
  std::vector<AnyCell> cells;
  const auto add = [&](const auto& all) {
    for (const auto& cell : all)
      if (is_named(cell, part)) cells.push_back(cell);
  };
  add(all_cells());
  add(product_cells());
  add(sparq_cells());
  return cells;
}
std::string name_of(const AnyCell& any) {
  return std::visit([](const auto& cell) { return row_name(cell); }, any);
}

class Stress {
 public:
  Stress(const CommandLine& line, const DeviceInfo& device)
      : line_(line), runner_(device), start_(std::chrono::steady_clock::now()) {}

  // Named cases, then the cells in turn until the time is up.
  bool run() {
    for (const StressCase& c : named_cases())
      if (is_named(c.cell, line_.kernel) && !is_over()) run_case(c, "named ");
    if (!line_.is_named_only) run_random();
    check_rows();
    print();
    return failures_.empty();
  }
  // Replays "KERNEL ... seed N" of a report.
  bool replay(const AnyCell& cell, std::uint64_t seed) {
    run_random(cell, seed);
    print();
    return failures_.empty();
  }

 private:
  bool is_over() const { return line_.is_fail_fast && !failures_.empty(); }
  double elapsed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  void run_random() {
    const std::vector<AnyCell> cells = rows_named(line_.kernel);
    const auto has_more = [&] { return elapsed() < line_.seconds && !is_over(); };
    for (std::uint64_t seed = line_.seed; has_more() && !cells.empty(); ++seed)
      for (const AnyCell& cell : cells)
        if (has_more()) run_random(cell, seed);
  }
  void run_random(const AnyCell& any, std::uint64_t seed) {
    std::visit([&](const auto& cell) { run_case(draw_case(cell, seed), ""); }, any);
  }

  template <class Case>
  void run_case(const Case& c, const char* prefix) {
    std::fprintf(stderr, "\r\033[K[%.0f s, %lld calls, %lld wrong] %s", elapsed(),
                 static_cast<long long>(total_.num_calls), static_cast<long long>(total_.num_wrong),
                 describe(c).c_str());
    CaseResult result;
    try {
      result = runner_.run(c, line_.case_seconds);
    } catch (const std::runtime_error& error) {
      result.failure = error.what();
    }
    rows_[prefix + row_name(c.cell)].refusal = result.refusal;
    if (!result.refusal.empty()) return;
    for (Row* row : {&rows_[prefix + row_name(c.cell)], &total_}) {
      ++row->num_cases;
      row->num_calls += result.num_calls;
      row->num_wrong += result.num_wrong;
    }
    if (!result.failure.empty())
      add_failure({describe(c), result.failure, result.num_calls, result.num_wrong});
  }

  // A kernel that refused all of its cases is a failure.
  void check_rows() {
    for (const auto& [name, row] : rows_)
      if (row.num_cases == 0)
        add_failure({name, "the kernel refused every case: " + row.refusal, 0, 0});
  }

  // Text has failures as they come, other formats in a table of the report.
  void add_failure(const Failure& failure) {
    failures_.push_back(failure);
    if (line_.format != cli::Format::text) return;
    std::cout << format_text("\nfailed: {}\n  {}\n  {} of {} calls wrong\n", failure.name,
                             failure.text, failure.num_wrong, failure.num_calls)
              << std::flush;
  }

  void print() const {
    std::fprintf(stderr, "\n");
    cli::Table rows{.key = "rows",
                    .columns = {{.key = "kernel", .title = "kernel"},
                                {.key = "cases", .title = "cases"},
                                {.key = "calls", .title = "calls"},
                                {.key = "wrong", .title = "wrong"}},
                    .rows = {}};
    const auto add_row = [&](const std::string& name, const Row& row) {
      rows.rows.push_back({name, row.num_cases, row.num_calls, row.num_wrong});
    };
    for (const auto& [name, row] : rows_) add_row(name, row);
    add_row("total", total_);
    cli::Report report{.notes = {{"seconds", elapsed()},
                                 {"failed_cases", static_cast<std::int64_t>(failures_.size())}},
                       .tables = {rows}};
    if (line_.format != cli::Format::text) report.tables.push_back(failure_table());
    cli::print(report, {.format = line_.format, .is_styled = cli::is_stdout_styled()}, std::cout,
               std::cerr);
  }
  cli::Table failure_table() const {
    cli::Table table{.key = "failures",
                     .columns = {{.key = "case", .title = "failed case"},
                                 {.key = "failure", .title = "failure"},
                                 {.key = "calls", .title = "calls"},
                                 {.key = "wrong", .title = "wrong"}},
                     .rows = {}};
    for (const Failure& x : failures_)
      table.rows.push_back({x.name, x.text, x.num_calls, x.num_wrong});
    return table;
  }

  const CommandLine& line_;
  StressRunner runner_;
  std::chrono::steady_clock::time_point start_;
  std::map<std::string, Row> rows_;
  Row total_;
  std::vector<Failure> failures_;
};

int run_program(int argc, char** argv) {
  CLI::App app{"GPU kernels under stress: equal calls must give equal bits."};
  CommandLine line;
  app.add_option("--seconds", line.seconds, "total time, including the named cases");
  app.add_option("--case-seconds", line.case_seconds, "time per random case, over the four modes");
  app.add_option("--seed", line.seed, "seed of the first round of cases");
  app.add_option("--kernel", line.kernel, "only report rows whose name contains this");
  app.add_option("--replay", line.replay, "seed of a case of the row that --kernel names");
  app.add_flag("--named", line.is_named_only, "only the named cases");
  app.add_flag("--fail-fast", line.is_fail_fast, "stop at the first failure");
  app.add_flag("--list", line.is_list, "list the rows");
  const std::map<std::string, cli::Format> formats = {{"text", cli::Format::text},
                                                      {"csv", cli::Format::csv},
                                                      {"json", cli::Format::json},
                                                      {"md", cli::Format::md}};
  app.add_option_function<std::string>(
         "--format", [&](const std::string& name) { line.format = formats.at(name); },
         "report format")
      ->check(CLI::IsMember({"text", "csv", "json", "md"}))
      ->option_text("text|csv|json|md [text]");
  CLI11_PARSE(app, argc, argv);
  if (line.is_list) {
    for (const AnyCell& cell : rows_named(line.kernel)) std::printf("%s\n", name_of(cell).c_str());
    return 0;
  }
  Result<int> count = cuda::num_devices();
  if (!count.ok() || count.value() == 0) {
    std::printf("no GPU: nothing ran\n");
    return 77;
  }
  Result<DeviceInfo> device = cuda::device_info(0);
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", device.failure().message.c_str());
    return 1;
  }
  Stress stress(line, device.value());
  if (line.replay.empty()) return stress.run() ? 0 : 1;
  for (const AnyCell& cell : rows_named(line.kernel))
    if (name_of(cell) == line.kernel) return stress.replay(cell, std::stoull(line.replay)) ? 0 : 1;
  std::fprintf(stderr, "--kernel %s: must be a row of --list with --replay\n", line.kernel.c_str());
  return 2;
}

}  // namespace
}  // namespace headrace::testing

int main(int argc, char** argv) { return headrace::testing::run_program(argc, argv); }
