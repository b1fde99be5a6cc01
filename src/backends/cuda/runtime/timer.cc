#include "backends/cuda/runtime/timer.h"

#include <cuda_runtime_api.h>

#include "backends/cuda/runtime/device.cuh"
#include "backends/cuda/runtime/status.cuh"

namespace headrace::cuda {
namespace {

struct Events {
  cudaEvent_t begin = nullptr, end = nullptr;
};
Events& events_of(const Timer& timer) { return *static_cast<Events*>(timer.get()); }

}  // namespace

void DestroyTimer::operator()(void* timer) const {
  const DeviceScope scope(device_id);
  const std::unique_ptr<Events> events(static_cast<Events*>(timer));
  if (events->begin != nullptr) (void)cudaEventDestroy(events->begin);
  if (events->end != nullptr) (void)cudaEventDestroy(events->end);
}

Result<Timer> make_timer(int device_id) {
  const DeviceScope scope(device_id);
  if (scope.status()) return *scope.status();
  Timer timer(new Events, {device_id});
  for (cudaEvent_t* event : {&events_of(timer).begin, &events_of(timer).end})
    if (Status bad = cuda_status(cudaEventCreate(event), "making an event of cuda:{}", device_id))
      return std::move(*bad);
  return timer;
}

Status start_timer(const Timer& timer, Stream stream) {
  const int device_id = timer.get_deleter().device_id;
  const DeviceScope scope(device_id);
  if (scope.status()) return scope.status();
  return cuda_status(cudaEventRecord(events_of(timer).begin, static_cast<cudaStream_t>(stream)),
                     "timing a stream of cuda:{}", device_id);
}

Result<double> stop_timer(const Timer& timer, Stream stream) {
  const int device_id = timer.get_deleter().device_id;
  const DeviceScope scope(device_id);
  if (scope.status()) return *scope.status();
  const Events& events = events_of(timer);
  float milliseconds = 0;
  for (const cudaError_t error : {cudaEventRecord(events.end, static_cast<cudaStream_t>(stream)),
                                  cudaEventSynchronize(events.end),
                                  cudaEventElapsedTime(&milliseconds, events.begin, events.end)})
    if (Status bad = cuda_status(error, "timing a stream of cuda:{}", device_id))
      return std::move(*bad);
  return 1e-3 * milliseconds;
}

}  // namespace headrace::cuda
