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
// Later work of the stream begins behind the last record() of another one.
Status wait_on(Stream stream, const Event& event);
// Returns when the work before the last record() has ended; at once if there was none.
Status wait(const Event& event);

}  // namespace headrace::cuda
