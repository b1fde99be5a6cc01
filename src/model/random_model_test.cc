#include "model/random_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <thread>

#include "model/family.h"
#include "model/small_shape.h"
#include "tests/support/temporary_folder.h"
#include "text/tokenizer.h"
#include "weights/dequantise.h"
#include "weights/gguf.h"
#include "weights/weight_source.h"

namespace headrace::model {
namespace {

using testing::content_of;
using testing::TemporaryFolder;

RandomFile make(const ModelShape& shape, WeightType type = WeightType::f32,
                std::uint64_t seed = 1) {
  Result<RandomFile> random = make_random_model(shape, type, seed);
  EXPECT_TRUE(random.ok()) << random.failure().message;
  return std::move(random.value());
}

// Task i on thread i % num_threads.
ParallelFor threads(int num_threads) {
  return
      [num_threads](std::int64_t count, const std::function<void(std::int64_t)>& task) -> Status {
        std::vector<std::jthread> running;
        for (int t = 0; t < num_threads; ++t)
          running.emplace_back([=, &task] {
            for (std::int64_t i = t; i < count; i += num_threads) task(i);
          });
        return std::nullopt;
      };
}

std::string write(const RandomFile& random, const std::string& path, int num_threads = 2) {
  Result<OutputFile> out = OutputFile::create(path);
  EXPECT_TRUE(out.ok());
  EXPECT_FALSE(write_random_file(random, out.value(), threads(num_threads), {}).has_value());
  EXPECT_FALSE(out.value().commit().has_value());
  return path;
}

TEST(RandomModel, BytesDependOnTheSeedAndNotOnTheThreads) {
  const TemporaryFolder folder;
  for (const WeightTypeInfo& info : weight_types()) {
    const std::string one = content_of(write(make(small_shape(), info.type), folder.file("a"), 1));
    EXPECT_EQ(content_of(write(make(small_shape(), info.type), folder.file("b"), 3)), one)
        << info.name;
    EXPECT_NE(content_of(write(make(small_shape(), info.type, 2), folder.file("c"), 1)), one)
        << info.name;
  }
}

// Every published shape: the header reads back as the same hyperparameters and vocabulary.
TEST(RandomModel, HeadersDescribeTheirShape) {
  std::set<std::string> names;
  for (const ModelShape& shape : known_shapes()) {
    SCOPED_TRACE(shape.name);
    EXPECT_TRUE(names.insert(shape.name).second);
    const RandomFile random = make(shape, WeightType::q8_0);
    const TensorInfo& last = random.file.tensors.back();
    const auto parsed =
        parse_gguf({reinterpret_cast<const std::byte*>(random.header.data()), random.header.size()},
                   last.offset + last.bytes, "m");
    ASSERT_TRUE(std::holds_alternative<ModelFile>(parsed)) << std::get<Failure>(parsed).message;
    const auto& file = std::get<ModelFile>(parsed);
    EXPECT_EQ(file.types, random.file.types);
    ASSERT_EQ(file.tensors.size(), random.file.tensors.size());
    for (std::size_t i = 0; i < file.tensors.size(); ++i) {
      EXPECT_EQ(file.tensors[i].offset, random.file.tensors[i].offset);
      EXPECT_EQ(file.tensors[i].bytes, random.file.tensors[i].bytes);
    }
    const Config config = read_config(file).value();
    EXPECT_EQ(config.name, shape.name);
    EXPECT_EQ(config.num_layers, shape.num_layers);
    EXPECT_EQ(config.hidden_size, shape.hidden_size);
    EXPECT_EQ(config.ffn_size, shape.ffn_size);
    EXPECT_EQ(config.vocab_size, shape.vocab_size);
    EXPECT_EQ(config.num_heads, shape.num_heads);
    EXPECT_EQ(config.num_kv_heads, shape.num_kv_heads);
    EXPECT_EQ(config.head_dim, shape.head_dim);
    EXPECT_EQ(config.head_dim_v, shape.head_dim);
    EXPECT_EQ(config.context_length, shape.context_length);
    EXPECT_EQ(config.window, shape.window);
    EXPECT_EQ(config.rms_eps, static_cast<double>(static_cast<float>(shape.rms_eps)));
    EXPECT_EQ(config.rope_base, shape.rope_base);
    EXPECT_EQ(config.rope_dim, shape.head_dim);
    EXPECT_EQ(file.find_tensor("output.weight") == nullptr, shape.has_tied_embeddings);
    EXPECT_EQ(file.find_tensor("rope_freqs.weight") != nullptr, shape.rope_llama3.has_value());
    Result<text::Tokenizer> tokenizer = text::Tokenizer::make(file);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.failure().message;
    EXPECT_EQ(tokenizer.value().vocab_size(), shape.vocab_size);
    EXPECT_EQ(tokenizer.value().bos(), shape.bos_token);
    EXPECT_EQ(tokenizer.value().eos(), shape.eos_token);
    EXPECT_EQ(tokenizer.value().adds_bos(), shape.bos_token != shape.eos_token);
    const std::string text = "Any bytes \xff\x00 \xc3\xa9";
    EXPECT_EQ(tokenizer.value().decode(tokenizer.value().encode(text).value()).value(), text);
  }
}

// The published sizes: parameters as the model cards have them, to the million.
TEST(RandomModel, HasAsManyParametersAsThePublishedModel) {
  const std::map<std::string, double> millions = {
      {"smollm2-135m", 135},  {"qwen2.5-0.5b", 494},  {"qwen2.5-1.5b", 1544}, {"qwen2.5-7b", 7616},
      {"llama-3.2-1b", 1236}, {"llama-3.1-8b", 8030}, {"mistral-7b", 7242}};
  for (const ModelShape& shape : known_shapes()) {
    double parameters = 0;
    for (const TensorInfo& tensor : make(shape).file.tensors) {
      double elements = 1;
      for (const std::int64_t n : tensor.shape) elements *= static_cast<double>(n);
      parameters += elements;
    }
    EXPECT_EQ(std::round(parameters / 1e6), millions.at(shape.name)) << shape.name;
  }
}

TEST(RandomModel, MatricesKeepTheVarianceAndNormsAreAboutOne) {
  const TemporaryFolder folder;
  const ModelShape shape = small_shape();
  const std::string path = write(make(shape), folder.file("m"));
  const ModelFile file = read_gguf(path).value();
  WeightSource source = std::move(WeightSource::open(file, false).value());
  for (const TensorInfo& tensor : file.tensors) {
    const std::size_t count = tensor.bytes / sizeof(float);
    std::vector<float> values(count);
    dequantise(tensor.type, source.read(tensor).value(), static_cast<std::int64_t>(count),
               values.data());
    double sum = 0, squares = 0;
    for (const float value : values) sum += value;
    const double n = static_cast<double>(count), mean = sum / n;
    for (const float value : values) squares += (value - mean) * (value - mean);
    const bool is_vector = tensor.shape.size() == 1;
    const bool is_residual = tensor.name.find("attn_output") != std::string::npos ||
                             tensor.name.find("ffn_down") != std::string::npos;
    const double deviation =
        is_vector ? 0.1
                  : 1 / std::sqrt(static_cast<double>(tensor.shape.back() *
                                                      (is_residual ? 2 * shape.num_layers : 1)));
    // Six standard deviations of the estimates.
    EXPECT_NEAR(mean, is_vector ? 1 : 0, 6 * deviation / std::sqrt(n)) << tensor.name;
    EXPECT_NEAR(std::sqrt(squares / n), deviation, 6 * deviation / std::sqrt(2 * n)) << tensor.name;
  }
}

TEST(RandomModel, ScalesRopeAsLlama3) {
  for (const ModelShape& shape : known_shapes()) {
    if (!shape.rope_llama3) continue;
    const RandomFile random = make(shape);
    for (std::size_t i = 0; i < random.fills.size(); ++i) {
      if (random.file.tensors[i].name != "rope_freqs.weight") continue;
      const std::vector<double> by_factors =
          rope_frequencies({.rot_dim = shape.head_dim,
                            .base = shape.rope_base,
                            .llama3 = {},
                            .freq_factors = random.fills[i].values})
              .value();
      const std::vector<double> expected = rope_frequencies({.rot_dim = shape.head_dim,
                                                             .base = shape.rope_base,
                                                             .llama3 = shape.rope_llama3,
                                                             .freq_factors = {}})
                                               .value();
      for (std::size_t pair = 0; pair < expected.size(); ++pair)
        EXPECT_NEAR(by_factors[pair], expected[pair], expected[pair] * 0x1p-23);  // factors are f32
    }
  }
}

TEST(RandomModel, RefusesImpossibleShapes) {
  using Change = void (*)(ModelShape&);
  const std::pair<Change, const char*> cases[] = {
      {[](ModelShape& s) { s.architecture = "gpt2"; }, "shape.architecture=\"gpt2\": "},
      {[](ModelShape& s) { s.num_layers = 0; }, "shape.num_layers=0: must be 1 to 1024"},
      {[](ModelShape& s) { s.hidden_size = -1; }, "shape.hidden_size=-1: "},
      {[](ModelShape& s) { s.ffn_size = std::int64_t{1} << 40; }, "shape.ffn_size=1099511627776: "},
      {[](ModelShape& s) { s.num_heads = 0; }, "shape.num_heads=0: "},
      {[](ModelShape& s) { s.num_kv_heads = 3; },
       "shape.num_heads=4: must be a multiple of num_kv_heads=3"},
      {[](ModelShape& s) { s.head_dim = 63; }, "shape.head_dim=63: must be even"},
      {[](ModelShape& s) { s.context_length = 0; }, "shape.context_length=0: "},
      {[](ModelShape& s) { s.window = -1; }, "shape.window=-1: "},
      {[](ModelShape& s) { s.vocab_size = 257; }, "shape.vocab_size=257: must be 258 to "},
      {[](ModelShape& s) { s.rms_eps = std::nan(""); }, "shape.rms_eps=nan: "},
      {[](ModelShape& s) { s.rope_base = 0; }, "shape.rope_base=0: "},
      {[](ModelShape& s) { s.rope_linear_factor = 0; }, "shape.rope_linear_factor=0: "},
      {[](ModelShape& s) { s.eos_token = 300; }, "shape.eos_token=300: must be -1 to 299"},
      {[](ModelShape& s) { s.bos_token = -2; }, "shape.bos_token=-2: "},
      {[](ModelShape& s) { s.rope_llama3 = RopeLlama3Scaling{.factor = -1}; },
       "shape.rope_llama3: factor=-1: "},
      {[](ModelShape& s) { s.hidden_size = 128; },
       "weight_type=Q6_K: must divide rows into blocks of 256"}};
  for (const auto& [change, text] : cases) {
    ModelShape shape = small_shape();
    change(shape);
    Result<RandomFile> random = make_random_model(shape, WeightType::q6_k, 0);
    ASSERT_FALSE(random.ok()) << text;
    EXPECT_NE(random.failure().message.find(text), std::string::npos) << random.failure().message;
  }
}

TEST(RandomModel, AFailureOfTheProgressEndsTheWriting) {
  const TemporaryFolder folder;
  OutputFile out = std::move(OutputFile::create(folder.file("m")).value());
  std::vector<std::uint64_t> done;
  const Status status = write_random_file(make(small_shape()), out, threads(1),
                                          [&](std::uint64_t bytes, std::uint64_t total) -> Status {
                                            EXPECT_LE(bytes, total);
                                            done.push_back(bytes);
                                            if (done.size() < 3) return std::nullopt;
                                            return Failure{ErrorCode::invalid_argument, "enough"};
                                          });
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->message, "enough");
  EXPECT_EQ(done.size(), 3u);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
}

}  // namespace
}  // namespace headrace::model
