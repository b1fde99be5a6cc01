#include "runtime/device_wait.h"

#include <gtest/gtest.h>

#include <thread>

namespace headrace {
namespace {

using std::chrono::milliseconds;

void wait() {
  const DeviceWait wait;
  std::this_thread::sleep_for(milliseconds(3));
}

TEST(DeviceWait, AddsUpTheWaitsOfItsThread) {
  const auto before = DeviceWait::of_thread();
  std::this_thread::sleep_for(milliseconds(3));
  EXPECT_EQ(DeviceWait::of_thread(), before) << "no wait";
  wait();
  EXPECT_GE(DeviceWait::of_thread() - before, milliseconds(3));
  wait();
  EXPECT_GE(DeviceWait::of_thread() - before, milliseconds(6));
  const auto both = DeviceWait::of_thread();
  std::thread(wait).join();
  EXPECT_EQ(DeviceWait::of_thread(), both) << "of another thread";
}

}  // namespace
}  // namespace headrace
