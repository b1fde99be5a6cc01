#include "backends/cuda/runtime/event.h"

#include <cuda_runtime_api.h>

#include "backends/cuda/runtime/device.cuh"
#include "backends/cuda/runtime/status.cuh"
#include "runtime/device_wait.h"

namespace headrace::cuda {
namespace {

cudaEvent_t event_of(const Event& event) { return static_cast<cudaEvent_t>(event.get()); }

}  // namespace

void DestroyEvent::operator()(void* event) const {
  const DeviceScope scope(device_id);
  (void)cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

Result<Event> make_event(int device_id) {
  const DeviceScope scope(device_id);
  if (scope.status()) return *scope.status();
  cudaEvent_t event = nullptr;
  if (Status bad = cuda_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                               "making an event of cuda:{}", device_id))
    return std::move(*bad);
  return Event(event, {device_id});
}

Status record(const Event& event, Stream stream) {
  const int device_id = event.get_deleter().device_id;
  const DeviceScope scope(device_id);
  if (scope.status()) return scope.status();
  return cuda_status(cudaEventRecord(event_of(event), static_cast<cudaStream_t>(stream)),
                     "marking the work of a stream of cuda:{}", device_id);
}

Status wait_on(Stream stream, const Event& event) {
  const int device_id = event.get_deleter().device_id;
  const DeviceScope scope(device_id);
  if (scope.status()) return scope.status();
  return cuda_status(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event_of(event), 0),
                     "ordering two streams of cuda:{}", device_id);
}

Status wait(const Event& event) {
  const int device_id = event.get_deleter().device_id;
  const DeviceScope scope(device_id);
  if (scope.status()) return scope.status();
  const DeviceWait wait;
  return cuda_status(cudaEventSynchronize(event_of(event)), "waiting for a stream of cuda:{}",
                     device_id);
}

}  // namespace headrace::cuda
