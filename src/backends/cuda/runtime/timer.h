// Times work of a stream.
#pragma once

#include <memory>

#include "base/error.h"
#include "core/kernel.h"

namespace headrace::cuda {

struct DestroyTimer {
  int device_id = 0;
  void operator()(void* timer) const;
};
using Timer = std::unique_ptr<void, DestroyTimer>;
Result<Timer> make_timer(int device_id);

Status start_timer(const Timer& timer, Stream stream);
// Seconds on the GPU since start_timer() on the same stream. Waits for its work.
Result<double> stop_timer(const Timer& timer, Stream stream);

}  // namespace headrace::cuda
