// The current device of a thread.
#pragma once

#include <cuda.h>

#include "base/error.h"
#include "core/problem.h"

namespace headrace::cuda {

inline constexpr int kMaxDevices = 64;

// Makes a device current for a scope. If a context of that device is current already, it is kept.
class DeviceScope {
 public:
  explicit DeviceScope(int device_id);
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  ~DeviceScope();
  const Status& status() const { return status_; }

 private:
  CUcontext previous_context_ = nullptr;
  bool is_changed_ = false;
  Status status_;
};

}  // namespace headrace::cuda
