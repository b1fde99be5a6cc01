// headrace roofline: measured ceilings of a device, and where calls of attention lie below them.
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>

#include "attention_timing.h"
#include "call_bound.h"
#include "ceilings_cache.h"
#include "command.h"
#include "files.h"
#include "machine.h"
#include "options.h"
#include "progress.h"
#include "roofline_plot.h"

namespace headrace::cli {
namespace {

struct RooflineOptions {
  std::string device = "cpu";
  std::vector<std::string> calls;
  std::string svg;
  bool is_refresh = false;
  CeilingOptions measurement;
  Format format = Format::text;
  std::string command_line;
};

// ---- ceilings

struct Source {
  MeasuredCeilings measured;
  std::string text;  // "measured now", "FILE"
};

// From the cache, or measured and then cached. A cache that cannot be used costs a note, no more.
Source ceilings_of(const DeviceInfo& device, const RooflineOptions& options) {
  const CeilingsKey key = ceilings_key(device);
  const std::string path = ceilings_path(key);
  if (!options.is_refresh && !path.empty()) {
    std::string reason;
    if (auto cached = read_ceilings(path, key, reason)) return {std::move(*cached), path};
    if (!reason.empty()) print_note(path + " is ignored: " + reason);
  }
  show_line("measuring the device's ceilings");
  Source source{{date_text(), measure_ceilings(device, options.measurement)}, "measured now"};
  show_line("");
  try {
    if (!path.empty()) replace_file(path, ceilings_text(key, source.measured));
  } catch (const Error& error) {
    print_note(std::string("the ceilings are not cached: ") + error.what());
  }
  return source;
}

Cell known(double value) { return value > 0 ? Cell(value) : Cell(); }

// Per cycle of the clock and unit.
Cell per_cycle(const Ceiling& c) {
  return known(c.clock_hz > 0 ? c.value / c.clock_hz / c.num_units : 0);
}

Table table_of(CeilingKind kind, const std::vector<Ceiling>& ceilings) {
  const std::vector<Column> names = {{.key = "resource",
                                      .title = kind == CeilingKind::compute ? "unit" : "memory",
                                      .is_key = true},
                                     {.key = "operation", .title = "operation", .is_key = true},
                                     {.key = "num_units", .title = "units", .is_key = true}};
  const std::vector<Column> ends = {{"clock_ghz", "GHz", 2}, {"watts", "W"}};
  Table table;
  if (kind == CeilingKind::compute)
    table = {.key = "compute",
             .columns = joined<Column>(
                 {names,
                  {{"gops", "GOP/s"}, {"best_gops", "best"}, {"ops_per_cycle", "OP/cycle/unit"}},
                  ends}),
             .rows = {}};
  else if (kind == CeilingKind::bandwidth)
    table = {
        .key = "bandwidth",
        .columns = joined<Column>(
            {names,
             {{"gbytes", "GB/s"}, {"best_gbytes", "best"}, {"bytes_per_cycle", "B/cycle/unit"}},
             ends,
             {{"bytes", "KiB", 0, 1024}}}),
        .rows = {}};
  else
    table = {
        .key = "latency",
        .columns = joined<Column>({names,
                                   {{"ns", "ns", 2}, {"best_ns", "best", 2}, {"cycles", "cycles"}},
                                   ends,
                                   {{"bytes", "KiB", 0, 1024}}}),
        .rows = {}};
  for (const Ceiling& c : ceilings) {
    if (c.kind != kind) continue;
    const double unit = kind == CeilingKind::latency ? 1e9 : 1e-9;
    const Cell third = kind == CeilingKind::latency ? known(c.value * c.clock_hz) : per_cycle(c);
    std::vector<Cell> row = {c.resource,    c.operation, std::int64_t{c.num_units}, c.value * unit,
                             c.best * unit, third,       known(c.clock_hz * 1e-9),  known(c.watts)};
    if (kind != CeilingKind::compute) row.push_back(c.bytes > 0 ? Cell(c.bytes) : Cell());
    table.rows.push_back(std::move(row));
  }
  return table;
}

// ---- calls below the ceilings

struct Call {
  AttentionShape shape;
  std::string kernel;
  CallBound bound;
  Times times;
};

std::vector<Call> measure_calls(const RooflineOptions& options,
                                const std::vector<Ceiling>& ceilings) {
  std::vector<Call> calls;
  if (options.calls.empty()) return calls;
  Machine machine = machine_of(options.device, 0, true);
  for (const std::string& text : options.calls) {
    for (const AttentionShape& shape : shapes_of_call(text)) {
      show_line("call " + std::to_string(calls.size() + 1));
      const Plan plan = plan_attention(shape.problem, machine.device);
      const Times times = time_attention(shape, plan, {.is_cold = true}, machine).times;
      const std::string kernel(plan.kernel());
      calls.push_back({shape, kernel, bound_of(shape, kernel, ceilings), times});
    }
  }
  show_line("");
  return calls;
}

Table calls_table(const std::vector<Call>& calls) {
  Table table{.key = "calls",
              .columns = joined<Column>({{{.key = "call", .title = "call", .is_key = true}},
                                         shape_columns(),
                                         {{"features", "features"},
                                          {"kernel", "kernel"},
                                          {"bytes", "MB", 2, 1e6},
                                          {"flops", "GFLOP", 2, 1e9},
                                          {"exps", "Mexp", 2, 1e6},
                                          {"flops_per_byte", "FLOP/B", 2},
                                          {"bound", "bound"},
                                          {"bound_us", "bound us", 1},
                                          {"us", "us", 1},
                                          {"percent_of_bound", "% of bound"},
                                          {"gflops", "GFLOP/s"},
                                          {"gbytes", "GB/s"}}}),
              .rows = {}};
  for (const Call& call : calls) {
    const CallBound& b = call.bound;
    const double seconds = call.times.median;
    table.rows.push_back(
        joined<Cell>({{static_cast<std::int64_t>(table.rows.size() + 1)},
                      shape_cells(call.shape.problem),
                      {features_text(call.shape.problem), call.kernel, b.work.bytes, b.work.flops,
                       b.exps, b.intensity(), b.bound, known(b.seconds * 1e6), seconds * 1e6,
                       known(100 * b.seconds / seconds), b.work.flops / seconds * 1e-9,
                       b.work.bytes / seconds * 1e-9}}));
  }
  return table;
}

std::string point_text(const Call& call) {
  const headrace_problem& p = call.shape.problem;
  const double us = call.times.median * 1e6;
  char time[64];
  std::snprintf(time, sizeof time, us < 1e4 ? "%.4g us" : "%.4g ms", us < 1e4 ? us : us * 1e-3);
  std::string text = std::string(dtype_name(static_cast<DType>(p.dtype))) +
                     (p.phase == HEADRACE_BACKWARD ? " backward" : "") + ", batch " +
                     std::to_string(p.batch) + ", " + std::to_string(p.seqlen_q) + " queries, " +
                     std::to_string(p.seqlen_k) + " keys, " + std::to_string(p.num_heads) + '/' +
                     std::to_string(p.num_kv_heads) + " heads, dim " + std::to_string(p.head_dim) +
                     ": " + time;
  if (call.bound.seconds == 0) return text;
  std::snprintf(time, sizeof time, ", %.0f %% of the bound (",
                100 * call.bound.seconds / call.times.median);
  return text + time + call.bound.bound + ')';
}

void write_plot(const RooflineOptions& options, const DeviceInfo& device, const Source& source,
                const std::vector<Call>& calls) {
  RooflinePlot plot{
      .title = std::string("Roofline of ") + device.name,
      .subtitle = "Measured " + source.measured.date.substr(0, 10) + " on all " +
                  std::to_string(device.num_units) +
                  (device.device_type == HEADRACE_CUDA ? " multiprocessors" : " threads"),
      .memories = memory_roofs(source.measured.ceilings),
      .peaks = compute_roofs(source.measured.ceilings),
      .points = {}};
  plot.subtitle += "; memory: reads; dotted: ridge points of " + plot.memories.back().name;
  for (const Call& call : calls)
    plot.points.push_back(
        {point_text(call), call.bound.intensity(), call.bound.work.flops / call.times.median,
         call.bound.seconds > 0 ? call.bound.work.flops / call.bound.seconds : 0});
  std::ofstream file(options.svg, std::ios::binary);
  if (!file) fail_to_open(options.svg, "writing");
  if (!(file << roofline_svg(plot) << std::flush))
    throw Error(HEADRACE_IO_ERROR,
                options.svg + ": cannot be written; free space or name another file");
}

int run_roofline(const RooflineOptions& options) {
  const DeviceInfo device = device_from_text(options.device.c_str());
  const Source source = ceilings_of(device, options);
  const std::vector<Call> calls = measure_calls(options, source.measured.ceilings);
  Report report;
  report.notes = joined<Note>(
      {run_notes("roofline", options.command_line, device),
       {units_note(device), {"ceilings", source.text}, {"measured", source.measured.date}}});
  for (const CeilingKind kind :
       {CeilingKind::compute, CeilingKind::bandwidth, CeilingKind::latency})
    report.tables.push_back(table_of(kind, source.measured.ceilings));
  if (!calls.empty()) report.tables.push_back(calls_table(calls));
  if (!options.svg.empty()) write_plot(options, device, source, calls);
  print_report(report, options.format);
  return kExitOk;
}

}  // namespace

void add_roofline(CLI::App& app, Action& action, const std::string& command_line) {
  CLI::App* roofline = app.add_subcommand(
      "roofline", "Measure what a device can do at best, and where calls lie below it");
  auto options = std::make_shared<RooflineOptions>();
  options->command_line = command_line;
  roofline->add_option("--device", options->device, "cpu, cuda or cuda:NUMBER")
      ->check(check_machine)
      ->option_text("DEVICE [cpu]");
  add_list(*roofline, "--call", options->calls,
           "also time \"attention OPTIONS\" (of explain attention); repeatable")
      ->check(check_call)
      ->option_text("CALL");
  roofline->add_option("--svg", options->svg, "also write a plot")->option_text("FILE");
  roofline->add_flag("--refresh", options->is_refresh,
                     "measure again, even if the ceilings are cached");
  roofline->add_option("--rounds", options->measurement.num_rounds, "rounds of each measurement")
      ->transform(whole_number({1, 1000}))
      ->option_text("N [9]");
  roofline
      ->add_option("--min-time", options->measurement.round_seconds, "time of a round in seconds")
      ->transform(real_number({0, 10}))
      ->option_text("SECONDS [0.02]");
  add_format_option(*roofline, options->format);
  roofline->callback([&action, options] { action = [options] { return run_roofline(*options); }; });
}

}  // namespace headrace::cli
