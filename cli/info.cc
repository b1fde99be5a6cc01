// headrace info: this build and this machine.
#include <cstdlib>
#include <memory>

#include "command.h"
#include "headrace/headrace.hpp"
#include "line_reader.h"
#include "machine.h"
#include "probes/probes.h"

namespace headrace::cli {
namespace {

std::string gpu_text(const DeviceInfo& gpu) {
  return std::string(gpu.name) + ", sm" + std::to_string(gpu.sm) + ", " +
         std::to_string(gpu.num_units) + " SMs, L2 " + bytes_text(gpu.l2_bytes) + ", " +
         bytes_text(gpu.smem_bytes) + " shared memory per CTA";
}

// One row per GPU, or why there is none.
template <class Add>
void add_gpus(Add add) {
  std::int32_t count = 0;
  if (headrace_num_cuda_devices(&count) != HEADRACE_OK) {
    add("cuda", std::string(headrace_last_error()));
    return;
  }
  if (count == 0) add("cuda", std::string("no device"));
  for (std::int32_t i = 0; i < count; ++i) add("cuda:" + std::to_string(i), gpu_text(cuda_info(i)));
}

int run_info(Format format) {
  const DeviceInfo device = cpu_info();
  Table table{.key = "info", .columns = {{"name", "name"}, {"value", "value"}}, .rows = {}};
  const auto add = [&](std::string name, Cell value) {
    table.rows.push_back({std::move(name), std::move(value)});
  };
  add("version", std::string(version()));
  add("build", std::string(build_info()));
  add("device", std::string("cpu"));
  add("name", std::string(device.name));
  add("instruction sets", isa_text(device.cpu_isa));
  add("threads", std::int64_t{device.num_units});
  add("L2 cache per core", bytes_text(device.l2_bytes));
  add("last level cache", bytes_text(static_cast<std::int64_t>(probes::last_level_cache_bytes())));
  add("memory", bytes_text(memory_bytes()));
  add("operating system", operating_system_text());
  add("line editing", std::string(line_editing_text()));
  add_gpus(add);
  for (int i = 0; const char* name = headrace_env_name(i); ++i) {
    const char* value = std::getenv(name);
    add(name, value == nullptr ? "(unset) " + std::string(headrace_env_text(i)) : value);
  }
  Report report;
  report.tables.push_back(std::move(table));
  print_report(report, format);
  return kExitOk;
}

}  // namespace

void add_info(CLI::App& app, Action& action) {
  auto format = std::make_shared<Format>(Format::text);
  CLI::App* info = app.add_subcommand("info", "Show this build and this machine");
  add_format_option(*info, *format);
  info->callback([&action, format] { action = [format] { return run_info(*format); }; });
}

}  // namespace headrace::cli
