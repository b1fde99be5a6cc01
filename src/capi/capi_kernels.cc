// The support matrix.
#include <vector>

#include "attention/select.h"
#include "capi/capi_common.h"
#include "core/device.h"

namespace headrace::capi {
namespace {

struct KernelText {
  std::string name, summary;
};

std::vector<KernelText> texts_of(int32_t device_type, int32_t phase) {
  std::vector<KernelText> texts;
  for (const Kernel& kernel : kernels_of(device_type, phase))
    texts.push_back({std::string(kernel.name), std::string(kernel.summary)});
  return texts;
}

// The names are string views; C needs terminated strings.
const KernelText* kernel_text(int32_t device_type, int32_t phase, int index) noexcept {
  try {
    static const std::vector<KernelText> all[2][2] = {
        {texts_of(HEADRACE_CPU, HEADRACE_FORWARD), texts_of(HEADRACE_CPU, HEADRACE_BACKWARD)},
        {texts_of(HEADRACE_CUDA, HEADRACE_FORWARD), texts_of(HEADRACE_CUDA, HEADRACE_BACKWARD)}};
    if (device_type != HEADRACE_CPU && device_type != HEADRACE_CUDA) return nullptr;
    if (phase != HEADRACE_FORWARD && phase != HEADRACE_BACKWARD) return nullptr;
    const std::vector<KernelText>& texts = all[device_type][phase];
    if (index < 0 || static_cast<std::size_t>(index) >= texts.size()) return nullptr;
    return &texts[static_cast<std::size_t>(index)];
  } catch (...) {
    return nullptr;
  }
}

}  // namespace
}  // namespace headrace::capi

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

int headrace_num_kernels(int32_t device_type, int32_t phase) {
  return static_cast<int>(headrace::kernels_of(device_type, phase).size());
}

const char* headrace_kernel_name(int32_t device_type, int32_t phase, int index) {
  const KernelText* text = kernel_text(device_type, phase, index);
  return text == nullptr ? nullptr : text->name.c_str();
}

const char* headrace_kernel_summary(int32_t device_type, int32_t phase, int index) {
  const KernelText* text = kernel_text(device_type, phase, index);
  return text == nullptr ? nullptr : text->summary.c_str();
}

const char* headrace_kernel_refusal(const headrace_problem* problem,
                                    const headrace_device_info* device, int index) {
  thread_local std::string refusal;
  const char* answer = nullptr;
  (void)guarded([&]() -> headrace_status {
    headrace_problem p;
    headrace_device_info d;
    if (auto bad = read_problem(problem, p)) return fail(std::move(*bad));
    if (auto bad = read_device(device, d)) return fail(std::move(*bad));
    auto checked = headrace::check_problem(p);
    if (!checked.ok()) return fail(std::move(checked.failure()));
    const auto kernels = headrace::kernels_of(d.device_type, checked.value().phase);
    if (index < 0 || static_cast<std::size_t>(index) >= kernels.size())
      return fail(headrace::invalid_argument(
          "index={}: must be less than the {} kernels of the device; call headrace_num_kernels",
          index, kernels.size()));
    refusal = kernels[static_cast<std::size_t>(index)].refuses(checked.value(), d);
    answer = refusal.c_str();
    return HEADRACE_OK;
  });
  return answer;
}

}  // extern "C"
