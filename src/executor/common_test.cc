// What a step may share: the prefixes of neighbouring sequences. Memory that grows.
#include "executor/common.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "executor/batch.h"
#include "runtime/device.h"
#include "tests/support/forwarding_device.h"

namespace headrace {
namespace {

constexpr std::int64_t kColumns = 300, kPageSize = 16;

// Block tables whose rows have `shared` keys in common with the row before them.
struct Tables {
  std::vector<std::int32_t> lengths, entries;

  void add(std::int32_t length, std::int64_t shared) {
    const std::size_t before = entries.size() - (entries.empty() ? 0 : kColumns);
    for (std::int64_t i = 0; i < kColumns; ++i)
      entries.push_back(i < shared / kPageSize ? entries[before + static_cast<std::size_t>(i)]
                                               : static_cast<std::int32_t>(entries.size()));
    lengths.push_back(length);
  }
  std::int64_t shared_prefix(std::int64_t first_seq = 0, std::int64_t num_kv_heads = 8,
                             DType dtype = DType::bf16) const {
    Batch batch;
    batch.seqused_k = lengths;
    batch.block_table = entries;
    KvView kv{};
    kv.shape.num_kv_heads = num_kv_heads;
    kv.shape.head_dim = kv.shape.head_dim_v = 128;
    kv.shape.dtype = kv.shape.k_dtype = kv.shape.v_dtype = dtype;
    kv.page_size = kPageSize;
    return shared_prefix_of(batch, first_seq, kv);
  }
};

Tables repeated(int count, std::int32_t length, std::int64_t shared) {
  Tables tables;
  for (int i = 0; i < count; ++i) tables.add(length, i == 0 ? 0 : shared);
  return tables;
}

// 8 KV heads of 128 + 128 bf16 numbers are 4 KiB a key: 192 MiB are 48 x 1024 keys.
TEST(SharedPrefix, IsLookedForWhereItSavesEnough) {
  EXPECT_EQ(repeated(49, 2000, 1024).shared_prefix(), 1024);
  EXPECT_EQ(repeated(48, 2000, 1024).shared_prefix(), 0);  // 47 x 1024 keys
  EXPECT_EQ(repeated(49, 2000, 1024).shared_prefix(0, 7), 0);
  EXPECT_EQ(repeated(49, 2000, 1024).shared_prefix(0, 8, DType::i8), 0);
  EXPECT_EQ(repeated(97, 2000, 1024).shared_prefix(0, 8, DType::i8), 1024);
  EXPECT_EQ(repeated(49, 2000, 1024).shared_prefix(1), 0);  // the first is no decode
  EXPECT_EQ(repeated(50, 2000, 1024).shared_prefix(1), 1024);
}

TEST(SharedPrefix, IsAPowerOfTwoThatHoldsTheLongest) {
  EXPECT_EQ(repeated(300, 1535, 1520).shared_prefix(), 1024);  // whole steps of 512
  EXPECT_EQ(repeated(300, 1600, 1536).shared_prefix(), 2048);
  EXPECT_EQ(repeated(300, 1600, 511).shared_prefix(), 0);
  EXPECT_EQ(repeated(300, 511, 511).shared_prefix(), 0);
  EXPECT_EQ(repeated(300, 600, 4000).shared_prefix(), 512);  // entries behind the keys
  Tables mixed = repeated(300, 600, 512);
  mixed.add(4000, 0);
  mixed.add(4000, 3000);
  EXPECT_EQ(mixed.shared_prefix(), 4096);
}

// A graph of a step holds the addresses of its activations.
TEST(Activations, CountBuffersThatMove) {
  const std::unique_ptr<Device> device = make_host_device(DeviceInfo{});
  Activations activations;
  const auto step = [&](std::int64_t num_rows) {
    activations.begin_step();
    for (int i = 0; i < 2; ++i)
      EXPECT_TRUE(activations.alloc(*device, nullptr, num_rows, 8, DType::f32).ok());
    return activations.version();
  };
  const std::uint64_t first = step(4);
  EXPECT_EQ(step(4), first);
  EXPECT_EQ(step(1), first);
  const std::uint64_t larger = step(1 << 16);
  EXPECT_NE(larger, first);
  EXPECT_EQ(step(4), larger);
}

// Counts the waits for each stream.
class WaitedFor final : public testing::ForwardingDevice {
 public:
  WaitedFor() : ForwardingDevice(make_host_device(DeviceInfo{})) {}
  Status synchronise(Stream stream) override {
    ++num_waits[stream];
    return std::nullopt;
  }
  std::map<Stream, int> num_waits;
};

// Work that is on its way uses the old memory.
TEST(Grow, WaitsForTheStreamBeforeItFrees) {
  WaitedFor device;
  int place = 0;
  const Stream stream = &place;
  Buffer buffer;
  ASSERT_FALSE(grow(device, stream, buffer, 64));
  ASSERT_FALSE(grow(device, stream, buffer, 32));
  EXPECT_TRUE(device.num_waits.empty()) << "nothing was freed";
  ASSERT_FALSE(grow(device, stream, buffer, 65));
  EXPECT_EQ(device.num_waits, (std::map<Stream, int>{{stream, 1}}));
}

TEST(Grow, GrowsByHalfAtLeast) {
  WaitedFor device;
  Buffer buffer;
  std::size_t bytes = 1000;
  ASSERT_FALSE(grow(device, nullptr, buffer, bytes));
  EXPECT_EQ(buffer.bytes(), 1000u);
  for (; bytes <= 8000; ++bytes) ASSERT_FALSE(grow(device, nullptr, buffer, bytes));
  EXPECT_EQ(device.num_waits[nullptr], 6) << "1500, 2250, 3375, 5062, 7593 and 11389 bytes";
  ASSERT_FALSE(grow(device, nullptr, buffer, 90000));
  EXPECT_EQ(buffer.bytes(), 90000u);
}

// Has no memory for more than some bytes at once.
class Small final : public testing::ForwardingDevice {
 public:
  explicit Small(std::size_t most)
      : ForwardingDevice(make_host_device(DeviceInfo{})), most_(most) {}
  Buffer allocate(std::size_t bytes) override {
    return bytes > most_ ? Buffer() : ForwardingDevice::allocate(bytes);
  }

 private:
  std::size_t most_;
};

TEST(Grow, TakesWhatIsNeededWhereThereIsNoMore) {
  Small device(1200);
  Buffer buffer;
  ASSERT_FALSE(grow(device, nullptr, buffer, 1000));
  ASSERT_FALSE(grow(device, nullptr, buffer, 1001));
  EXPECT_EQ(buffer.bytes(), 1001u);
  EXPECT_EQ(grow(device, nullptr, buffer, 1201)->code, ErrorCode::out_of_memory);
}

TEST(SharedPrefix, OfOneSequenceIsNone) {
  EXPECT_EQ(repeated(1, 4000, 0).shared_prefix(), 0);
  EXPECT_EQ(repeated(2, 4000, 4000).shared_prefix(2), 0);
}

}  // namespace
}  // namespace headrace
