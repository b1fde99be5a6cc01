// headrace bench attention: time, throughput and memory traffic of attention calls, forward or
// backward, next to the machine's peaks, measured in the same run.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "attention_shape.h"
#include "attention_timing.h"
#include "command.h"
#include "headrace/headrace.hpp"
#include "machine.h"
#include "options.h"
#include "probes/probes.h"
#include "progress.h"
#include "schedule_text.h"
#include "tuning_file.h"

namespace headrace::cli {
namespace {

struct BenchOptions {
  ShapeOptions shape;
  bool is_grid = true;  // no sizes on the command line
  int num_threads = 0;  // 0: all that the library finds
  std::string device = "cpu";
  TimingOptions timing;
  bool skips_ceilings = false;
  bool skips_tuning = false;
  Format format = Format::text;
  std::string command_line;
};

// Prefill from launch-bound to compute-bound at each head_dim; then decode with 32/8 heads.
constexpr Dims kPrefillGrid[] = {
    {1, 128, 128, 8, 8, 64, 64},     {4, 512, 512, 16, 16, 64, 64},
    {1, 1024, 1024, 16, 16, 64, 64}, {1, 4096, 4096, 16, 16, 64, 64},
    {1, 4096, 4096, 8, 8, 128, 128}, {1, 1024, 1024, 4, 4, 256, 256},
};
constexpr Dims kDecodeGrid[] = {
    {1, 1, 512, 32, 8, 128, 128},
    {1, 1, 4096, 32, 8, 128, 128},
    {1, 1, 32768, 32, 8, 128, 128},
    {8, 1, 4096, 32, 8, 128, 128},
};

std::vector<AttentionShape> shapes_to_run(const BenchOptions& options) {
  if (!options.is_grid) return shapes_of(dims_of(options.shape), options.shape);
  auto shapes = shapes_of({std::begin(kPrefillGrid), std::end(kPrefillGrid)}, options.shape);
  if (options.shape.is_backward) return shapes;  // decode has no backward
  // A single query sees every key, so causal changes nothing.
  ShapeOptions decode = options.shape;
  decode.causal = {"none"};
  const auto more = shapes_of({std::begin(kDecodeGrid), std::end(kDecodeGrid)}, decode);
  shapes.insert(shapes.end(), more.begin(), more.end());
  return shapes;
}

// Peaks of the machine; 0: not measured.
struct Ceilings {
  probes::Peak f32, bf16;
  double gbytes = 0;  // GB/s

  // Peak of the execution unit that the kernel uses.
  double gflops_for(const headrace_problem& problem, std::string_view kernel) const {
    const bool is_bf16_dot =
        problem.dtype == HEADRACE_BF16 && kernel.find("bf16") != std::string_view::npos;
    return is_bf16_dot ? bf16.gflops : f32.gflops;
  }
};

probes::Peak better(const probes::Peak& a, const probes::Peak& b) {
  return a.gflops >= b.gflops ? a : b;
}

// Called before and after the measurements: clocks may change in between; the best value counts.
void raise_ceilings(int num_threads, Ceilings& ceilings) {
  show_line("measuring the machine's peaks");
  ceilings.f32 = better(ceilings.f32, probes::measure_f32_fma(num_threads));
  ceilings.bf16 = better(ceilings.bf16, probes::measure_bf16_dot(num_threads));
  ceilings.gbytes = std::max(ceilings.gbytes, probes::measure_read_bandwidth(num_threads));
}

Table make_table() {
  return {.key = "rows",
          .columns = joined<Column>({shape_columns(),
                                     {{"features", "features"}},
                                     time_columns(),
                                     {{"gflops", "GFLOP/s"},
                                      {"percent_of_fma_peak", "% peak"},
                                      {"gbytes", "GB/s"},
                                      {"read_gbytes", "read GB/s"},
                                      {"percent_of_read_bandwidth", "% read"},
                                      {"kernel", "kernel"},
                                      {"tile_m", "tile_m"},
                                      {"tile_n", "tile_n"},
                                      {"max_splits", "splits"},
                                      {"workspace_bytes", "workspace KiB", 1, 1024}}}),
          .rows = {}};
}

Cell percent(double value, double ceiling) {
  return ceiling > 0 ? Cell(100 * value / ceiling) : Cell();
}

std::vector<Cell> row_of(const AttentionShape& shape, const Plan& plan, const TimedCalls& calls,
                         const Ceilings& ceilings) {
  const Times& times = calls.times;
  const headrace_problem& p = shape.problem;
  const Work work = work_of(shape);
  const double gflops = work.flops / times.median * 1e-9;
  const double gbytes = work.bytes / times.median * 1e-9;
  // Cold calls: relative to the bandwidth of the evicting reads of the same threads; medians.
  const double read_gbytes = calls.read_gbytes > 0 ? calls.read_gbytes : ceilings.gbytes;
  const ScheduleFacts schedule = schedule_of(plan.explain());
  return joined<Cell>({shape_cells(p),
                       {features_text(p)},
                       time_cells(times),
                       {gflops, percent(gflops, ceilings.gflops_for(p, plan.kernel())), gbytes,
                        read_gbytes > 0 ? Cell(read_gbytes) : Cell(), percent(gbytes, read_gbytes),
                        std::string(plan.kernel()), schedule.tile_m, schedule.tile_n,
                        schedule.max_splits, static_cast<std::int64_t>(plan.workspace_bytes())}});
}

std::string ceilings_text(const Ceilings& ceilings) {
  char text[160];
  std::snprintf(text, sizeof text, "f32 FMA %.1f GFLOP/s (%s), read %.1f GB/s", ceilings.f32.gflops,
                ceilings.f32.isa.c_str(), ceilings.gbytes);
  std::string all = text;
  if (ceilings.bf16.gflops > 0) {
    std::snprintf(text, sizeof text, ", bf16 dot %.1f GFLOP/s", ceilings.bf16.gflops);
    all += text;
  }
  return all;
}

void add_notes(const BenchOptions& options, const DeviceInfo& device, const Ceilings& ceilings,
               Report& report) {
  report.notes = joined<Note>(
      {run_notes("attention", options.command_line, device),
       {units_note(device),
        {"caches", std::string(options.timing.is_cold ? "cold: evicted before each call" : "warm")},
        {"layout", std::string(options.timing.layout == Layout::bhsd ? "bhsd" : "bshd")}}});
  if (options.skips_ceilings) return;
  if (options.format != Format::json) {
    report.notes.emplace_back("ceilings", ceilings_text(ceilings));
    return;
  }
  report.notes.emplace_back("f32_fma_gflops", ceilings.f32.gflops);
  report.notes.emplace_back("f32_fma_isa", ceilings.f32.isa);
  report.notes.emplace_back("bf16_dot_gflops",
                            ceilings.bf16.gflops > 0 ? Cell(ceilings.bf16.gflops) : Cell());
  report.notes.emplace_back("read_gbytes", ceilings.gbytes);
}

struct Measured {
  AttentionShape shape;
  Plan plan;
  TimedCalls calls;
};

// A call that every kernel refuses is skipped with a note, so that the others are still measured.
std::vector<Measured> measure(const std::vector<AttentionShape>& shapes, Machine& machine,
                              const BenchOptions& options) {
  std::vector<Measured> results;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    show_line('[' + std::to_string(i + 1) + '/' + std::to_string(shapes.size()) + ']');
    try {
      Plan plan = plan_attention(shapes[i].problem, machine.device);
      const TimedCalls calls = time_attention(shapes[i], plan, options.timing, machine);
      results.push_back({shapes[i], std::move(plan), calls});
    } catch (const Error& error) {
      if (error.code() != HEADRACE_UNSUPPORTED) throw;
      show_line("");
      print_note(std::string("skipped: ") + error.what());
    }
  }
  return results;
}

int run_bench(const BenchOptions& asked) {
  BenchOptions options = asked;
  Machine machine = machine_of(options.device, options.num_threads, options.timing.is_cold);
  const DeviceInfo& device = machine.device;
  options.skips_ceilings = options.skips_ceilings || machine.gpu;  // the probes measure CPUs only
  const auto shapes = shapes_to_run(options);
  const std::string tuning = options.skips_tuning ? "" : use_tuning(device);
  Ceilings ceilings;
  if (!options.skips_ceilings) raise_ceilings(device.num_units, ceilings);
  const auto results = measure(shapes, machine, options);
  if (!options.skips_ceilings) raise_ceilings(device.num_units, ceilings);
  show_line("");
  Report report;
  add_notes(options, device, ceilings, report);
  report.notes.emplace_back("tuning", tuning.empty() ? Cell() : Cell(tuning));
  report.tables.push_back(make_table());
  for (const Measured& result : results)
    report.tables[0].rows.push_back(row_of(result.shape, result.plan, result.calls, ceilings));
  print_report(report, options.format);
  return results.size() == shapes.size() ? kExitOk : kExitFailure;
}

}  // namespace

void add_bench_attention(CLI::App& bench, Action& action, const std::string& command_line) {
  CLI::App* app =
      bench.add_subcommand("attention", "Attention calls; a grid of shapes if no sizes are given");
  auto options = std::make_shared<BenchOptions>();
  options->command_line = command_line;
  add_shape_options(*app, options->shape);
  constexpr const char* kGroup = "Measurement";
  app->add_option_function<std::string>(
         "--layout",
         [options](const std::string& name) {
           options->timing.layout = name == "bhsd" ? Layout::bhsd : Layout::bshd;
         },
         "memory order of batch (b), seqlen (s), heads (h) and dim (d)")
      ->check(CLI::IsMember({"bshd", "bhsd"}))
      ->option_text("bshd|bhsd [bshd]")
      ->group(kGroup);
  app->add_option("--device", options->device, "cpu, cuda or cuda:NUMBER")
      ->option_text("DEVICE [cpu]")
      ->group(kGroup);
  app->add_option("--threads", options->num_threads, "threads per call (default: all allowed)")
      ->transform(whole_number({1, 1024}))
      ->option_text("N")
      ->group(kGroup);
  app->add_option("--reps", options->timing.reps, "minimum number of calls per row")
      ->transform(whole_number({1, 100000}))
      ->option_text("N [5]")
      ->group(kGroup);
  app->add_option("--min-time", options->timing.min_time, "minimum time per row in seconds")
      ->transform(real_number({0, 3600}))
      ->option_text("SECONDS [0.2]")
      ->group(kGroup);
  app->add_flag("--cold", options->timing.is_cold,
                "evict the caches before each call, as decoding does")
      ->group(kGroup);
  app->add_flag("--no-ceilings", options->skips_ceilings, "do not measure the machine's peaks")
      ->group(kGroup);
  app->add_flag("--no-tuning", options->skips_tuning, "ignore what headrace tune found")
      ->group(kGroup);
  add_format_option(*app, options->format);
  app->callback([&action, app, options] {
    options->is_grid = !has_dims(*app);
    action = [options] { return run_bench(*options); };
  });
}

}  // namespace headrace::cli
