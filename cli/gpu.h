// What the benchmark needs of a GPU beside the library: memory, and the time of work on a stream.
// Builds without CUDA have gpu_absent.cc.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace headrace::cli {

class Gpu {
 public:
  // Throws Error(HEADRACE_UNSUPPORTED) in a build without CUDA; Error(HEADRACE_DEVICE_ERROR) here
  // and below where CUDA fails.
  explicit Gpu(int device_id);
  Gpu(Gpu&&) noexcept;
  Gpu& operator=(Gpu&&) noexcept;
  ~Gpu();

  // Memory that lives as long as this object or until release().
  void* allocate(std::size_t bytes);
  void* copy_of(const void* host, std::size_t bytes);
  void release();

  // Enqueues a copy between blocks of device memory.
  void copy(void* to, const void* from, std::size_t bytes, void* stream);

  // Seconds between the begin and the end of what `enqueue(stream)` enqueues. `evicts`: the L2 is
  // overwritten before.
  double time(const std::function<void(void* stream)>& enqueue, bool evicts);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headrace::cli
