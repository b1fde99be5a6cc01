#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>

#include "runtime/device.h"

namespace headrace {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Sizes around those of huge pages, of which every byte is there.
TEST(HostDevice, AllocatesAllBytes) {
  const std::unique_ptr<Device> device = make_host_device({});
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{64}, kHugePage - 1,
                                  kHugePage, kHugePage + 1, 3 * kHugePage, 3 * kHugePage + 4097}) {
    const Buffer buffer = device->allocate(bytes);
    ASSERT_NE(buffer.data(), nullptr) << bytes;
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u) << bytes;
    std::memset(buffer.data(), 7, bytes);
  }
}

TEST(HostDevice, HasNoMemoryForTooManyBytes) {
  const std::unique_ptr<Device> device = make_host_device({});
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - kHugePage, SIZE_MAX / 2})
    EXPECT_EQ(device->allocate(bytes).data(), nullptr) << bytes;
}

}  // namespace
}  // namespace headrace
