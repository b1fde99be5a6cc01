// A place in the work of a stream.
#pragma once

#include <memory>

#include "base/error.h"
#include "core/kernel.h"

namespace headrace::cuda {

struct DestroyEvent {
  int device_id = 0;
  void operator()(void* event) const;
};
using Event = std::unique_ptr<void, DestroyEvent>;
Result<Event> make_event(int device_id);

// Behind the work that the stream has.
Status record(const Event& event, Stream stream);
// Returns when the work before the last record() has ended; at once if there was none.
Status wait(const Event& event);

}  // namespace headrace::cuda
