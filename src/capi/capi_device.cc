// Version, build, environment, devices, threads.
#include <charconv>

#include "attention/select.h"
#include "backends/cpu/thread_pool.h"
#include "backends/cuda/backend.h"
#include "base/env.h"
#include "capi/capi_common.h"
#include "core/device.h"

namespace headrace::capi {
namespace {

#define HEADRACE_TEXT2(x) #x
#define HEADRACE_TEXT(x) HEADRACE_TEXT2(x)
constexpr const char* kHeaderVersion = HEADRACE_TEXT(HEADRACE_VERSION_MAJOR) "." HEADRACE_TEXT(
    HEADRACE_VERSION_MINOR) "." HEADRACE_TEXT(HEADRACE_VERSION_PATCH);
static_assert(std::string_view(kHeaderVersion) == HEADRACE_PROJECT_VERSION,
              "headrace.h and CMakeLists.txt have different versions");

#if defined(__clang__)
constexpr const char* kCompiler = "clang " __clang_version__;
#elif defined(__GNUC__)
constexpr const char* kCompiler = "gcc " __VERSION__;
#else
constexpr const char* kCompiler = "unknown compiler";
#endif

std::string make_build_info() {
  std::string text = format_text(
      "headrace {} ({}); dtypes f32 f16 bf16 f64; head_dim 1 to {}; detects CPU instruction sets "
#if defined(__x86_64__)
      "avx2 avx512 avx512_vnni avx512_bf16 avx512_bf16_fast"
#elif defined(__aarch64__)
      "neon"
#else
      "(none)"
#endif
      "; cpu kernels",
      kHeaderVersion, kCompiler, kMaxHeadDim);
  for (const int32_t device_type : {HEADRACE_CPU, HEADRACE_CUDA}) {
    if (device_type == HEADRACE_CUDA) text += "; cuda kernels";
    for (const int32_t phase : {HEADRACE_FORWARD, HEADRACE_BACKWARD})
      for (const Kernel& kernel : kernels_of(device_type, phase))
        text += format_text(" {}", kernel.name);
  }
  return text + "; CUDA architectures: " + cuda::architectures();
}

// "cuda" and "cuda:NUMBER" query the backend; anything else is a description.
Result<DeviceInfo> device_of(std::string_view text) {
  if (text == "cuda") return cuda::device_info(0);
  if (!text.starts_with("cuda:")) return device_from_text(text);
  const std::string_view number = text.substr(5);
  int device_id = 0;
  const char* end = number.data() + number.size();
  const auto parsed = std::from_chars(number.data(), end, device_id);
  if (parsed.ec != std::errc() || parsed.ptr != end || device_id < 0)
    return invalid_argument(
        "device \"{}\": the device number is invalid; pass, for example, \"cuda:0\"", text);
  return cuda::device_info(device_id);
}

headrace_status give_device(Result<DeviceInfo> ours, headrace_device_info* theirs) {
  return ours.ok() ? give("device", ours.value(), theirs) : fail(std::move(ours.failure()));
}

const env::Description* env_variable(int index) noexcept {
  const auto variables = env::variables();
  const bool is_one = index >= 0 && static_cast<std::size_t>(index) < variables.size();
  return is_one ? &variables[static_cast<std::size_t>(index)] : nullptr;
}

}  // namespace
}  // namespace headrace::capi

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

const char* headrace_version(void) { return kHeaderVersion; }

const char* headrace_build_info(void) {
  try {
    static const std::string info = make_build_info();
    return info.c_str();
  } catch (...) {
    return kHeaderVersion;
  }
}

const char* headrace_env_name(int index) {
  const headrace::env::Description* variable = env_variable(index);
  return variable == nullptr ? nullptr : variable->name;
}

const char* headrace_env_text(int index) {
  const headrace::env::Description* variable = env_variable(index);
  return variable == nullptr ? nullptr : variable->text;
}

headrace_status headrace_cpu_info(headrace_device_info* device) {
  return guarded([&] { return give_device(headrace::cpu_info(), device); });
}

headrace_status headrace_num_cuda_devices(int32_t* num_devices) {
  return guarded([&] {
    if (num_devices == nullptr) return fail(null_argument("num_devices", "pass an int to fill"));
    auto count = headrace::cuda::num_devices();
    if (!count.ok()) return fail(std::move(count.failure()));
    *num_devices = count.value();
    return HEADRACE_OK;
  });
}

headrace_status headrace_cuda_info(int32_t device_id, headrace_device_info* device) {
  return guarded([&] {
    if (device == nullptr) return fail(null_argument("device", "pass a struct to fill"));
    return give_device(headrace::cuda::device_info(device_id), device);
  });
}

headrace_status headrace_device_from_text(const char* text, headrace_device_info* device) {
  return guarded([&] {
    if (text == nullptr) return fail(null_argument("text", "pass, for example, \"cpu\""));
    return give_device(device_of(text), device);
  });
}

headrace_status headrace_check(int32_t device_type, int32_t device_id, void* stream) {
  return guarded([&] {
    if (device_type == HEADRACE_CPU) return HEADRACE_OK;  // lengths are checked before the launch
    if (device_type == HEADRACE_CUDA) return status_of(headrace::cuda::check(device_id, stream));
    return fail(headrace::invalid_argument(
        "device_type={}: must be 0 (cpu) or 1 (cuda); pass a headrace_device_type", device_type));
  });
}

void headrace_set_executor(headrace_executor_fn run, void* user) {
  (void)guarded([&] {
    headrace::cpu::set_executor(run, user);
    return HEADRACE_OK;
  });
}

}  // extern "C"
