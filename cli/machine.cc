#include "machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <ctime>

namespace headrace::cli {

std::string date_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

std::string operating_system_text() {
  utsname names{};
  if (uname(&names) != 0) return "unknown";
  return std::string(names.sysname) + ' ' + names.release + ' ' + names.machine;
}

std::int64_t memory_bytes() {
  const std::int64_t pages = sysconf(_SC_PHYS_PAGES);
  const std::int64_t page_bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && page_bytes > 0 ? pages * page_bytes : 0;
}

std::string bytes_text(std::int64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB"};
  int unit = 0;
  while (bytes >= 10 * 1024 && unit < 3) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + ' ' + kUnits[unit];
}

std::string isa_text(std::uint32_t cpu_isa) {
  constexpr struct {
    std::uint32_t bit;
    const char* name;
  } kIsas[] = {{HEADRACE_ISA_AVX2, "avx2"},
               {HEADRACE_ISA_AVX512, "avx512"},
               {HEADRACE_ISA_AVX512_VNNI, "avx512_vnni"},
               {HEADRACE_ISA_AVX512_BF16, "avx512_bf16"},
               {HEADRACE_ISA_AVX512_BF16_FAST, "avx512_bf16_fast"},
               {HEADRACE_ISA_NEON, "neon"}};
  std::string text;
  for (const auto& isa : kIsas) {
    if ((cpu_isa & isa.bit) == 0) continue;
    if (!text.empty()) text += ' ';
    text += isa.name;
  }
  return text.empty() ? "scalar" : text;
}

std::vector<Note> run_notes(const char* benchmark, const std::string& command_line,
                            const DeviceInfo& device) {
  const bool is_cuda = device.device_type == HEADRACE_CUDA;
  return {{"benchmark", std::string(benchmark)},
          {"command", command_line},
          {"date", date_text()},
          {"machine", std::string(device.name)},
          {is_cuda ? "architecture" : "instruction_sets",
           is_cuda ? "sm" + std::to_string(device.sm) : isa_text(device.cpu_isa)},
          {"operating_system", operating_system_text()},
          {"build", std::string(build_info())}};
}

Note units_note(const DeviceInfo& device) {
  return {device.device_type == HEADRACE_CUDA ? "multiprocessors" : "threads",
          std::int64_t{device.num_units}};
}

}  // namespace headrace::cli
