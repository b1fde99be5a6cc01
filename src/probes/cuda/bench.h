// Times work on a GPU and collects ceilings. The first failure is kept; later calls do nothing.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/runtime/graph.h"
#include "core/device.h"
#include "probes/ceiling.h"
#include "probes/cuda/nvml.h"

namespace headrace::probes::gpu {

// What a kernel tells of its first CTA: elapsed cycles and nanoseconds. Zeros: it did nothing, as
// its instructions are not those of this chip.
struct KernelSpan {
  unsigned long long cycles = 0, nanoseconds = 0;
};

struct CeilingName {
  CeilingKind kind;
  const char* resource;
  std::string operation;
};

class Bench {
 public:
  // `device` must be current while the object lives.
  Bench(const DeviceInfo& device, const MeasureOptions& options);
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;
  ~Bench();

  const DeviceInfo& device() const { return device_; }
  const Status& status() const { return status_; }
  std::vector<Ceiling> take() { return std::move(ceilings_); }

  // Device memory, freed by the destructor; null after a failure.
  void* allocate(std::size_t bytes);
  // Memory of the host that copies reach without a detour.
  void* allocate_pinned(std::size_t bytes);

  // Enqueues `amount` times the work. The kernel writes its span.
  using Enqueue = std::function<Status(std::int64_t amount, KernelSpan* span, cudaStream_t stream)>;
  // Enqueues preparations once and waits for them.
  void run(const Enqueue& enqueue) { (void)time(1, enqueue); }
  // `units_each`: operations, bytes, loads or launches of the work. `num_units`: multiprocessors at
  // work. False, and no ceiling, if the kernel did nothing.
  bool add(const CeilingName& name, double units_each, int num_units, std::int64_t bytes,
           const Enqueue& enqueue);
  // The same for work without a kernel of ours.
  void add_without_span(const CeilingName& name, double units_each, std::int64_t bytes,
                        const Enqueue& enqueue);

 private:
  double time(std::int64_t amount, const Enqueue& enqueue);
  Ceiling measure(const CeilingName& name, double units_each, const Enqueue& enqueue);
  void clear_span();
  KernelSpan read_span();
  void keep(Status status);

  const DeviceInfo device_;
  const MeasureOptions options_;
  Status status_;
  headrace::cuda::OwnedStream stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  KernelSpan* span_ = nullptr;
  std::vector<void*> blocks_, pinned_;
  PowerMeter power_;
  std::vector<Ceiling> ceilings_;
};

void add_compute(Bench& bench);
void add_shared_memory(Bench& bench);
void add_memory(Bench& bench);
void add_launches(Bench& bench);

}  // namespace headrace::probes::gpu
