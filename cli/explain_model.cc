// headrace explain model: what a step of a model moves and computes, and its least time on a device
// given by its numbers.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>

#include "command.h"
#include "files.h"
#include "headrace/step.hpp"
#include "model_options.h"
#include "model_shape.h"
#include "options.h"

namespace headrace::cli {
namespace {

struct ExplainOptions {
  std::string path, like, device = "cpu", cache_type = "f16";
  std::string k_type, v_type;  // of codes; empty: cache_type
  std::string weight_type = "BF16";
  std::int64_t batch = 1, context = 1024, prompt = 0;
  double gbytes_per_s = 0, tflops = 0;  // 0: not given
  Format format = Format::text;
};

ModelFile file_of(const ExplainOptions& options) {
  if (!options.path.empty()) {
    require_regular_file(options.path);
    return ModelFile(options.path);
  }
  const ModelShape shape(options.like);
  return shape.blaming_the_file([&] { return ModelFile(shape.get(), options.weight_type); });
}

// Decode, or the prefill of `prompt` tokens at the end of the context.
StepShape step_of(const ExplainOptions& options) {
  return {.num_seqs = options.batch,
          .seqlen_q = std::max<std::int64_t>(options.prompt, 1),
          .seqlen_k = options.context,
          .cache_dtype = dtype_of_cache(options.cache_type),
          .k_dtype = stored_dtype(options.k_type),
          .v_dtype = stored_dtype(options.v_type)};
}

Table make_table() {
  return {.key = "operators",
          .columns = {{"operator", "operator"},
                      {"calls", "calls"},
                      {"kernel", "kernel"},
                      {"bytes", "MB", 2, 1e6},
                      {"flops", "GFLOP", 2, 1e9},
                      {"flops_per_byte", "FLOP/B", 1},
                      {"bound", "bound"},
                      {"microseconds", "us", 1},
                      {"percent", "%", 1}},
          .rows = {}};
}

// The least time of an operator: that of its bytes or of its FLOP.
struct Bound {
  double microseconds;
  bool is_memory;
};
std::optional<Bound> bound_of(const OperatorCost& cost, const ExplainOptions& options) {
  if (options.gbytes_per_s == 0) return std::nullopt;
  const double memory = cost.bytes / options.gbytes_per_s * 1e-3;
  const double arithmetic = cost.flops / options.tflops * 1e-6;
  return Bound{std::max(memory, arithmetic), memory >= arithmetic};
}

std::vector<Cell> row_of(const OperatorCost& cost, const std::optional<Bound>& bound,
                         double all_microseconds) {
  std::vector<Cell> row = {cost.name,  cost.num_calls, cost.kernel,
                           cost.bytes, cost.flops,     cost.flops / cost.bytes};
  if (!bound) return joined<Cell>({row, {Cell(), Cell(), Cell()}});
  return joined<Cell>({row,
                       {std::string(bound->is_memory ? "memory" : "arithmetic"),
                        bound->microseconds, 100 * bound->microseconds / all_microseconds}});
}

int run_explain(const ExplainOptions& options) {
  const DeviceInfo device = device_from_text(options.device.c_str());
  const StepShape step = step_of(options);
  const std::vector<OperatorCost> costs = explain_step(file_of(options), step, device);
  double microseconds = 0;
  OperatorCost total;
  total.name = "total";
  for (const OperatorCost& cost : costs) {
    if (const auto bound = bound_of(cost, options)) microseconds += bound->microseconds;
    total.num_calls += cost.num_calls;
    total.bytes += cost.bytes;
    total.flops += cost.flops;
  }
  Report report;
  report.notes = {{"model", options.path.empty() ? options.like : options.path},
                  {"device", options.device},
                  {"step", std::string(options.prompt > 0 ? "prefill" : "decode")},
                  {"sequences", step.num_seqs},
                  {"tokens_per_sequence", step.seqlen_q},
                  {"context", step.seqlen_k}};
  report.tables = {make_table()};
  for (const OperatorCost& cost : costs)
    report.tables[0].rows.push_back(row_of(cost, bound_of(cost, options), microseconds));
  std::vector<Cell> last = row_of(total, std::nullopt, 1);
  if (microseconds > 0) {
    last[7] = microseconds;
    report.notes.push_back(
        {"at_most_tokens_per_s",
         static_cast<double>(step.num_seqs * step.seqlen_q) / microseconds * 1e6});
  }
  report.tables[0].rows.push_back(std::move(last));
  print_report(report, options.format);
  return kExitOk;
}

void add_step_options(CLI::App& app, ExplainOptions& options) {
  constexpr std::int64_t kMost = 1 << 24;
  app.add_option("-b,--batch", options.batch, "sequences of the step")
      ->transform(whole_number({1, 65536}))
      ->option_text("N [1]");
  app.add_option("-c,--context", options.context, "tokens of each sequence after the step")
      ->transform(whole_number({1, kMost}))
      ->option_text("N [1024]");
  app.add_option("-p,--prompt", options.prompt,
                 "prefill: compute the last N tokens of each context; 0: decode")
      ->transform(whole_number({0, kMost}))
      ->option_text("N [0]");
  app.add_option("--cache-type", options.cache_type, "element type of the KV cache")
      ->check(CLI::IsMember({"f16", "bf16", "f32"}))
      ->option_text("f16|bf16|f32 [f16]");
  add_stored_types(app, options.k_type, options.v_type, "Options");
  app.add_option("--device", options.device,
                 "cpu, cpu:ISA, cpu:ISA:THREADS or smNN:UNITS; need not be present")
      ->option_text("DEVICE [cpu]");
  CLI::Option* bandwidth =
      app.add_option("--bandwidth", options.gbytes_per_s, "memory bandwidth of the device in GB/s")
          ->transform(real_number({1e-3, 1e9}))
          ->option_text("X");
  CLI::Option* peak = app.add_option("--peak", options.tflops, "peak of its products in TFLOP/s")
                          ->transform(real_number({1e-6, 1e9}))
                          ->option_text("X");
  bandwidth->needs(peak);
  peak->needs(bandwidth);
}

}  // namespace

void add_explain_model(CLI::App& explain, Action& action) {
  CLI::App* app = explain.add_subcommand(
      "model", "Bytes, FLOP and least time of each operator of a model's step");
  auto options = std::make_shared<ExplainOptions>();
  CLI::Option* file =
      app->add_option("-m,--model", options->path, "model file (GGUF)")->option_text("FILE");
  CLI::Option* like =
      app->add_option("--like", options->like, "published model (llama-3.1-8b), or a config.json")
          ->option_text("NAME|FILE.json")
          ->excludes(file);
  add_weight_type(*app, options->weight_type)->needs(like);
  add_step_options(*app, *options);
  add_format_option(*app, options->format);
  app->callback([&action, options] {
    if (options->path.empty() && options->like.empty())
      throw CLI::RequiredError("--model or --like");
    action = [options] { return run_explain(*options); };
  });
}

}  // namespace headrace::cli
