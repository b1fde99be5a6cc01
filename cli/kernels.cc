// headrace kernels: the support matrix. Each entry is the kernel's own answer to a problem with
// only that feature.
#include <functional>
#include <memory>
#include <optional>

#include "attention_shape.h"
#include "command.h"
#include "headrace/headrace.hpp"

namespace headrace::cli {
namespace {

struct KernelsOptions {
  std::string device = "cpu";
  Format format = Format::text;
  bool is_verbose = false;
  bool is_backward = false;
};

struct Feature {
  const char* key;
  const char* title;
  std::function<void(headrace_problem&)> apply;
};

void make_ragged(headrace_problem& p) {
  p.is_ragged = 1;
  p.total_q = p.batch * p.seqlen_q;
  p.total_k = p.batch * p.seqlen_k;
}

const std::vector<Feature>& dtypes() {
  static const std::vector<Feature> kDtypes = {
      {"f32", "f32", [](auto& p) { p.dtype = HEADRACE_F32; }},
      {"f16", "f16", [](auto& p) { p.dtype = HEADRACE_F16; }},
      {"bf16", "bf16", [](auto& p) { p.dtype = HEADRACE_BF16; }},
      {"f64", "f64", [](auto& p) { p.dtype = HEADRACE_F64; }},
  };
  return kDtypes;
}

const std::vector<Feature>& features() {
  static const std::vector<Feature> kFeatures = {
      {"causal", "causal", [](auto& p) { p.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT; }},
      {"top_left", "top-left", [](auto& p) { p.causal = HEADRACE_CAUSAL_TOP_LEFT; }},
      {"window", "window", [](auto& p) { p.window_left = p.window_right = 16; }},
      {"softcap", "softcap", [](auto& p) { p.softcap = 30; }},
      {"alibi", "alibi", [](auto& p) { p.has_alibi = 1; }},
      {"bias", "bias", [](auto& p) { p.bias_dtype = p.dtype; }},
      {"mask", "mask", [](auto& p) { p.has_mask = 1; }},
      {"tree_mask", "tree", [](auto& p) { p.has_tree_mask = 1; }},
      {"sinks", "sinks", [](auto& p) { p.has_sinks = 1; }},
      {"dropout", "dropout", [](auto& p) { p.dropout_p = 0.1; }},
      {"ragged", "ragged", make_ragged},
      {"gqa", "gqa", [](auto& p) { p.num_kv_heads = p.num_heads / 4; }},
      {"decode", "decode", [](auto& p) { p.seqlen_q = 1; }},
      {"lse", "lse", [](auto& p) { p.has_lse = 1; }},
      {"probs", "probs", [](auto& p) { p.has_probs = 1; }},
      {"strict_rows", "strict rows", [](auto& p) { p.strict_rows = 1; }},
  };
  return kFeatures;
}

headrace_problem plain_problem(std::int32_t phase) {
  headrace_problem p;
  headrace_problem_init(&p);
  if (phase == HEADRACE_BACKWARD) make_backward(p);
  p.batch = 2;
  p.seqlen_q = p.seqlen_k = 128;
  p.num_heads = p.num_kv_heads = 8;
  p.head_dim = p.head_dim_v = 64;
  return p;
}

// Empty: accepted. Else the kernel's reason, or the library's error if the problem is invalid.
std::string refusal(const headrace_problem& problem, const DeviceInfo& device, int index) {
  const char* reason = headrace_kernel_refusal(&problem, &device, index);
  return reason == nullptr ? headrace_last_error() : reason;
}

// A problem that the kernel accepts, as a base for the features: any dtype, many queries or one.
std::optional<headrace_problem> accepted_problem(const DeviceInfo& device, std::int32_t phase,
                                                 int index) {
  for (const std::int64_t seqlen_q : {128, 1}) {
    for (const Feature& dtype : dtypes()) {
      headrace_problem p = plain_problem(phase);
      p.seqlen_q = seqlen_q;
      dtype.apply(p);
      if (refusal(p, device, index).empty()) return p;
    }
  }
  return std::nullopt;
}

// "1-256, 320": tries every size.
std::string head_dims_text(const headrace_problem& accepted, const DeviceInfo& device, int index) {
  constexpr std::int64_t kLargest = 1024;
  std::string text;
  std::int64_t begin = 0;  // first of a range of accepted sizes; 0: none
  for (std::int64_t dim = 1; dim <= kLargest + 1; ++dim) {
    headrace_problem p = accepted;
    p.head_dim = p.head_dim_v = dim;
    const bool is_taken = dim <= kLargest && refusal(p, device, index).empty();
    if (is_taken && begin == 0) begin = dim;
    if (is_taken || begin == 0) continue;
    if (!text.empty()) text += ", ";
    text += std::to_string(begin);
    if (dim - 1 > begin) text += '-' + std::to_string(dim - 1);
    begin = 0;
  }
  return text;
}

Table make_matrix() {
  Table table{.key = "kernels", .columns = {{"kernel", "kernel"}, {"here", "here"}}, .rows = {}};
  for (const auto* group : {&dtypes(), &features()})
    for (const Feature& feature : *group) table.columns.push_back({feature.key, feature.title});
  table.columns.push_back({"head_dim", "head_dim"});
  table.columns.push_back({"summary", "summary"});
  return table;
}

Table make_refusals() {
  return {.key = "refusals",
          .columns = {{"kernel", "kernel"}, {"feature", "feature"}, {"reason", "reason"}},
          .rows = {}};
}

struct Probe {
  DeviceInfo here;      // the requested device
  DeviceInfo complete;  // the same with every instruction set: only features decide
  std::int32_t phase;
  int index;
};

void add_kernel(const Probe& probe, Table& matrix, Table& refusals) {
  const std::string name = headrace_kernel_name(probe.here.device_type, probe.phase, probe.index);
  auto& row = matrix.rows.emplace_back();
  row.emplace_back(name);
  const auto add_answer = [&](const char* key, const std::string& reason) {
    row.emplace_back(reason.empty());
    if (!reason.empty()) refusals.rows.push_back({name, std::string(key), reason});
  };
  const auto accepted = accepted_problem(probe.complete, probe.phase, probe.index);
  const headrace_problem base = accepted.value_or(plain_problem(probe.phase));
  add_answer("here", refusal(base, probe.here, probe.index));
  for (const Feature& dtype : dtypes()) {
    headrace_problem p = base;
    dtype.apply(p);
    add_answer(dtype.key, refusal(p, probe.complete, probe.index));
  }
  for (const Feature& feature : features()) {
    headrace_problem p = base;
    feature.apply(p);
    add_answer(feature.key, refusal(p, probe.complete, probe.index));
  }
  row.emplace_back(head_dims_text(base, probe.complete, probe.index));
  row.emplace_back(
      std::string(headrace_kernel_summary(probe.here.device_type, probe.phase, probe.index)));
}

int run_kernels(const KernelsOptions& options) {
  Probe probe{.here = device_from_text(options.device.c_str()),
              .complete = {},
              .phase = options.is_backward ? HEADRACE_BACKWARD : HEADRACE_FORWARD,
              .index = 0};
  probe.complete = probe.here;
  if (probe.here.device_type == HEADRACE_CPU)
    probe.complete.cpu_isa = HEADRACE_ISA_AVX2 | HEADRACE_ISA_AVX512 | HEADRACE_ISA_AVX512_VNNI |
                             HEADRACE_ISA_AVX512_BF16 | HEADRACE_ISA_AVX512_BF16_FAST |
                             HEADRACE_ISA_NEON;
  Table matrix = make_matrix();
  Table refusals = make_refusals();
  const int num_kernels = headrace_num_kernels(probe.here.device_type, probe.phase);
  for (; probe.index < num_kernels; ++probe.index) add_kernel(probe, matrix, refusals);
  if (num_kernels == 0) print_note("this build has no kernels for " + options.device);
  Report report;
  report.tables.push_back(std::move(matrix));
  if (options.is_verbose) report.tables.push_back(std::move(refusals));
  print_report(report, options.format);
  return kExitOk;
}

}  // namespace

void add_kernels(CLI::App& app, Action& action) {
  CLI::App* kernels = app.add_subcommand(
      "kernels", "Show the kernels in order of preference, and what each supports");
  auto options = std::make_shared<KernelsOptions>();
  kernels
      ->add_option("--device", options->device,
                   "device of the column \"here\"; same values as in explain attention")
      ->option_text("DEVICE [cpu]");
  kernels->add_flag("-v,--verbose", options->is_verbose, "also list the reason for each \"no\"");
  kernels->add_flag("--backward", options->is_backward, "list the backward kernels");
  add_format_option(*kernels, options->format);
  kernels->callback([&action, options] { action = [options] { return run_kernels(*options); }; });
}

}  // namespace headrace::cli
