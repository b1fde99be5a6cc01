#include "probes/cuda/bench.h"

#include "backends/cuda/backend.h"
#include "backends/cuda/runtime/device.cuh"
#include "backends/cuda/runtime/status.cuh"
#include "probes/measure.h"

namespace headrace::probes::gpu {
namespace {

using headrace::cuda::cuda_status;

std::string bus_id_of(int device_id) {
  char text[32] = "";
  if (cudaDeviceGetPCIBusId(text, sizeof text, device_id) != cudaSuccess) (void)cudaGetLastError();
  return text;
}

// In Hz; 0: the kernel wrote no span.
double clock_of(const KernelSpan& span) {
  if (span.nanoseconds == 0) return 0;
  return 1e9 * static_cast<double>(span.cycles) / static_cast<double>(span.nanoseconds);
}

cudaStream_t raw(const headrace::cuda::OwnedStream& stream) {
  return static_cast<cudaStream_t>(stream.get());
}

}  // namespace

Bench::Bench(const DeviceInfo& device, const MeasureOptions& options)
    : device_(device), options_(options), power_(bus_id_of(device.device_id)) {
  auto stream = headrace::cuda::make_stream(device.device_id);
  if (!stream.ok()) {
    status_ = std::move(stream.failure());
    return;
  }
  stream_ = std::move(stream.value());
  keep(cuda_status(cudaEventCreate(&begin_), "making an event"));
  keep(cuda_status(cudaEventCreate(&end_), "making an event"));
  span_ = static_cast<KernelSpan*>(allocate(sizeof *span_));
}

Bench::~Bench() {
  (void)cudaStreamSynchronize(raw(stream_));
  for (void* block : blocks_) (void)cudaFree(block);
  for (void* block : pinned_) (void)cudaFreeHost(block);
  if (begin_ != nullptr) (void)cudaEventDestroy(begin_);
  if (end_ != nullptr) (void)cudaEventDestroy(end_);
}

void Bench::keep(Status status) {
  if (!status_ && status) status_ = std::move(status);
}

void* Bench::allocate(std::size_t bytes) {
  if (status_) return nullptr;
  void* data = nullptr;
  keep(cuda_status(cudaMalloc(&data, bytes), "allocating {} bytes to measure with", bytes));
  if (data != nullptr) blocks_.push_back(data);
  return data;
}

void* Bench::allocate_pinned(std::size_t bytes) {
  if (status_) return nullptr;
  void* data = nullptr;
  keep(cuda_status(cudaMallocHost(&data, bytes), "allocating {} page-locked bytes", bytes));
  if (data != nullptr) pinned_.push_back(data);
  return data;
}

// Seconds on the GPU; 0 after a failure, which ends every search for an amount of work.
double Bench::time(std::int64_t amount, const Enqueue& enqueue) {
  if (status_) return 0;
  float milliseconds = 0;
  keep(cuda_status(cudaEventRecord(begin_, raw(stream_)), "recording an event"));
  keep(enqueue(amount, span_, raw(stream_)));
  keep(cuda_status(cudaEventRecord(end_, raw(stream_)), "recording an event"));
  keep(cuda_status(cudaEventSynchronize(end_), "measuring cuda:{}", device_.device_id));
  keep(cuda_status(cudaEventElapsedTime(&milliseconds, begin_, end_), "reading elapsed time"));
  return status_ ? 0 : milliseconds * 1e-3;
}

void Bench::clear_span() {
  keep(cuda_status(cudaMemsetAsync(span_, 0, sizeof *span_, raw(stream_)), "clearing a span"));
}

// Zeros after a failure.
KernelSpan Bench::read_span() {
  KernelSpan span;
  if (!status_)
    keep(cuda_status(
        cudaMemcpyAsync(&span, span_, sizeof span, cudaMemcpyDeviceToHost, raw(stream_)),
        "reading a span"));
  if (!status_) keep(cuda_status(cudaStreamSynchronize(raw(stream_)), "reading a span"));
  return status_ ? KernelSpan{} : span;
}

Ceiling Bench::measure(const CeilingName& name, double units_each, const Enqueue& enqueue) {
  (void)time(1, enqueue);  // loads the kernel
  const std::int64_t amount = calibrated(options_.round_seconds, 1,
                                         [&](std::int64_t tried) { return time(tried, enqueue); });
  const double units = units_each * static_cast<double>(amount);
  std::vector<double> values;
  std::vector<double> clocks;
  for (int round = 0; round < options_.num_rounds; ++round) {
    const double seconds = time(amount, enqueue);
    values.push_back(name.kind == CeilingKind::latency ? seconds / units : units / seconds);
    clocks.push_back(clock_of(read_span()));
  }
  const double watts = power_.watts();
  const Rounds rounds = rounds_of(std::move(values), name.kind);
  return {.kind = name.kind,
          .resource = name.resource,
          .operation = name.operation,
          .value = rounds.median,
          .best = rounds.best,
          .clock_hz = rounds_of(std::move(clocks), CeilingKind::compute).median,
          .watts = watts};
}

bool Bench::add(const CeilingName& name, double units_each, int num_units, std::int64_t bytes,
                const Enqueue& enqueue) {
  if (status_) return false;
  clear_span();
  (void)time(1, enqueue);
  if (read_span().cycles == 0) return false;
  Ceiling ceiling = measure(name, units_each, enqueue);
  if (status_) return false;
  ceiling.num_units = num_units;
  ceiling.bytes = bytes;
  ceilings_.push_back(std::move(ceiling));
  return true;
}

void Bench::add_without_span(const CeilingName& name, double units_each, std::int64_t bytes,
                             const Enqueue& enqueue) {
  if (status_) return;
  clear_span();
  Ceiling ceiling = measure(name, units_each, enqueue);
  if (status_) return;
  ceiling.bytes = bytes;
  ceilings_.push_back(std::move(ceiling));
}

Result<std::vector<Ceiling>> measure(int device_id, const MeasureOptions& options) {
  auto device = headrace::cuda::device_info(device_id);
  if (!device.ok()) return std::move(device.failure());
  const headrace::cuda::DeviceScope scope(device_id);
  if (scope.status()) return *scope.status();
  Bench bench(device.value(), options);
  add_compute(bench);
  add_shared_memory(bench);
  add_memory(bench);
  add_launches(bench);
  if (bench.status()) return *bench.status();
  return bench.take();
}

}  // namespace headrace::probes::gpu
