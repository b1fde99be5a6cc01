// headrace explain attention: which kernel would run, why others are refused, and the schedule.
#include <iostream>
#include <memory>

#include "attention_shape.h"
#include "command.h"
#include "headrace/headrace.hpp"
#include "text_table.h"

namespace headrace::cli {
namespace {

struct ExplainOptions {
  ShapeOptions shape;
  std::string device = "cpu";
  Format format = Format::text;
  bool is_strict = false;
};

Table make_table() {
  return {.key = "plans",
          .columns = {{"kernel", "kernel"},
                      {"is_fallback", "fallback"},
                      {"workspace_bytes", "workspace bytes"},
                      {"explain", "explain"}},
          .rows = {}};
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
  report.tables.push_back(make_table());
  bool is_first = true;
  for (const AttentionShape& shape : shapes_of(dims_of(options.shape), options.shape)) {
    headrace_problem problem = shape.problem;
    problem.strict_fallback = options.is_strict;
    const Plan plan = plan_attention(problem, device);
    report.tables[0].rows.push_back({std::string(plan.kernel()), plan.is_fallback(),
                                     static_cast<std::int64_t>(plan.workspace_bytes()),
                                     std::string(plan.explain())});
    if (options.format != Format::text) continue;
    if (!is_first) std::cout << '\n';
    print_lines(plan.explain());
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
      "attention", "The kernel for an attention call: refusals, schedule, guarantees");
  auto options = std::make_shared<ExplainOptions>();
  add_shape_options(*attention, options->shape);
  attention
      ->add_option("--device", options->device,
                   "cpu, cpu:ISA, cpu:ISA:THREADS or smNN:UNITS; need not be present")
      ->option_text("DEVICE [cpu]");
  attention->add_flag("--strict", options->is_strict, "fail rather than use the slow fallback");
  add_format_option(*attention, options->format);
  attention->callback([&action, options] { action = [options] { return run_explain(*options); }; });
  add_explain_model(*explain, action);
}

}  // namespace headrace::cli
