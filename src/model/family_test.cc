#include "model/family.h"

#include <gtest/gtest.h>

namespace headrace::model {
namespace {

const std::string kRemedy = "; download or convert the file again";

ModelFile file_of(const std::string& architecture) {
  ModelFile file;
  file.path = "m.gguf";
  file.metadata["general.architecture"] = architecture;
  const auto set = [&](const char* key, MetadataValue value) {
    file.metadata[architecture + "." + key] = std::move(value);
  };
  set("block_count", std::int64_t{2});
  set("embedding_length", std::int64_t{96});
  set("feed_forward_length", std::int64_t{160});
  set("context_length", std::int64_t{256});
  set("attention.head_count", std::int64_t{6});
  set("attention.head_count_kv", std::int64_t{2});
  set("attention.layer_norm_rms_epsilon", 1e-5);
  file.tensors.push_back({.name = "token_embd.weight",
                          .type = WeightType::f32,
                          .shape = {300, 96},
                          .offset = 0,
                          .bytes = 0});
  return file;
}

std::string failure_of(const ModelFile& file) {
  Result<Config> config = read_config(file);
  return config.ok() ? "" : config.failure().message;
}

TEST(Family, ReadsTheHyperparametersOfEachArchitecture) {
  Result<Config> llama = read_config(file_of("llama")), qwen2 = read_config(file_of("qwen2"));
  ASSERT_TRUE(llama.ok()) << llama.failure().message;
  ASSERT_TRUE(qwen2.ok()) << qwen2.failure().message;
  const Config& c = llama.value();
  EXPECT_EQ(c.num_layers, 2);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.head_dim_v, 16);
  EXPECT_EQ(c.rope_dim, 16);
  EXPECT_EQ(c.rope_base, 10000);
  EXPECT_EQ(c.vocab_size, 300);
  EXPECT_EQ(c.window, 0);
  EXPECT_EQ(c.rope_layout, RopeLayout::interleaved);
  EXPECT_FALSE(c.has_qkv_bias);
  EXPECT_EQ(qwen2.value().rope_layout, RopeLayout::halves);
  EXPECT_TRUE(qwen2.value().has_qkv_bias);
}

TEST(Family, HeadDimMayDifferFromHiddenSizePerHead) {
  ModelFile file = file_of("llama");
  file.metadata["llama.attention.key_length"] = std::int64_t{32};
  file.metadata["llama.attention.value_length"] = std::int64_t{24};
  file.metadata["llama.rope.scaling.type"] = std::string("linear");
  file.metadata["llama.rope.scaling.factor"] = 4.0;
  Result<Config> config = read_config(file);
  ASSERT_TRUE(config.ok()) << config.failure().message;
  EXPECT_EQ(config.value().head_dim, 32);
  EXPECT_EQ(config.value().head_dim_v, 24);
  EXPECT_EQ(config.value().rope_dim, 32);
  EXPECT_EQ(config.value().rope_linear_factor, 4.0);
}

// Each number of a file at both ends of its range, alone: it reaches its field, whatever the others
// are, and beyond its range the file is refused.
TEST(Family, EachNumberHasARangeOfItsOwn) {
  const struct {
    const char* key;
    std::int64_t Config::*field;
    std::int64_t least, most;
    std::vector<std::int64_t> wrong;
  } numbers[] = {{"block_count", &Config::num_layers, 1, 1024, {0, 1025}},
                 {"embedding_length", &Config::hidden_size, 1, 1 << 20, {0, (1 << 20) + 1}},
                 {"feed_forward_length", &Config::ffn_size, 1, 1 << 20, {0, (1 << 20) + 1}},
                 {"context_length", &Config::context_length, 1, 1 << 24, {0, (1 << 24) + 1}},
                 {"attention.head_count", &Config::num_heads, 1, 4096, {0, 4097}},
                 {"attention.head_count_kv", &Config::num_kv_heads, 1, 4096, {0, 4097}},
                 {"attention.key_length", &Config::head_dim, 2, 576, {0, 577}},
                 {"attention.value_length", &Config::head_dim_v, 1, 576, {0, 577}},
                 {"attention.sliding_window", &Config::window, 0, 1 << 24, {-1, (1 << 24) + 1}},
                 {"rope.dimension_count", &Config::rope_dim, 2, 576, {1, 578}}};
  for (const std::string architecture : {"llama", "qwen2"}) {
    for (const auto& number : numbers) {
      const std::string key = architecture + '.' + number.key;
      const auto file_with = [&](std::int64_t value) {
        ModelFile file = file_of(architecture);
        const auto set = [&](const char* name, std::int64_t x) {
          file.metadata[architecture + '.' + name] = x;
        };
        // Sizes that go with every other one: heads are a multiple of the kv heads, and no larger
        // part of a head rotates than there is.
        set("attention.key_length", 576);
        set("attention.value_length", 16);
        if (key.ends_with("key_length")) set("rope.dimension_count", 2);
        set("attention.head_count_kv", 1);
        if (key.ends_with("head_count_kv")) set("attention.head_count", 4096);
        file.metadata[key] = value;
        return file;
      };
      for (const std::int64_t value : {number.least, number.most}) {
        Result<Config> config = read_config(file_with(value));
        ASSERT_TRUE(config.ok()) << config.failure().message;
        EXPECT_EQ(config.value().*number.field, value) << key;
      }
      for (const std::int64_t value : number.wrong)
        EXPECT_EQ(failure_of(file_with(value))
                      .rfind(format_text("m.gguf: '{}' is {}, expected ", key, value), 0),
                  0u)
            << key << ' ' << value;
    }
  }
}

TEST(Family, RejectsUnknownArchitecturesAndFeatures) {
  EXPECT_EQ(
      failure_of(file_of("mamba")),
      "m.gguf: 'general.architecture' is 'mamba', supported: llama, qwen2; use a model of one of "
      "these");
  ModelFile experts = file_of("llama");
  experts.metadata["llama.expert_count"] = std::int64_t{8};
  EXPECT_EQ(failure_of(experts),
            "m.gguf: 'expert_count' is not 0, supported: dense models; use another model");
  ModelFile yarn = file_of("qwen2");
  yarn.metadata["qwen2.rope.scaling.type"] = std::string("yarn");
  Result<Config> refused = read_config(yarn);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.failure().code, ErrorCode::unsupported);
}

TEST(Family, RejectsInconsistentHyperparameters) {
  ModelFile file = file_of("llama");
  file.metadata["llama.attention.head_count_kv"] = std::int64_t{4};
  EXPECT_EQ(failure_of(file),
            "m.gguf: 'attention.head_count' is 6, expected a multiple of "
            "'attention.head_count_kv', 4" +
                kRemedy);
  file = file_of("llama");
  file.metadata["llama.attention.head_count"] = std::int64_t{0};
  EXPECT_EQ(failure_of(file),
            "m.gguf: 'llama.attention.head_count' is 0, expected 1 to 4096" + kRemedy);
  file = file_of("llama");
  file.metadata["llama.rope.dimension_count"] = std::int64_t{18};
  EXPECT_EQ(
      failure_of(file),
      "m.gguf: 'rope.dimension_count' is 18, expected an even number up to head_dim 16" + kRemedy);
  file = file_of("llama");
  file.metadata["llama.attention.head_count"] = std::int64_t{128};  // 96 / 128 elements a head
  file.metadata["llama.attention.head_count_kv"] = std::int64_t{128};
  EXPECT_EQ(failure_of(file), "m.gguf: head_dim is 0, expected 1 to 576" + kRemedy);
  file = file_of("llama");
  file.tensors.clear();
  EXPECT_EQ(failure_of(file), "m.gguf: tensor 'token_embd.weight' is missing" + kRemedy);
  file = file_of("llama");
  file.metadata["llama.block_count"] = std::string("two");
  EXPECT_EQ(failure_of(file),
            "m.gguf: 'llama.block_count' is a string, expected an integer" + kRemedy);
}

TEST(Family, TextsAreTexts) {
  for (const char* key : {"general.name", "general.architecture"})
    for (const MetadataValue& value :
         {MetadataValue(std::int64_t{3}), MetadataValue(0.5), MetadataValue(true)}) {
      ModelFile file = file_of("llama");
      file.metadata[key] = value;
      EXPECT_EQ(failure_of(file).find("m.gguf: '" + std::string(key) + "' is a"), 0u)
          << failure_of(file);
    }
}

}  // namespace
}  // namespace headrace::model
