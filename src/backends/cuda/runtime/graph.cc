#include "backends/cuda/runtime/graph.h"

#include <cuda_runtime_api.h>

#include "backends/cuda/runtime/device.cuh"
#include "backends/cuda/runtime/status.cuh"

namespace headrace::cuda {

void DestroyStream::operator()(void* stream) const {
  const DeviceScope scope(device_id);
  (void)cudaStreamDestroy(static_cast<cudaStream_t>(stream));
}

Result<OwnedStream> make_stream(int device_id) {
  const DeviceScope scope(device_id);
  if (scope.status()) return *scope.status();
  cudaStream_t stream = nullptr;
  if (Status bad = cuda_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                               "making a stream of cuda:{}", device_id))
    return std::move(*bad);
  return OwnedStream(stream, {device_id});
}

void DestroyGraph::operator()(void* graph) const {
  const DeviceScope scope(device_id);
  (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

Status begin_capture(int device_id, Stream stream) {
  const DeviceScope scope(device_id);
  if (scope.status()) return scope.status();
  return cuda_status(
      cudaStreamBeginCapture(static_cast<cudaStream_t>(stream), cudaStreamCaptureModeThreadLocal),
      "capturing the stream {} of cuda:{}", stream, device_id);
}

Result<Graph> end_capture(int device_id, Stream stream) {
  const DeviceScope scope(device_id);
  if (scope.status()) return *scope.status();
  cudaGraph_t captured = nullptr;
  if (Status bad = cuda_status(cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &captured),
                               "capturing the stream {} of cuda:{}", stream, device_id))
    return std::move(*bad);
  cudaGraphExec_t graph = nullptr;
  Status bad = cuda_status(cudaGraphInstantiate(&graph, captured, 0),
                           "making a graph of the work of a stream of cuda:{}", device_id);
  (void)cudaGraphDestroy(captured);
  if (bad) return std::move(*bad);
  return Graph(graph, {device_id});
}

Status launch_graph(const Graph& graph, Stream stream) {
  const int device_id = graph.get_deleter().device_id;
  const DeviceScope scope(device_id);
  if (scope.status()) return scope.status();
  return cuda_status(
      cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph.get()), static_cast<cudaStream_t>(stream)),
      "launching a graph on cuda:{}", device_id);
}

}  // namespace headrace::cuda
