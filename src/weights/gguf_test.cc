#include "weights/gguf.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "tests/support/gguf_bytes.h"
#include "tests/support/guarded_buffer.h"

namespace headrace {
namespace {

using testing::GgufBytes;
using testing::Guard;
using testing::GuardedBuffer;

constexpr std::uint32_t kU8 = 0, kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kText = 8, kU64 = 10;

// The bytes end at a guard page.
std::variant<ModelFile, NeedsMore, Failure> parse(std::string_view bytes,
                                                  std::uint64_t file_bytes) {
  const GuardedBuffer memory(bytes.size(), Guard::after, 0);
  std::copy(bytes.begin(), bytes.end(), memory.data());
  return parse_gguf({reinterpret_cast<const std::byte*>(memory.data()), bytes.size()}, file_bytes,
                    "m.gguf");
}
auto parse(const GgufBytes& file) { return parse(file.bytes(), file.bytes().size()); }

GgufBytes small_model(std::uint32_t version = 3) {
  GgufBytes file;
  file.header(2, 5, version);
  file.key("general.architecture", kText).put_text("llama");
  file.key("llama.block_count", kU32).put(std::uint32_t{30});
  file.key("llama.eps", kF32).put(1e-5f);
  file.key("add_bos", kBool).put(std::uint8_t{1});
  file.put_text("tokens").list(kText, 2).put_text("a").put_text("");
  file.tensor("embd", {64, 3}, 3, 0);  // Q4_1: 2 blocks of 20 bytes a row
  file.tensor("norm", {5}, 0, 128);    // F32; the 120 bytes before are padded to 128
  file.pad().zeros(128 + 20).pad();
  return file;
}

// Type ids of the format, their names and the bytes of a value.
struct NamedType {
  std::uint32_t type;
  const char* name;
  std::uint64_t bytes;
};
constexpr NamedType kNamedTypes[] = {{0, "u8", 1},   {1, "i8", 1},   {2, "u16", 2},
                                     {3, "i16", 2},  {4, "u32", 4},  {5, "i32", 4},
                                     {6, "f32", 4},  {7, "bool", 1}, {8, "string", 8},
                                     {10, "u64", 8}, {11, "i64", 8}, {12, "f64", 8}};

TEST(Gguf, EveryTypeHasItsNameAloneAndInAnArray) {
  for (const NamedType& named : kNamedTypes) {
    GgufBytes file;
    file.header(0, 2, 3);
    file.key("alone", named.type).zeros(named.bytes);
    file.put_text("listed").list(named.type, 2).zeros(2 * named.bytes);
    auto parsed = parse(file);
    auto* read = std::get_if<ModelFile>(&parsed);
    ASSERT_NE(read, nullptr) << named.name;
    EXPECT_EQ(read->types.at("alone"), named.name);
    EXPECT_EQ(read->types.at("listed"), std::string("array[") + named.name + "]");
  }
}

TEST(Gguf, ReadsMetadataAndTensors) {
  for (const std::uint32_t version : {2u, 3u}) {
    auto parsed = parse(small_model(version));
    auto* file = std::get_if<ModelFile>(&parsed);
    ASSERT_NE(file, nullptr) << std::get<Failure>(parsed).message;
    EXPECT_EQ(file->text("general.architecture").value(), "llama");
    EXPECT_EQ(file->integer("llama.block_count", 1, 1024).value(), 30);
    EXPECT_EQ(file->number("llama.eps", 0, 1).value(), static_cast<double>(1e-5f));
    EXPECT_TRUE(file->flag_or("add_bos", false).value());
    EXPECT_EQ(*file->texts("tokens").value(), (std::vector<std::string>{"a", ""}));
    ASSERT_EQ(file->tensors.size(), 2u);
    const TensorInfo* embd = file->find_tensor("embd");
    ASSERT_NE(embd, nullptr);
    EXPECT_EQ(embd->shape, (std::vector<std::int64_t>{3, 64}));
    EXPECT_EQ(embd->bytes, 120u);
    EXPECT_EQ(embd->offset % 32, 0u);
    EXPECT_EQ(file->find_tensor("norm")->offset, embd->offset + 128);
    EXPECT_EQ(file->find_tensor("other"), nullptr);
  }
}

TEST(Gguf, ValuesHaveKindsAndRanges) {
  auto parsed = parse(small_model());
  const ModelFile& file = std::get<ModelFile>(parsed);
  EXPECT_EQ(
      file.integer("llama.block_count", 1, 8).failure().message,
      "m.gguf: 'llama.block_count' is 30, expected 1 to 8; download or convert the file again");
  EXPECT_EQ(file.integer("tokens", 1, 8).failure().message,
            "m.gguf: 'tokens' is an array of strings, expected an integer; "
            "download or convert the file again");
  EXPECT_EQ(file.text("none").failure().message,
            "m.gguf: 'none' is missing; download or convert the file again");
  EXPECT_EQ(file.integer_or("none", 1, 8, 7).value(), 7);
  EXPECT_EQ(file.text_or("none", "x").value(), "x");
}

// Every proper prefix of a good file is rejected, or needs more bytes. (The padding after the last
// tensor, 12 bytes here, may be missing.)
TEST(Gguf, TruncatedFilesAreRejected) {
  const std::string padded = small_model().bytes();
  const std::string_view bytes = std::string_view(padded).substr(0, padded.size() - 12);
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    const std::string_view head = bytes.substr(0, n);
    EXPECT_TRUE(std::holds_alternative<Failure>(parse(head, n))) << n;
    EXPECT_FALSE(std::holds_alternative<Failure>(parse(head, bytes.size()))) << n;
  }
}

TEST(Gguf, FlippedBytesAreHarmless) {
  const std::string good = small_model().bytes();
  std::mt19937 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (int flips = 1 + static_cast<int>(random() % 3); flips > 0; --flips)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    auto parsed = parse(bytes, bytes.size());
    EXPECT_FALSE(std::holds_alternative<NeedsMore>(parsed));
    if (const auto* file = std::get_if<ModelFile>(&parsed)) {
      for (const TensorInfo& weight : file->tensors) {
        ASSERT_LE(weight.bytes, bytes.size());
        ASSERT_LE(weight.offset, bytes.size() - weight.bytes);
      }
    }
  }
}

struct Hostile {
  const char* rule;
  GgufBytes file;
};

std::vector<Hostile> hostile_files() {
  constexpr auto kHuge = std::numeric_limits<std::uint64_t>::max();
  const auto with_tensor = [](const std::vector<std::uint64_t>& dims, std::uint32_t type,
                              std::uint64_t offset) {
    return GgufBytes().header(1, 0).tensor("t", dims, type, offset).pad().zeros(64);
  };
  const auto with_pairs = [](std::uint64_t n) { return GgufBytes().header(0, n); };
  return {
      {"4 bytes, expected at least the 24", GgufBytes().put_bytes("GGUF")},
      {"not a GGUF file", GgufBytes().put_bytes("GGML").zeros(60)},
      {"GGUF version 1", GgufBytes().header(0, 0, 1)},
      {"GGUF version 4", GgufBytes().header(0, 0, 4)},
      {"big-endian", GgufBytes().header(0, 0, 3u << 24)},
      {"tensors, expected at most", GgufBytes().header(kHuge, 0)},
      {"tensors, expected at most", GgufBytes().header(std::uint64_t{1} << 63, 0)},
      {"metadata pairs, expected at most", GgufBytes().header(0, kHuge)},
      {"tensors of at least", GgufBytes().header(60000, 0).zeros(40)},
      {"key of 0 bytes", with_pairs(1).key("", kU8).zeros(20)},
      {"key of 18446744073709551615 bytes", with_pairs(1).put(kHuge).zeros(40)},
      {"key of 257 bytes", with_pairs(1).key(std::string(257, 'k'), kU8).zeros(20)},
      {"value type 13", with_pairs(1).key("k", 13).zeros(20)},
      {"an array of arrays", with_pairs(1).put_text("k").list(9, 1).zeros(20)},
      {"elements, expected at most", with_pairs(1).put_text("k").list(kU8, kHuge).zeros(20)},
      {"elements of at least 8", with_pairs(1).put_text("k").list(kText, 1 << 20).zeros(20)},
      {"string of 1073741824 bytes", with_pairs(1).key("k", kText).put(1ull << 30).zeros(20)},
      {"boolean 2", with_pairs(1).key("k", kBool).put(std::uint8_t{2}).zeros(20)},
      {"above 2^63 - 1", with_pairs(1).key("k", kU64).put(kHuge).zeros(20)},
      {"a key appears twice", with_pairs(2).key("k", kU8).zeros(1).key("k", kU8).zeros(20)},
      {"'general.alignment' is 4",
       with_pairs(1).key("general.alignment", kU32).put(std::uint32_t{4}).zeros(40)},
      {"expected a power of two",
       with_pairs(1).key("general.alignment", kU32).put(std::uint32_t{24}).zeros(40)},
      {"'general.alignment' is a string",
       with_pairs(1).key("general.alignment", kText).put_text("32")},
      {"'general.alignment' is 1073741824",
       with_pairs(1).key("general.alignment", kI32).put(std::int32_t{1 << 30}).zeros(40)},
      {"has 0 dimensions", with_tensor({}, 0, 0)},
      {"has 5 dimensions", with_tensor({1, 1, 1, 1, 1}, 0, 0)},
      {"a dimension of 0", with_tensor({0}, 0, 0)},
      {"a dimension of 18446744073709551615", with_tensor({kHuge}, 0, 0)},
      {"larger than the file", with_tensor({1u << 31 >> 1, 1u << 30, 4}, 0, 0)},
      {"larger than the file", with_tensor({1, 1u << 30, 1u << 30, 1u << 30}, 0, 0)},
      {"has type 4,", with_tensor({32}, 4, 0)},
      {"has type 4294967295,", with_tensor({32}, 4294967295u, 0)},
      {"requires a multiple of 32", with_tensor({33}, 2, 0)},
      {"extends past the end of the file", with_tensor({17}, 0, 0)},
      {"has offset 32, expected the end", with_tensor({4}, 0, 32)},
      {"has offset 1, expected the end", with_tensor({4}, 0, 1)},
      {"expected padding only", with_tensor({4}, 0, 0)},
      {"tensor 'a' appears twice",
       GgufBytes().header(2, 0).tensor("a", {8}, 0, 0).tensor("a", {8}, 0, 32).pad().zeros(64)},
      {"has offset 0, expected the end",
       GgufBytes().header(2, 0).tensor("a", {8}, 0, 0).tensor("b", {8}, 0, 0).pad().zeros(64)},
      {"ends before its first tensor", GgufBytes().header(1, 0).tensor("t", {1}, 0, 0)},
  };
}

TEST(Gguf, HostileFilesAreRejectedWithRuleAndRemedy) {
  for (const Hostile& hostile : hostile_files()) {
    auto parsed = parse(hostile.file);
    const auto* failure = std::get_if<Failure>(&parsed);
    ASSERT_NE(failure, nullptr) << hostile.rule;
    EXPECT_NE(failure->message.find(hostile.rule), std::string::npos)
        << "expected: " << hostile.rule << "\narrived: " << failure->message;
    EXPECT_EQ(failure->message.substr(0, 8), "m.gguf: ");
    EXPECT_TRUE(failure->code == ErrorCode::io_error || failure->code == ErrorCode::unsupported);
    const char* remedy =
        failure->code == ErrorCode::io_error ? "; download or convert the file again" : "; ";
    EXPECT_NE(failure->message.find(remedy), std::string::npos) << failure->message;
  }
}

TEST(Gguf, FilesAreReadFromDisk) {
  const auto path = std::filesystem::temp_directory_path() / "headrace-gguf-test.gguf";
  std::ofstream(path, std::ios::binary) << small_model().bytes();
  EXPECT_TRUE(read_gguf(path.string()).ok());
  std::filesystem::remove(path);
  const Failure missing = read_gguf(path.string()).failure();
  EXPECT_EQ(missing.message,
            path.string() + ": cannot be opened for reading; check the path and its permissions");
  EXPECT_FALSE(read_gguf(std::filesystem::temp_directory_path().string()).ok());
}

}  // namespace
}  // namespace headrace
