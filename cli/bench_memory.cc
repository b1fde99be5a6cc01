// headrace bench memory: the memory of Headrace's plans next to that of the matrices that standard
// attention materializes.
#include <algorithm>
#include <memory>

#include "attention_shape.h"
#include "command.h"
#include "headrace/headrace.hpp"
#include "machine.h"

namespace headrace::cli {
namespace {

struct MemoryOptions {
  ShapeOptions shape;
  std::string device = "cpu";
  Format format = Format::text;
  std::string command_line;
};

Table make_table() {
  constexpr double kMiB = 1024 * 1024;
  return {.key = "rows",
          .columns = joined<Column>({shape_columns(),
                                     {{"kernel", "kernel"},
                                      {"out_bytes", "out MiB", 2, kMiB},
                                      {"lse_bytes", "lse MiB", 2, kMiB},
                                      {"workspace_bytes", "workspace MiB", 2, kMiB},
                                      {"bytes", "sum MiB", 2, kMiB},
                                      {"standard_bytes", "standard MiB (formula)", 2, kMiB},
                                      {"ratio", "standard / sum"}}}),
          .rows = {}};
}

// Forward: S and P; backward: P, dP and dS. Each is [batch, num_heads, seqlen_q, seqlen_k].
std::int64_t standard_bytes(const headrace_problem& p) {
  std::int64_t bytes = p.phase == HEADRACE_BACKWARD ? 3 : 2;
  for (const std::int64_t factor :
       {static_cast<std::int64_t>(dtype_bytes(static_cast<DType>(p.dtype))), p.batch, p.num_heads,
        p.seqlen_q, p.seqlen_k})
    if (__builtin_mul_overflow(bytes, factor, &bytes))
      throw Error(HEADRACE_INVALID_ARGUMENT,
                  "--seqlen-q " + std::to_string(p.seqlen_q) + " with --seqlen-k " +
                      std::to_string(p.seqlen_k) +
                      ": the size of the scores exceeds 64 bits; pass shorter sequences");
  return bytes;
}

std::vector<Cell> row_of(const headrace_problem& p, const DeviceInfo& device) {
  const Plan plan = plan_attention(p, device);  // also checks the sizes
  const auto element_bytes = static_cast<std::int64_t>(dtype_bytes(static_cast<DType>(p.dtype)));
  const std::int64_t rows = p.batch * p.num_heads * p.seqlen_q;
  const std::int64_t out_bytes = rows * p.head_dim_v * element_bytes;
  const std::int64_t lse_bytes = rows * std::max<std::int64_t>(element_bytes, 4);
  const auto workspace_bytes = static_cast<std::int64_t>(plan.workspace_bytes());
  const std::int64_t bytes = out_bytes + lse_bytes + workspace_bytes;
  const std::int64_t standard = standard_bytes(p);
  return joined<Cell>({shape_cells(p),
                       {std::string(plan.kernel()), out_bytes, lse_bytes, workspace_bytes, bytes,
                        standard, static_cast<double>(standard) / static_cast<double>(bytes)}});
}

int run_bench(const MemoryOptions& options) {
  const DeviceInfo device = device_from_text(options.device.c_str());
  Report report;
  report.notes = joined<Note>(
      {run_notes("memory", options.command_line, device),
       {units_note(device),
        {"standard",
         std::string("by formula, not run: S and P of a forward, P, dP and dS of a backward, "
                     "batch x heads x seqlen_q x seqlen_k elements each")}}});
  report.tables.push_back(make_table());
  for (const AttentionShape& shape : shapes_of(dims_of(options.shape), options.shape)) {
    headrace_problem problem = shape.problem;
    problem.has_lse = 1;  // the backward reads it
    report.tables[0].rows.push_back(row_of(problem, device));
    make_backward(problem);
    report.tables[0].rows.push_back(row_of(problem, device));
  }
  print_report(report, options.format);
  return kExitOk;
}

}  // namespace

void add_bench_memory(CLI::App& bench, Action& action, const std::string& command_line) {
  CLI::App* app = bench.add_subcommand(
      "memory", "Memory of forward and backward vs standard attention; no kernel runs");
  auto options = std::make_shared<MemoryOptions>();
  options->command_line = command_line;
  options->shape.seqlen = {512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};
  add_size_options(*app, options->shape);
  app->add_option("--device", options->device,
                  "cpu, cpu:ISA, cpu:ISA:THREADS or smNN:UNITS; need not be present")
      ->option_text("DEVICE [cpu]");
  add_format_option(*app, options->format);
  app->callback([&action, options] { action = [options] { return run_bench(*options); }; });
}

}  // namespace headrace::cli
