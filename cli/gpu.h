// GPU memory and timing for the benchmarks. Builds without CUDA use gpu_absent.cc.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace headrace::cli {

// Versions of the driver and of the runtime, "driver 12.8, runtime 13.0"; "" without CUDA.
std::string gpu_versions();

class Gpu {
 public:
  // Throws Error(HEADRACE_UNSUPPORTED) in a build without CUDA. All members throw
  // Error(HEADRACE_DEVICE_ERROR) if CUDA fails.
  explicit Gpu(int device_id);
  Gpu(Gpu&&) noexcept;
  Gpu& operator=(Gpu&&) noexcept;
  ~Gpu();

  // Freed by release() or the destructor.
  void* allocate(std::size_t bytes);
  void* copy_of(const void* host, std::size_t bytes);
  void release();

  // Copies to and from device memory behind the work on the stream; done on return.
  void write(void* to, const void* host, std::size_t bytes);
  void read(void* host, const void* from, std::size_t bytes);

  // Enqueues a copy between blocks of device memory.
  void copy(void* to, const void* from, std::size_t bytes, void* stream);

  // Its stream, and work on it that flushes the L2.
  void* stream() const;
  void evict();

  // Seconds from start to end of the work that `enqueue(stream)` enqueues. `evicts`: flushes the L2
  // first.
  double time(const std::function<void(void* stream)>& enqueue, bool evicts);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headrace::cli
