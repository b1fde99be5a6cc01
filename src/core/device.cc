#include "core/device.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/env.h"

namespace headrace {
namespace {

constexpr std::uint32_t kAvx2 = HEADRACE_ISA_AVX2;
constexpr std::uint32_t kAvx512 = kAvx2 | HEADRACE_ISA_AVX512;
constexpr std::uint32_t kAvx512Vnni = kAvx512 | HEADRACE_ISA_AVX512_VNNI;
// Every CPU with AVX512_BF16 has AVX512_VNNI.
constexpr std::uint32_t kAvx512Bf16 = kAvx512Vnni | HEADRACE_ISA_AVX512_BF16;
// AMD: measured on Zen 4, VDPBF16PS has the throughput of an FMA at twice its products; on Intel it
// has a fourth of that (src/backends/cpu/attention/flash/README.md).
constexpr std::uint32_t kAvx512Bf16Fast = kAvx512Bf16 | HEADRACE_ISA_AVX512_BF16_FAST;
constexpr std::uint32_t kKnownIsa = kAvx512Bf16Fast | HEADRACE_ISA_NEON;
constexpr int kMaxUnits = 1024;
constexpr std::int64_t kUnknownL2Bytes = 512 * 1024;
constexpr const char* kForms =
    "\"cpu\", \"cpu:ISA\" or \"cpu:ISA:THREADS\" (ISA: scalar, avx2, avx512, avx512_vnni, "
    "avx512_bf16, avx512_bf16_fast, neon; THREADS: 1 to 1024), \"cuda\" or \"cuda:NUMBER\" (a "
    "device of this process), \"h100\", \"h200\", \"smNN:UNITS\" (for example sm90:132)";

struct IsaName {
  std::string_view name;
  std::uint32_t bits;  // includes the implied sets
};
constexpr IsaName kIsaNames[] = {
    // highest first
    {"avx512_bf16_fast", kAvx512Bf16Fast},
    {"avx512_bf16", kAvx512Bf16},
    {"avx512_vnni", kAvx512Vnni},
    {"avx512", kAvx512},
    {"avx2", kAvx2},
    {"neon", HEADRACE_ISA_NEON},
    {"scalar", 0},
};

const IsaName* find_isa(std::string_view name) {
  for (const IsaName& isa : kIsaNames)
    if (isa.name == name) return &isa;
  return nullptr;
}

// True if the whole text is a number within [low, high].
bool parse_number(std::string_view text, int low, int high, int* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && low <= *number &&
         *number <= high;
}

std::uint32_t probe_isa() {
#if defined(__x86_64__) || defined(__i386__)
  // The builtins check XCR0 too: the operating system saves the registers.
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
#if defined(__clang__) && __clang_major__ < 19
  const bool has_f16c = true;  // every CPU with AVX2 has it; old clang does not know the name
#else
  const bool has_f16c = __builtin_cpu_supports("f16c");
#endif
  if (!has_f16c) return 0;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return kAvx2;
  if (!__builtin_cpu_supports("avx512vnni")) return kAvx512;
  if (!__builtin_cpu_supports("avx512bf16")) return kAvx512Vnni;
  return __builtin_cpu_is("amd") ? kAvx512Bf16Fast : kAvx512Bf16;
#elif defined(__aarch64__)
  return HEADRACE_ISA_NEON;
#else
  return 0;
#endif
}

int threads_by_affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // Fails with more than 1024 CPUs; then fall back to the CPU count of the machine.
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::clamp<int>(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxUnits);
}

std::int64_t read_l2_bytes() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return bytes;
#endif
  return kUnknownL2Bytes;
}

std::string read_cpu_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (!line.starts_with("model name") && !line.starts_with("CPU part")) continue;
    const auto colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

void set_name(DeviceInfo& device, std::string_view name) {
  const std::size_t size = std::min(name.size(), sizeof device.name - 1);
  std::memcpy(device.name, name.data(), size);
  device.name[size] = '\0';
}

DeviceInfo detected_cpu() {
  DeviceInfo device{};
  device.struct_size = sizeof device;
  device.device_type = HEADRACE_CPU;
  device.num_units = threads_by_affinity();
  device.cpu_isa = detected_cpu_isa();
  // Read once: cpuid traps in a virtual machine and costs more than a small attention call.
  static const std::int64_t l2_bytes = read_l2_bytes();
  static const std::string name = read_cpu_name();
  device.l2_bytes = l2_bytes;
  set_name(device, name);
  return device;
}

Result<DeviceInfo> cpu_from_parts(std::string_view text, std::string_view isa_and_threads) {
  const auto colon = isa_and_threads.find(':');
  const IsaName* isa = find_isa(isa_and_threads.substr(0, colon));
  if (isa == nullptr)
    return invalid_argument("device \"{}\": unknown instruction set; use {}", text, kForms);
  DeviceInfo device = detected_cpu();
  device.cpu_isa = isa->bits;
  if (colon != std::string_view::npos &&
      !parse_number(isa_and_threads.substr(colon + 1), 1, kMaxUnits, &device.num_units))
    return invalid_argument("device \"{}\": the thread count must be 1 to {}; use {}", text,
                            kMaxUnits, kForms);
  set_name(device, text);
  return device;
}

// Maximum per CTA, by the CUDA programming guide; unknown chips get the smallest newer value.
std::uint32_t smem_bytes_of(int sm) {
  constexpr std::uint32_t kKiB = 1024;
  if (sm == 70) return 96 * kKiB;
  if (sm < 80) return sm == 75 ? 64 * kKiB : 48 * kKiB;
  if (sm == 80 || sm == 87) return 163 * kKiB;
  return sm == 90 || (sm >= 100 && sm < 120) ? 227 * kKiB : 99 * kKiB;
}

Result<DeviceInfo> gpu_from_parts(std::string_view text) {
  const auto colon = text.find(':');
  DeviceInfo device{};
  device.struct_size = sizeof device;
  device.device_type = HEADRACE_CUDA;
  if (colon == std::string_view::npos ||
      !parse_number(text.substr(2, colon - 2), 50, 999, &device.sm) ||
      !parse_number(text.substr(colon + 1), 1, kMaxUnits, &device.num_units))
    return invalid_argument("device \"{}\": not a GPU description; use {}", text, kForms);
  constexpr std::int64_t kMiB = 1024 * 1024;
  device.l2_bytes = device.sm >= 90 ? 50 * kMiB : device.sm == 80 ? 40 * kMiB : 6 * kMiB;
  device.smem_bytes = smem_bytes_of(device.sm);
  set_name(device, text);
  return device;
}

// GPUs whose ceilings the library knows (attention/predict/rates.cc), as the driver names them.
struct NamedGpu {
  std::string_view text, name;
  std::int64_t l2_mib;
};
constexpr NamedGpu kNamedGpus[] = {{"h100", "NVIDIA H100 80GB HBM3", 50},
                                   {"h200", "NVIDIA H200", 60}};

}  // namespace

std::uint32_t detected_cpu_isa() {
  static const std::uint32_t isa = probe_isa();
  return isa;
}

Result<DeviceInfo> cpu_info() {
  DeviceInfo device = detected_cpu();
  if (const auto cap = env::value_of(env::Variable::cpu_isa); !cap.empty()) {
    const IsaName* isa = find_isa(cap);
    if (isa == nullptr)
      return invalid_argument(
          "HEADRACE_CPU_ISA=\"{}\": must be scalar, avx2, avx512, avx512_vnni, avx512_bf16, "
          "avx512_bf16_fast or neon; correct or unset the variable",
          cap);
    device.cpu_isa &= isa->bits;
  }
  if (const auto threads = env::value_of(env::Variable::num_threads); !threads.empty()) {
    if (!parse_number(threads, 1, kMaxUnits, &device.num_units))
      return invalid_argument(
          "HEADRACE_NUM_THREADS=\"{}\": must be 1 to {}; correct or unset the variable", threads,
          kMaxUnits);
  }
  return device;
}

Result<DeviceInfo> capped_gpu(const DeviceInfo& device) {
  DeviceInfo capped = device;
  const auto cap = env::value_of(env::Variable::cuda_sm);
  if (cap.empty()) return capped;
  int sm = 0;
  if (!parse_number(cap, 80, 999, &sm))
    return invalid_argument(
        "HEADRACE_CUDA_SM=\"{}\": must be 80 to 999, as 80 of an A100; correct or unset the "
        "variable",
        cap);
  if (sm >= device.sm) return capped;
  capped.sm = sm;
  capped.smem_bytes = std::min(device.smem_bytes, smem_bytes_of(sm));
  return capped;
}

Result<DeviceInfo> device_from_text(std::string_view text) {
  if (text == "cpu") return cpu_info();
  if (text.starts_with("cpu:")) return cpu_from_parts(text, text.substr(4));
  if (text.starts_with("sm")) return gpu_from_parts(text);
  for (const NamedGpu& gpu : kNamedGpus) {
    if (text != gpu.text) continue;
    Result<DeviceInfo> device = gpu_from_parts("sm90:132");
    device.value().l2_bytes = gpu.l2_mib * 1024 * 1024;
    set_name(device.value(), gpu.name);
    return device;
  }
  return invalid_argument("device \"{}\": unknown; use {}", text, kForms);
}

std::string_view cpu_isa_name(std::uint32_t cpu_isa) {
  for (const IsaName& isa : kIsaNames)
    if ((cpu_isa & isa.bits) == isa.bits) return isa.name;
  return "scalar";
}

std::string device_text(const DeviceInfo& device) {
  if (device.device_type == HEADRACE_CUDA)
    return format_text("cuda sm{}, {} multiprocessors, L2 {} KiB ({})", device.sm, device.num_units,
                       device.l2_bytes / 1024, device.name);
  return format_text("cpu {}, {} thread{}, L2 {} KiB per core ({})", cpu_isa_name(device.cpu_isa),
                     device.num_units, device.num_units == 1 ? "" : "s", device.l2_bytes / 1024,
                     device.name);
}

Status check_device(const DeviceInfo& device) {
  constexpr const char* kRemedy =
      "fill it with headrace_cpu_info, headrace_cuda_info or headrace_device_from_text";
  if (device.device_type != HEADRACE_CPU && device.device_type != HEADRACE_CUDA)
    return invalid_argument("device.device_type={}: must be 0 (cpu) or 1 (cuda); {}",
                            device.device_type, kRemedy);
  if (device.num_units < 1 || device.num_units > kMaxUnits)
    return invalid_argument("device.num_units={}: must be 1 to {}; {}", device.num_units, kMaxUnits,
                            kRemedy);
  if ((device.cpu_isa & ~kKnownIsa) != 0)
    return invalid_argument("device.cpu_isa={}: must be headrace_cpu_isa bits; {}", device.cpu_isa,
                            kRemedy);
  if (device.l2_bytes < 0)
    return invalid_argument("device.l2_bytes={}: must not be negative; {}", device.l2_bytes,
                            kRemedy);
  if (std::memchr(device.name, '\0', sizeof device.name) == nullptr)
    return invalid_argument("device.name: must be zero-terminated within its 96 characters; {}",
                            kRemedy);
  return std::nullopt;
}

}  // namespace headrace
