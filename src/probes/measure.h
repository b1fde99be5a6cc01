// The ceilings of a device of this process.
#pragma once

#include <vector>

#include "base/error.h"
#include "core/device.h"
#include "probes/ceiling.h"

namespace headrace::probes {

// Takes seconds, on a CPU with device.num_units threads, on a GPU on device.device_id. Fails if the
// device does, or if a value shows that a compiler has deleted the measured work.
Result<std::vector<Ceiling>> measure(const DeviceInfo& device, const MeasureOptions& options);

namespace gpu {

// A GPU; a build without CUDA links absent.cc.
Result<std::vector<Ceiling>> measure(int device_id, const MeasureOptions& options);

}  // namespace gpu
}  // namespace headrace::probes
