#include "probes/cuda/nvml.h"

#include <dlfcn.h>

namespace headrace::probes::gpu {
namespace {

// Signatures of nvml.h, whose status 0 is success; the header is no part of every toolkit.
using Init = int (*)();
using HandleByBusId = int (*)(const char* bus_id, void** handle);
using PowerUsage = int (*)(void* handle, unsigned* milliwatts);

template <class Function>
Function find(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

PowerMeter::PowerMeter(const std::string& bus_id)
    : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) return;
  const auto init = find<Init>(library_, "nvmlInit_v2");
  const auto handle_of = find<HandleByBusId>(library_, "nvmlDeviceGetHandleByPciBusId_v2");
  if (init == nullptr || handle_of == nullptr || init() != 0) return;
  if (handle_of(bus_id.c_str(), &handle_) != 0) handle_ = nullptr;
}

PowerMeter::~PowerMeter() {
  if (library_ == nullptr) return;
  if (const auto shutdown = find<Init>(library_, "nvmlShutdown")) (void)shutdown();
  dlclose(library_);
}

double PowerMeter::watts() const {
  if (handle_ == nullptr) return 0;
  const auto usage = find<PowerUsage>(library_, "nvmlDeviceGetPowerUsage");
  unsigned milliwatts = 0;
  return usage != nullptr && usage(handle_, &milliwatts) == 0 ? milliwatts * 1e-3 : 0;
}

}  // namespace headrace::probes::gpu
