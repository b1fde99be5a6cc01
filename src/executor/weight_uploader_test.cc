// Matrices that are uploaded in parts, beside bf16_rows() of the whole.
#include "executor/weight_uploader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "core/device.h"
#include "tests/support/forwarding_device.h"
#include "weights/dequantise.h"

namespace headrace {
namespace {

// Bytes that are numbers in every format: exponents of f16 and bf16 are not all ones.
std::vector<std::byte> blocks_of(WeightType format, std::int64_t elements) {
  std::vector<std::byte> blocks(static_cast<std::size_t>(info_of(format).bytes_of(elements)));
  std::uint32_t state = 1;
  for (std::byte& byte : blocks) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::byte>(state >> 24 & 0xbb);
  }
  return blocks;
}

// A model file that holds one tensor's blocks behind some other bytes.
class TensorFile {
 public:
  TensorFile(WeightType format, std::int64_t rows, std::int64_t columns,
             const std::vector<std::byte>& blocks) {
    file.path =  // tests run at once
        ::testing::TempDir() + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::ofstream out(file.path, std::ios::binary);
    out << "others";
    out.write(reinterpret_cast<const char*>(blocks.data()),
              static_cast<std::streamsize>(blocks.size()));
    tensor = {"matrix", format, {rows, columns}, 6, blocks.size()};
  }
  ~TensorFile() { std::remove(file.path.c_str()); }
  ModelFile file;
  TensorInfo tensor;
};

std::vector<std::uint16_t> expected(WeightType format, std::int64_t rows, std::int64_t columns,
                                    const std::vector<std::byte>& blocks) {
  std::vector<std::uint16_t> out(static_cast<std::size_t>(rows * columns));
  bf16_rows(format, rows, columns, blocks.data(), out.data());
  return out;
}

void expect_bytes(const Result<Weight>& weight, const std::vector<std::uint16_t>& elements) {
  ASSERT_TRUE(weight.ok()) << weight.failure().message;
  const Buffer& data = weight.value().data;
  ASSERT_EQ(data.bytes(), elements.size() * 2);
  EXPECT_EQ(std::memcmp(data.data(), elements.data(), data.bytes()), 0);
}

// 2^21 elements are a part: rows around one, two and many of them, one row that is longer, and
// short matrices between, whose memory on the host is that of the ones before.
TEST(WeightUploader, PartsAreTheWhole) {
  const auto device = make_host_device(cpu_info().value());
  WeightUploader uploader(*device);
  for (const WeightTypeInfo& type : weight_types())
    for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{1, 256},
                                        {2047, 1024},
                                        {2048, 1024},
                                        {2049, 1024},
                                        {4097, 1024},
                                        {700, 10240},
                                        {2, (std::int64_t{1} << 21) + 256},
                                        {3, 512}}) {
      if (type.type != WeightType::bf16 && rows * columns > std::int64_t{3} << 20) continue;
      SCOPED_TRACE(format_text("{} {}x{}", type.name, rows, columns));
      const std::vector<std::byte> blocks = blocks_of(type.type, rows * columns);
      const std::vector<std::uint16_t> elements = expected(type.type, rows, columns, blocks);
      expect_bytes(uploader.upload(type.type, rows, columns, WeightBlocks(blocks.data()), nullptr),
                   elements);
      const TensorFile on_disk(type.type, rows, columns, blocks);
      for (const bool use_mmap : {false, true}) {
        Result<WeightSource> source = WeightSource::open(on_disk.file, use_mmap);
        ASSERT_TRUE(source.ok());
        expect_bytes(uploader.upload(type.type, rows, columns,
                                     WeightBlocks(source.value(), on_disk.tensor), nullptr),
                     elements);
      }
    }
}

TEST(WeightUploader, FilesThatEndEarlyAreErrors) {
  const auto device = make_host_device(cpu_info().value());
  WeightUploader uploader(*device);
  const std::vector<std::byte> blocks = blocks_of(WeightType::bf16, 9 << 20);
  TensorFile on_disk(WeightType::bf16, 9216, 1024, blocks);
  on_disk.tensor.offset += 1;  // so that the last byte is missing
  for (const bool use_mmap : {false, true}) {
    Result<WeightSource> source = WeightSource::open(on_disk.file, use_mmap);
    const Result<Weight> weight = uploader.upload(
        WeightType::bf16, 9216, 1024, WeightBlocks(source.value(), on_disk.tensor), nullptr);
    ASSERT_FALSE(weight.ok());
    EXPECT_EQ(weight.failure().code, ErrorCode::io_error);
    EXPECT_EQ(weight.failure().message,
              on_disk.file.path +
                  (use_mmap ? ": 'matrix' extends past the end of the file"
                            : ": at byte 7: 18874368 bytes of 'matrix' could not be read") +
                  "; download or convert the file again");
  }
}

// A device whose memory ends, or whose copies fail from the `first_failure` on.
class FailingDevice final : public testing::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  bool has_memory = true, has_host_memory = true;
  int first_failure = 1 << 30;
  std::atomic<int> num_copies = 0;

  Buffer allocate(std::size_t bytes) override {
    return has_memory ? ForwardingDevice::allocate(bytes) : Buffer();
  }
  Buffer allocate_host(std::size_t bytes) override {
    return has_host_memory ? ForwardingDevice::allocate_host(bytes) : Buffer();
  }
  Status copy(std::span<const ByteCopy> copies, Stream stream) override {
    if (++num_copies > first_failure) return Failure{ErrorCode::device_error, "lost"};
    return ForwardingDevice::copy(copies, stream);
  }
};

TEST(WeightUploader, FailuresOfTheDeviceAreReported) {
  FailingDevice device(make_host_device(cpu_info().value()));
  const std::vector<std::byte> blocks = blocks_of(WeightType::bf16, 64 << 20);
  const auto upload = [&] {
    WeightUploader uploader(device);
    return uploader.upload(WeightType::bf16, 65536, 1024, WeightBlocks(blocks.data()), nullptr);
  };
  EXPECT_TRUE(upload().ok());
  EXPECT_EQ(device.num_copies, 32);
  device.num_copies = 0;
  device.first_failure = 3;
  const Result<Weight> lost = upload();
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.failure().message, "lost");
  EXPECT_LT(device.num_copies, 32) << "no part begins behind a failure";
  device.has_host_memory = false;
  EXPECT_EQ(upload().failure().message.find("no page-locked memory for 4194304 bytes of weights"),
            0u);
  device.has_memory = false;
  EXPECT_EQ(upload().failure().message.find("no memory for 134217728 bytes of weights"), 0u);
  EXPECT_EQ(upload().failure().code, ErrorCode::out_of_memory);
}

}  // namespace
}  // namespace headrace
