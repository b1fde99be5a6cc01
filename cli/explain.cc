// headrace explain attention: which kernel would run, why others are refused, the schedule, and how
// long the call will take.
#include <iostream>
#include <memory>

#include "attention_shape.h"
#include "ceilings_cache.h"
#include "command.h"
#include "headrace/headrace.hpp"
#include "headrace/roofline.hpp"
#include "text_table.h"
#include "tuning_file.h"

namespace headrace::cli {
namespace {

struct ExplainOptions {
  ShapeOptions shape;
  std::string device = "cpu";
  std::string ceilings;  // file; empty: the cache of headrace roofline
  Format format = Format::text;
  bool is_strict = false;
  bool skips_tuning = false;
};

Table make_table() {
  return {.key = "plans",
          .columns = {{"kernel", "kernel"},
                      {"is_fallback", "fallback"},
                      {"workspace_bytes", "workspace bytes"},
                      {"flops", "GFLOP", 2, 1e9},
                      {"bytes", "MB", 2, 1e6},
                      {"exps", "Mexp", 2, 1e6},
                      {"num_tiles", "tiles"},
                      {"num_slots", "slots"},
                      {"balance", "balance", 3},
                      {"ctas_per_multiprocessor", "CTAs"},
                      {"occupancy_limit", "limited by"},
                      {"predicted_us", "us", 1},
                      {"bound", "bound"},
                      {"ceilings", "ceilings"},
                      {"no_prediction", "no prediction"},
                      {"explain", "explain"}},
          .rows = {}};
}

Table make_parts_table() {
  return {.key = "parts",
          .columns = {{.key = "plan", .title = "plan", .is_key = true},
                      {.key = "part", .title = "part", .is_key = true},
                      {"unit_us", "us at the ceiling", 3},
                      {"constant", "constant", 3},
                      {"us", "us", 3}},
          .rows = {}};
}

Cell known(double value) { return value > 0 ? Cell(value) : Cell(); }
Cell known(std::int64_t value) { return value > 0 ? Cell(value) : Cell(); }
Cell known(const std::string& text) { return text.empty() ? Cell() : Cell(text); }

std::vector<Cell> row_of(const Plan& plan, const Prediction& x) {
  return {std::string(plan.kernel()),
          plan.is_fallback(),
          static_cast<std::int64_t>(plan.workspace_bytes()),
          x.flops,
          x.bytes,
          x.exps,
          known(x.num_tiles),
          known(x.num_slots),
          known(x.balance),
          known(std::int64_t{x.ctas}),
          known(x.limit),
          known(x.seconds * 1e6),
          known(x.bound),
          known(x.ceilings),
          known(x.reason),
          plan.explain() + x.text};
}

bool is_of_this_machine(const ExplainOptions& options) {
  return options.device == "cpu" || options.device.starts_with("cuda");
}

// Those of a file, or the cached ones of a device of this machine. Empty: the library's.
std::vector<Ceiling> ceilings_for(const DeviceInfo& device, const ExplainOptions& options) {
  std::string reason;
  if (!options.ceilings.empty()) {
    auto measured = read_report(options.ceilings, reason);
    if (!measured)
      throw Error(HEADRACE_INVALID_ARGUMENT, options.ceilings + ": " + reason +
                                                 "; pass what headrace roofline --format json "
                                                 "printed");
    return std::move(measured->ceilings);
  }
  return is_of_this_machine(options) ? cached_ceilings(device) : std::vector<Ceiling>();
}

// Wraps each line below its second column ("nan       in q or k: ...").
void print_lines(std::string_view text) {
  constexpr std::size_t kLabel = 10;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string line(text.substr(0, end));
    const std::size_t label = std::min(kLabel, line.size());
    print_wrapped(line.substr(0, label), line.substr(label), std::cout);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

int run_explain(const ExplainOptions& options) {
  const DeviceInfo device = device_from_text(options.device.c_str());
  Report report;
  report.tables = {make_table(), make_parts_table()};
  const std::vector<Ceiling> ceilings = ceilings_for(device, options);
  if (is_of_this_machine(options) && !options.skips_tuning) use_tuning(device);
  bool is_first = true;
  for (const AttentionShape& shape : shapes_of(dims_of(options.shape), options.shape)) {
    headrace_problem problem = shape.problem;
    problem.strict_fallback = options.is_strict;
    const Plan plan = plan_attention(problem, device);
    const Prediction prediction = predict(plan, ceilings);
    report.tables[0].rows.push_back(row_of(plan, prediction));
    const auto number = static_cast<std::int64_t>(report.tables[0].rows.size());
    for (const PredictionPart& part : prediction.parts)
      report.tables[1].rows.push_back({number, part.name, part.unit_seconds * 1e6, part.constant,
                                       part.constant * part.unit_seconds * 1e6});
    if (options.format != Format::text) continue;
    if (!is_first) std::cout << '\n';
    print_lines(plan.explain() + prediction.text);
    is_first = false;
  }
  if (options.format != Format::text) print_report(report, options.format);
  return kExitOk;
}

}  // namespace

void add_explain(CLI::App& app, Action& action) {
  CLI::App* explain = app.add_subcommand("explain", "Show what a call would run and cost, and why");
  explain->require_subcommand(1);
  CLI::App* attention = explain->add_subcommand(
      "attention", "The kernel for a call: refusals, schedule, guarantees, predicted time");
  auto options = std::make_shared<ExplainOptions>();
  add_shape_options(*attention, options->shape);
  attention
      ->add_option("--device", options->device,
                   "cpu, cpu:ISA[:THREADS], h100, h200 or smNN:UNITS; need not be present")
      ->option_text("DEVICE [cpu]");
  attention
      ->add_option("--ceilings", options->ceilings,
                   "predict from this report of headrace roofline --format json")
      ->option_text("FILE");
  attention->add_flag("--strict", options->is_strict, "fail rather than use the slow fallback");
  attention->add_flag("--no-tuning", options->skips_tuning, "ignore what headrace tune found");
  add_format_option(*attention, options->format);
  attention->callback([&action, options] { action = [options] { return run_explain(*options); }; });
  add_explain_model(*explain, action);
}

}  // namespace headrace::cli
