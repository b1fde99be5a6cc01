// Files with fewer KV heads: means, bytes that stay, metadata, errors.
#include "model/convert.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/random_model.h"
#include "model/small_shape.h"
#include "tests/support/temporary_folder.h"
#include "weights/dequantise.h"
#include "weights/gguf.h"
#include "weights/output_file.h"
#include "weights/weight_source.h"

namespace headrace::model {
namespace {

using testing::content_of;
using testing::TemporaryFolder;

Status run_all(std::int64_t count, const std::function<void(std::int64_t)>& task) {
  for (std::int64_t i = 0; i < count; ++i) task(i);
  return std::nullopt;
}

std::string write_model(const TemporaryFolder& folder, const ModelShape& shape, WeightType type) {
  Result<RandomFile> random = make_random_model(shape, type, 1);
  EXPECT_TRUE(random.ok());
  const std::string path = folder.file("in.gguf");
  Result<OutputFile> out = OutputFile::create(path);
  EXPECT_FALSE(write_random_file(random.value(), out.value(), run_all, {}).has_value());
  EXPECT_FALSE(out.value().commit().has_value());
  return path;
}

ModelShape four_heads(const char* architecture) {
  ModelShape shape = small_shape();
  shape.architecture = architecture;
  shape.num_kv_heads = 4;
  return shape;
}

std::vector<float> values_of(const ModelFile& file, const TensorInfo& tensor) {
  Result<WeightSource> source = WeightSource::open(file, false);
  Result<const std::byte*> data = source.value().read(tensor);
  EXPECT_TRUE(data.ok());
  std::int64_t count = 1;
  for (const std::int64_t n : tensor.shape) count *= n;
  std::vector<float> values(static_cast<std::size_t>(count));
  dequantise(tensor.type, data.value(), count, values.data());
  return values;
}

void expect_pooled(const ModelFile& from, const TensorInfo& before, const ModelFile& to,
                   const TensorInfo& after, std::size_t num_kv_heads) {
  const std::vector<float> old_values = values_of(from, before), values = values_of(to, after);
  const std::size_t width = old_values.size() / 4, group = 4 / num_kv_heads;
  ASSERT_EQ(values.size(), num_kv_heads * width) << after.name;
  const double rounding = after.type == WeightType::bf16  ? 0x1p-8
                          : after.type == WeightType::f16 ? 0x1p-11
                                                          : 0x1p-22;
  for (std::size_t i = 0; i < values.size(); ++i) {
    double mean = 0;
    for (std::size_t g = 0; g < group; ++g)
      mean += double{old_values[(i / width * group + g) * width + i % width]} /
              static_cast<double>(group);
    ASSERT_NEAR(double{values[i]}, mean, rounding * std::abs(mean) + 0x1p-24) << after.name;
  }
}

TEST(Convert, HeadsAreMeansAndOtherBytesStay) {
  for (const char* architecture : {"llama", "qwen2"})  // qwen2 has biases
    for (const WeightType type : {WeightType::f32, WeightType::q4_1})
      for (const std::int64_t num_kv_heads : {1, 2}) {
        const TemporaryFolder folder;
        const std::string in = write_model(folder, four_heads(architecture), type);
        const std::string out = folder.file("out.gguf");
        const WeightType wanted = num_kv_heads == 1 ? WeightType::bf16 : WeightType::f16;
        const Status bad = convert_model(in, out, {.num_kv_heads = num_kv_heads, .type = wanted});
        ASSERT_FALSE(bad) << bad->message;
        const ModelFile from = read_gguf(in).value(), to = read_gguf(out).value();
        ASSERT_EQ(to.tensors.size(), from.tensors.size());
        const std::string old_bytes = content_of(in), new_bytes = content_of(out);
        int num_pooled = 0;
        for (std::size_t i = 0; i < to.tensors.size(); ++i) {
          const TensorInfo &before = from.tensors[i], &after = to.tensors[i];
          EXPECT_EQ(after.name, before.name);
          if (after.shape == before.shape) {
            EXPECT_EQ(new_bytes.substr(after.offset, after.bytes),
                      old_bytes.substr(before.offset, before.bytes))
                << after.name;
            continue;
          }
          ++num_pooled;
          EXPECT_EQ(after.type, after.shape.size() == 2 ? wanted : WeightType::f32);
          expect_pooled(from, before, to, after, static_cast<std::size_t>(num_kv_heads));
        }
        EXPECT_EQ(num_pooled, architecture == std::string("qwen2") ? 8 : 4);  // of two layers
        for (const auto& [key, value] : from.metadata) {
          if (key.ends_with("head_count_kv")) {
            EXPECT_EQ(std::get<std::int64_t>(to.metadata.at(key)), num_kv_heads);
          } else {
            EXPECT_EQ(to.metadata.at(key), value) << key;
          }
        }
      }
}

TEST(Convert, TheSameNumberOfHeadsChangesNothing) {
  const TemporaryFolder folder;
  const std::string in = write_model(folder, four_heads("llama"), WeightType::q8_0);
  ASSERT_FALSE(convert_model(in, folder.file("out.gguf"), {.num_kv_heads = 4}).has_value());
  EXPECT_EQ(content_of(folder.file("out.gguf")), content_of(in));
}

TEST(Convert, ErrorsLeaveNoFile) {
  const TemporaryFolder folder;
  const std::string in = write_model(folder, four_heads("llama"), WeightType::f32);
  const std::string out = folder.file("out.gguf");
  const auto expect_error = [&](const std::string& path, const ConvertOptions& options,
                                const std::string& text) {
    const Status bad = convert_model(path, out, options);
    ASSERT_TRUE(bad) << text;
    EXPECT_NE(bad->message.find(text), std::string::npos) << bad->message;
    EXPECT_TRUE(read_gguf(out).ok() == false) << "a file is left";
  };
  expect_error(in, {.num_kv_heads = 3}, "num_kv_heads=3: must divide the 4 KV heads");
  expect_error(in, {.num_kv_heads = 0}, "num_kv_heads=0");
  expect_error(in, {.num_kv_heads = 8}, "num_kv_heads=8");
  expect_error(in, {.num_kv_heads = 2, .type = WeightType::q4_0}, "weight_type=\"Q4_0\"");
  expect_error(folder.file("none.gguf"), {.num_kv_heads = 2}, "none.gguf");
  const std::string content = content_of(in);
  expect_error(folder.file("cut.gguf", content.substr(0, content.size() / 2)), {.num_kv_heads = 2},
               "cut.gguf");
  expect_error(in,
               {.num_kv_heads = 2,
                .progress = [](std::uint64_t, std::uint64_t) -> Status {
                  return invalid_argument("stopped");
                }},
               "stopped");
}

// Integers of a file are written with 32 bits.
TEST(Convert, NumbersThatAreNotOf32BitsAreRefused) {
  const TemporaryFolder folder;
  Result<RandomFile> random = make_random_model(four_heads("llama"), WeightType::f32, 1);
  ASSERT_TRUE(random.ok());
  const auto outcome = [&](std::int64_t value, char type) {
    RandomFile file = random.value();
    file.file.metadata["general.number"] = value;
    file.header = make_gguf_header(file.file);
    const std::string key = "general.number";
    file.header[file.header.find(key) + key.size()] = type;
    const std::string in = folder.file("in.gguf"), path = folder.file("out.gguf");
    Result<OutputFile> out = OutputFile::create(in);
    EXPECT_FALSE(write_random_file(file, out.value(), run_all, {}).has_value());
    EXPECT_FALSE(out.value().commit().has_value());
    const Status bad = convert_model(in, path, {.num_kv_heads = 2});
    return bad ? bad->message : "";
  };
  constexpr char kUint32 = 4, kInt32 = 5;
  for (const std::int64_t good : {std::int64_t{0}, std::int64_t{UINT32_MAX}})
    EXPECT_EQ(outcome(good, kUint32), "") << good;
  EXPECT_NE(outcome(UINT32_MAX, kInt32)
                .find("'general.number' is -1, supported: 0 to 2^32 - 1; use another model"),
            std::string::npos);
}

TEST(Convert, ProgressEndsAtTheBytesOfTheOutput) {
  const TemporaryFolder folder;
  const std::string in = write_model(folder, four_heads("llama"), WeightType::f32);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> calls;
  const Status bad = convert_model(in, folder.file("out.gguf"),
                                   {.num_kv_heads = 2, .progress = [&](auto done, auto total) {
                                      calls.emplace_back(done, total);
                                      return Status();
                                    }});
  ASSERT_FALSE(bad) << bad->message;
  const Result<ModelFile> written = read_gguf(folder.file("out.gguf"));
  std::uint64_t bytes = 0;
  for (const TensorInfo& tensor : written.value().tensors) bytes += tensor.bytes;
  ASSERT_EQ(calls.size(), written.value().tensors.size());
  for (const auto& [done, total] : calls) EXPECT_EQ(total, bytes);
  EXPECT_EQ(calls.back().first, bytes);
}

}  // namespace
}  // namespace headrace::model
