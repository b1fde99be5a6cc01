// The time in which a thread waits for devices.
#pragma once

#include <chrono>

namespace headrace {

// A wait of the calling thread, as long as it lives. Waits do not contain each other.
class DeviceWait {
 public:
  using Clock = std::chrono::steady_clock;

  DeviceWait() = default;
  ~DeviceWait() { total_ += Clock::now() - begin_; }
  DeviceWait(const DeviceWait&) = delete;
  DeviceWait& operator=(const DeviceWait&) = delete;

  // Of all waits of the calling thread that have ended.
  static Clock::duration of_thread() { return total_; }

 private:
  Clock::time_point begin_ = Clock::now();
  static inline thread_local Clock::duration total_{};
};

}  // namespace headrace
