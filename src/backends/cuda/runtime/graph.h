// A stream of its own, and work of a stream as a graph.
#pragma once

#include <memory>

#include "base/error.h"
#include "core/kernel.h"

namespace headrace::cuda {

struct DestroyStream {
  int device_id = 0;
  void operator()(void* stream) const;
};
using OwnedStream = std::unique_ptr<void, DestroyStream>;
// Its work and that of other streams, the default stream too, do not wait for each other. A stream
// that waits for the default stream could not be captured while another thread uses that.
Result<OwnedStream> make_stream(int device_id);

struct DestroyGraph {
  int device_id = 0;
  void operator()(void* graph) const;
};
// Work that was captured, ready to launch.
using Graph = std::unique_ptr<void, DestroyGraph>;

// What the calling thread enqueues on `stream` becomes part of a graph instead of running, until
// end_capture(). Allocations and synchronisation of this thread fail in between; other threads go
// on.
Status begin_capture(int device_id, Stream stream);
// Empty if a call since begin_capture() has failed: the stream works again.
Result<Graph> end_capture(int device_id, Stream stream);
Status launch_graph(const Graph& graph, Stream stream);

}  // namespace headrace::cuda
