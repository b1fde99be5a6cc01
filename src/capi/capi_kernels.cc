// The support matrix.
#include <vector>

#include "attention/select.h"
#include "capi/door.h"
#include "core/device.h"

namespace headrace::capi {
namespace {

struct KernelText {
  std::string name, summary;
};

std::vector<KernelText> texts_of(int32_t device_type) {
  std::vector<KernelText> texts;
  for (const Kernel& kernel : forward_kernels_of(device_type))
    texts.push_back({std::string(kernel.name), std::string(kernel.summary)});
  return texts;
}

// The names are views without an end; C wants one.
const KernelText* kernel_text(int32_t device_type, int index) noexcept {
  try {
    static const std::vector<KernelText> cpu = texts_of(HEADRACE_CPU);
    static const std::vector<KernelText> cuda = texts_of(HEADRACE_CUDA);
    if (device_type != HEADRACE_CPU && device_type != HEADRACE_CUDA) return nullptr;
    const std::vector<KernelText>& texts = device_type == HEADRACE_CPU ? cpu : cuda;
    if (index < 0 || static_cast<std::size_t>(index) >= texts.size()) return nullptr;
    return &texts[static_cast<std::size_t>(index)];
  } catch (...) {
    return nullptr;
  }
}

}  // namespace
}  // namespace headrace::capi

using namespace headrace::capi;  // NOLINT: the functions below are the C face of this namespace

extern "C" {

int headrace_num_kernels(int32_t device_type) {
  return static_cast<int>(headrace::forward_kernels_of(device_type).size());
}

const char* headrace_kernel_name(int32_t device_type, int index) {
  const KernelText* text = kernel_text(device_type, index);
  return text == nullptr ? nullptr : text->name.c_str();
}

const char* headrace_kernel_summary(int32_t device_type, int index) {
  const KernelText* text = kernel_text(device_type, index);
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
    const auto kernels = headrace::forward_kernels_of(d.device_type);
    if (index < 0 || static_cast<std::size_t>(index) >= kernels.size())
      return fail(headrace::invalid_argument(
          "index={}: must be less than the {} kernels of the device; ask headrace_num_kernels",
          index, kernels.size()));
    refusal = kernels[static_cast<std::size_t>(index)].refuses(checked.value(), d);
    answer = refusal.c_str();
    return HEADRACE_OK;
  });
  return answer;
}

}  // extern "C"
