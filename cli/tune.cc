// headrace tune: finds the fastest tiles and schedules for calls on a device of this machine, and
// keeps them in a file that plans of this program read.
#include <memory>

#include "attention_timing.h"
#include "ceilings_cache.h"
#include "command.h"
#include "files.h"
#include "machine.h"
#include "options.h"
#include "progress.h"
#include "tuning_file.h"

namespace headrace::cli {
namespace {

struct TuneCommand {
  std::string device = "cpu";
  std::vector<std::string> calls;
  int num_threads = 0;  // 0: all that the library finds
  bool is_warm = false;
  TuneOptions measurement;
  Format format = Format::text;
  std::string command_line;
};

Table make_table() {
  return {.key = "calls",
          .columns = joined<Column>({{{.key = "call", .title = "call", .is_key = true}},
                                     shape_columns(),
                                     {{"features", "features"},
                                      {"kernel", "kernel"},
                                      {"config", "fastest choices"},
                                      {"own_us", "own us", 2},
                                      {"us", "us", 2},
                                      {"gain_percent", "gain %"},
                                      {"num_configs", "choices"},
                                      {"num_timed", "timed"}}}),
          .rows = {}};
}

std::vector<Cell> row_of(std::int64_t number, const AttentionShape& shape, const TunedCall& call) {
  return joined<Cell>(
      {{number},
       shape_cells(shape.problem),
       {features_text(shape.problem), call.kernel,
        call.config.empty() ? std::string("the kernel's own") : call.config, call.own_seconds * 1e6,
        call.seconds * 1e6, 100 * (call.own_seconds / call.seconds - 1),
        std::int64_t{call.num_configs}, std::int64_t{call.num_timed}}});
}

// After every call, so that an interrupted run keeps what it found. Empty: the reason why not.
std::string keep(const Tuning& tuning, const std::string& path) {
  if (path.empty()) return "HOME is not set";
  try {
    replace_file(path, tuning.text());
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

int run_tune(const TuneCommand& command) {
  std::vector<AttentionShape> shapes;
  for (const std::string& text : command.calls)
    for (AttentionShape& shape : shapes_of_call(text)) shapes.push_back(std::move(shape));
  Machine machine = machine_of(command.device, command.num_threads, !command.is_warm);
  const std::string path = tuning_path(machine.device);
  Tuning tuning = read_tuning(machine.device, path);
  TuneOptions options = command.measurement;
  options.ceilings = cached_ceilings(machine.device);
  Table table = make_table();
  std::string not_kept;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    show_line("tuning " + std::to_string(i + 1) + '/' + std::to_string(shapes.size()));
    const Plan plan = plan_attention(shapes[i].problem, machine.device);
    const TunedCall call =
        tune_attention(shapes[i], plan, !command.is_warm, options, machine, tuning);
    table.rows.push_back(row_of(static_cast<std::int64_t>(i + 1), shapes[i], call));
    not_kept = keep(tuning, path);
  }
  show_line("");
  if (!not_kept.empty()) print_note("the choices are not kept: " + not_kept);
  Report report;
  report.notes = joined<Note>(
      {run_notes("tune", command.command_line, machine.device),
       {units_note(machine.device),
        {"caches", std::string(command.is_warm ? "warm" : "cold: evicted before each call")},
        {"predictions", std::string(options.ceilings.empty() ? "without measured ceilings"
                                                             : "from measured ceilings")},
        {"file", not_kept.empty() ? Cell(path) : Cell()}}});
  report.tables.push_back(std::move(table));
  print_report(report, command.format);
  return kExitOk;
}

}  // namespace

void add_tune(CLI::App& app, Action& action, const std::string& command_line) {
  CLI::App* tune =
      app.add_subcommand("tune", "Find the fastest tiles and schedules for calls, with equal bits");
  auto command = std::make_shared<TuneCommand>();
  command->command_line = command_line;
  tune->add_option("--device", command->device, "cpu, cuda or cuda:NUMBER")
      ->check(check_machine)
      ->option_text("DEVICE [cpu]");
  add_list(*tune, "--call", command->calls,
           "\"attention OPTIONS\" (of explain attention); repeatable")
      ->check(check_call)
      ->required()
      ->option_text("CALL");
  tune->add_option("--threads", command->num_threads, "threads per call (default: all allowed)")
      ->transform(whole_number({1, 1024}))
      ->option_text("N");
  tune->add_flag("--warm", command->is_warm, "do not evict the caches before each call");
  tune->add_option("--rounds", command->measurement.num_rounds,
                   "rounds that decide between two choices")
      ->transform(whole_number({1, 1000}))
      ->option_text("N [15]");
  tune->add_option("--min-time", command->measurement.round_seconds, "time of a round in seconds")
      ->transform(real_number({0, 10}))
      ->option_text("SECONDS [0.01]");
  add_format_option(*tune, command->format);
  tune->callback([&action, command] { action = [command] { return run_tune(*command); }; });
}

}  // namespace headrace::cli
