// headrace_conformance: compares kernels with the double-precision reference over a grid of cases.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "conformance/suites.h"

namespace headrace::testing {

namespace {

struct CommandLine {
  SuiteOptions options;
  std::string case_id, tier = "full", keys = "whole", shard = "1/1", format = "text";
  bool is_list = false;
};

void add_options(CLI::App& app, CommandLine& line) {
  SuiteOptions& o = line.options;
  app.add_option("--suite", o.suite, "suite to run")
      ->check(CLI::IsMember(
          {"grid", "backward", "bits", "catalogue", "quantised", "oracle", "fuzz", "all"}));
  app.add_option("--kernel", o.kernel, "run only this kernel");
  app.add_option("--device", o.device, "kernels to run")
      ->check(CLI::IsMember({"cpu", "cuda", "all"}));
  app.add_option("--case", line.case_id, "replay one case and print its details");
  app.add_option("--keys", line.keys, "with --case: where the keys lie")
      ->check(CLI::IsMember(
          std::vector<std::string>(std::begin(kKeyStorages), std::end(kKeyStorages))));
  app.add_option("--count", o.count, "number of cases in the grid");
  app.add_option("--seed", o.seed, "seed of the grid or the fuzzing run");
  app.add_option("--seconds", o.seconds, "duration of fuzzing");
  app.add_option("--tier", line.tier,
                 "small: a few hundred cases; whole: all cases of the named grids")
      ->check(CLI::IsMember({"small", "full", "whole"}));
  app.add_option("--only", o.only,
                 "backward, quantised: one grid, check or case of a grid: B1, B1/17, Q2");
  app.add_option("--shard", line.shard, "i/n: run part i of n, counted from 1");
  app.add_option("--threads", o.num_threads, "cases in parallel")->check(CLI::Range(1, 64));
  app.add_option("--format", line.format, "report format")
      ->check(CLI::IsMember({"text", "csv", "json", "md"}));
  app.add_flag("--list", line.is_list, "list kernels, suites and axes");
}

void print_list() {
  for (const Target& target : targets())
    std::printf("kernel %.*s\n", static_cast<int>(target.kernel->name.size()),
                target.kernel->name.data());
  for (const Target& target : lab_targets())
    std::printf("kernel %.*s (runs only when named)\n",
                static_cast<int>(target.kernel->name.size()), target.kernel->name.data());
  for (const Target& target : backward_targets())
    std::printf("kernel %.*s (backward)\n", static_cast<int>(target.kernel->name.size()),
                target.kernel->name.data());
  for (const std::string& name : skipped_targets())
    std::printf("kernel %s (not supported by this CPU)\n", name.c_str());
  std::printf("suites grid backward bits catalogue quantised oracle fuzz all\n");
  for (const AxisInfo& axis : axes()) {
    std::printf("axis %s:", axis.name);
    for (const char* value : axis.values) std::printf(" %s", value);
    std::printf("\n");
  }
}

int run_suites(const CommandLine& line) {
  using Run = Report (*)(const SuiteOptions&);
  const std::pair<const char*, Run> suites[] = {{"grid", run_grid},
                                                {"backward", run_backward},
                                                {"bits", run_bits},
                                                {"catalogue", run_catalogue},
                                                {"quantised", run_quantised},
                                                {"oracle", run_oracle},
                                                {"fuzz", run_fuzz}};
  bool ok = true;
  for (const auto& [name, run] : suites) {
    const bool is_all = line.options.suite == "all" && std::string(name) != "fuzz";
    if (line.options.suite != name && !is_all) continue;
    const Report report = run(line.options);
    std::fputs(format_report(report, line.format).c_str(), stdout);
    std::fflush(stdout);
    ok = ok && report.ok();
  }
  return ok ? 0 : 1;
}

int run_program(int argc, char** argv) {
  CLI::App app{"Compares the kernels of this machine with the double-precision reference."};
  CommandLine line;
  add_options(app, line);
  CLI11_PARSE(app, argc, argv);
  SuiteOptions& o = line.options;
  o.tier = line.tier == "small" ? Tier::small : line.tier == "whole" ? Tier::whole : Tier::full;
  if (std::sscanf(line.shard.c_str(), "%d/%d", &o.shard, &o.num_shards) != 2 || o.num_shards < 1 ||
      o.shard < 1 || o.shard > o.num_shards) {
    std::fprintf(stderr, "--shard %s: must be i/n with 1 <= i <= n\n", line.shard.c_str());
    return 2;
  }
  --o.shard;
  if (o.num_shards > 1 && o.suite != "grid" && o.suite != "backward" && o.suite != "bits") {
    std::fprintf(stderr, "--shard %s: suite %s has no parts; run grid, backward or bits\n",
                 line.shard.c_str(), o.suite.c_str());
    return 2;
  }
  const auto* keys = std::find(std::begin(kKeyStorages), std::end(kKeyStorages), line.keys);
  o.keys = static_cast<KeyStorage>(keys - std::begin(kKeyStorages));
  if (line.is_list) {
    print_list();
    return 0;
  }
  const bool is_backward = o.suite == "backward" || o.suite == "bits" || o.suite == "all";
  if (chosen_targets(o).empty() && !(is_backward && !chosen_backward_targets(o).empty())) {
    std::fprintf(stderr, "--kernel %s: no such kernel on this machine and --device; see --list\n",
                 o.kernel.c_str());
    return 2;
  }
  install_crash_handler();
  if (!line.case_id.empty()) return replay_case(std::stoull(line.case_id, nullptr, 0), o);
  return run_suites(line);
}

}  // namespace
}  // namespace headrace::testing

int main(int argc, char** argv) { return headrace::testing::run_program(argc, argv); }
