// headrace make-model and --random, run from a shell.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/program_json.h"

namespace {

using headrace::testing::content_of;
using headrace::testing::json_of;
using headrace::testing::ProgramResult;
using headrace::testing::run_program;
using headrace::testing::TemporaryFolder;
using Json = nlohmann::json;

using Changes = std::vector<std::pair<std::string, Json>>;

Json small_config() {
  return {
      {"model_type", "llama"},      {"num_hidden_layers", 2},   {"hidden_size", 64},
      {"intermediate_size", 96},    {"vocab_size", 300},        {"num_attention_heads", 4},
      {"num_key_value_heads", 2},   {"rms_norm_eps", 1e-5},     {"max_position_embeddings", 128},
      {"bos_token_id", 256},        {"eos_token_id", {257, 5}}, {"rope_theta", 5000.0},
      {"tie_word_embeddings", true}};
}

std::string config_file(const TemporaryFolder& folder, const Json& config) {
  return folder.file("config.json", config.dump());
}

ProgramResult errors_of(const std::string& arguments) { return run_program("2>&1 " + arguments); }

std::map<std::string, std::string> metadata_of(const std::string& path) {
  std::map<std::string, std::string> metadata;
  const auto json = json_of("inspect " + path);
  for (const auto& row : json["metadata"]) metadata[row["key"]] = row["value"];
  return metadata;
}

TEST(MakeModel, WritesAFileThatGenerates) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.gguf");
  const std::string make =
      "make-model --like " + config_file(folder, small_config()) + " --type q8_0 --seed 5 -o ";
  ASSERT_EQ(errors_of(make + path).out, "");
  const auto summary = json_of("inspect " + path)["summary"][0];
  EXPECT_EQ(summary["num_layers"], 2);
  EXPECT_EQ(summary["hidden_size"], 64);
  EXPECT_EQ(summary["num_heads"], 4);
  EXPECT_EQ(summary["num_kv_heads"], 2);
  EXPECT_EQ(summary["head_dim"], 16);
  EXPECT_EQ(summary["context_length"], 128);
  const ProgramResult answer =
      run_program("generate -m " + path + " --raw Hi -n 8 --ignore-eos -q");
  EXPECT_EQ(answer.exit_code, 0);
  EXPECT_FALSE(answer.out.empty());
  ASSERT_EQ(errors_of(make + folder.file("threads.gguf") + " -t 3").out, "");
  EXPECT_EQ(content_of(folder.file("threads.gguf")), content_of(path));
}

TEST(MakeModel, ReadsConfigsOfHuggingFace) {
  const TemporaryFolder folder;
  const auto made_of = [&](const Changes& changes) {
    Json config = small_config();
    for (const auto& [key, value] : changes) config[key] = value;
    const std::string path = folder.file("m.gguf");
    EXPECT_EQ(
        errors_of("make-model --overwrite -o " + path + " --like " + config_file(folder, config))
            .out,
        "");
    return path;
  };
  const auto base = metadata_of(made_of({}));
  EXPECT_EQ(base.at("general.architecture"), "llama");
  EXPECT_EQ(base.at("llama.rope.freq_base"), "5000");
  EXPECT_EQ(base.at("tokenizer.ggml.bos_token_id"), "256");
  EXPECT_EQ(base.at("tokenizer.ggml.eos_token_id"), "257");
  EXPECT_FALSE(base.contains("llama.attention.sliding_window"));
  // null: the default.
  const auto defaults = metadata_of(made_of(
      {{"num_key_value_heads", nullptr}, {"rope_theta", nullptr}, {"bos_token_id", nullptr}}));
  EXPECT_EQ(defaults.at("llama.attention.head_count_kv"), "4");
  EXPECT_EQ(defaults.at("llama.rope.freq_base"), "10000");
  EXPECT_FALSE(defaults.contains("tokenizer.ggml.bos_token_id"));
  EXPECT_EQ(metadata_of(made_of({{"head_dim", 24}})).at("llama.attention.key_length"), "24");
  EXPECT_EQ(metadata_of(made_of({{"model_type", "mistral"}, {"sliding_window", 32}}))
                .at("llama.attention.sliding_window"),
            "32");
  EXPECT_FALSE(
      metadata_of(
          made_of({{"model_type", "qwen2"}, {"sliding_window", 32}, {"use_sliding_window", false}}))
          .contains("qwen2.attention.sliding_window"));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto linear = metadata_of(
        made_of({{key, {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 5000.0}}}}));
    EXPECT_EQ(linear.at("llama.rope.scaling.factor"), "4") << key;
    EXPECT_EQ(linear.at("llama.rope.freq_base"), "5000") << key;
  }
  const auto tensors = [&](const Changes& changes) {
    return json_of("inspect " + made_of(changes))["meta"]["tensors"].get<int>();
  };
  EXPECT_EQ(tensors({{"tie_word_embeddings", false}}), tensors({}) + 1);
  EXPECT_EQ(tensors({{"rope_scaling",
                      {{"type", "llama3"},
                       {"factor", 8},
                       {"low_freq_factor", 1},
                       {"high_freq_factor", 4},
                       {"original_max_position_embeddings", 64}}}}),
            tensors({}) + 1);
  EXPECT_EQ(tensors({{"model_type", "qwen2"}}), tensors({}) + 6);
}

TEST(MakeModel, NamesWhatIsWrongWithAConfig) {
  const TemporaryFolder folder;
  const std::string path = folder.file("config.json");
  const auto fails = [&](const std::string& content, const std::string& reason) {
    folder.file("config.json", content);
    const ProgramResult result =
        errors_of("make-model --like " + path + " -o " + folder.file("m.gguf"));
    EXPECT_EQ(result.exit_code, 1) << result.out;
    EXPECT_EQ(result.out.find("headrace: " + path + ": " + reason), 0u) << result.out;
    EXPECT_FALSE(std::filesystem::exists(folder.file("m.gguf")));
  };
  fails("{", "not JSON at byte ");
  fails("[]", "not a JSON object");
  for (const char* key :
       {"model_type", "num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size",
        "num_attention_heads", "rms_norm_eps", "max_position_embeddings"}) {
    Json config = small_config();
    config.erase(key);
    fails(config.dump(), '\'' + std::string(key) + "' is missing");
  }
  const std::tuple<const char*, Json, const char*> cases[] = {
      {"model_type", "gpt2", "'model_type' is \"gpt2\", supported: llama, mistral, qwen2"},
      {"model_type", 5, "'model_type' is 5, expected a string"},
      {"hidden_size", 64.5, "'hidden_size' is 64.5, expected a whole number"},
      {"hidden_size", std::uint64_t{1} << 63,
       "'hidden_size' is 9223372036854775808, expected a whole number"},
      {"hidden_size", 66, "'hidden_size' is 66, expected a multiple of 'num_attention_heads', 4"},
      {"num_attention_heads", 0, "'num_attention_heads' is 0, expected at least 1"},
      {"num_key_value_heads", 3, "shape.num_heads=4: must be a multiple of num_kv_heads=3"},
      {"rms_norm_eps", "x", "'rms_norm_eps' is \"x\", expected a number"},
      {"tie_word_embeddings", 1, "'tie_word_embeddings' is 1, expected true or false"},
      {"hidden_act", "gelu", "'hidden_act' is \"gelu\", supported: silu"},
      {"attention_bias", true, "'attention_bias' is true, supported: false"},
      {"mlp_bias", true, "'mlp_bias' is true, supported: false"},
      {"rope_scaling", 4, "'rope_scaling' is 4, expected an object"},
      {"rope_scaling",
       {{"type", "yarn"}},
       "the RoPE scaling is \"yarn\", supported: linear, llama3"},
      {"rope_scaling", {{"type", "linear"}}, "'factor' is missing"},
      {"vocab_size", 100, "shape.vocab_size=100: must be 258 to"},
      {"eos_token_id", 300, "shape.eos_token=300: must be -1 to 299"}};
  for (const auto& [key, value, reason] : cases) {
    Json config = small_config();
    config[key] = value;
    fails(config.dump(), reason);
  }
}

TEST(MakeModel, ErrorsLeaveNoFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.gguf");
  const auto fails = [&](const std::string& arguments, int exit_code, const std::string& reason) {
    const ProgramResult result = errors_of("make-model " + arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.out;
    EXPECT_NE(result.out.find(reason), std::string::npos) << result.out;
  };
  fails("--like llama-5 -o " + path, 2, "\"llama-5\": must be one of smollm2-135m, ");
  fails("--like smollm2-135m --type q9 -o " + path, 2, "weight_type=\"Q9\": must be one of F32");
  fails("--like smollm2-135m --type q4_k -o " + path, 2, "weight_type=Q4_K: must divide rows");
  fails("--like smollm2-135m", 2, "--output is required");
  fails("-o " + path, 2, "--like is required");
  fails("--like smollm2-135m --seed -1 -o " + path, 2, "--seed");
  fails("--like absent.json -o " + path, 1, "absent.json: cannot be opened");
  fails("--like smollm2-135m -o " + folder.file(""), 1, "is a directory");
  fails("--like smollm2-135m -o /dev/null", 1, "/dev/null: is not a regular file");
  EXPECT_TRUE(std::filesystem::is_empty(folder.file("")));
  folder.file("m.gguf", "mine");
  fails("--like smollm2-135m -o " + path, 1, path + ": exists");
  EXPECT_EQ(content_of(path), "mine");
}

TEST(MakeModel, CtrlCLeavesNoFile) {
  const TemporaryFolder folder;
  // Of 5 GB, so that the signal arrives while weights are written; the first byte of the file says
  // so.
  const std::string command =
      "trap - INT; '" HEADRACE_PROGRAM "' make-model --like llama-3.2-1b --type f32 -o " +
      folder.file("m.gguf") + " 2> /dev/null & until [ -s " + folder.file("m.gguf") +
      ".\\$!.part ]; do sleep 0.01; done; kill -INT \\$!; wait \\$!";
  EXPECT_EQ(WEXITSTATUS(std::system(("bash -c \"set -m; " + command + "\"").c_str())), 128 + 2);
  EXPECT_TRUE(std::filesystem::is_empty(folder.file("")));
}

// A limit on the size of files fails as a full disk does: in the middle of the weights.
TEST(MakeModel, AFullDiskLeavesNoFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.gguf");
  const std::string command = "trap '' XFSZ; ulimit -f 20000; exec '" HEADRACE_PROGRAM
                              "' make-model --like smollm2-135m -o " +
                              path + " 2> " + folder.file("errors");
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
  EXPECT_EQ(content_of(folder.file("errors")),
            "headrace: " + path + ": cannot be written: File too large\n");
  std::filesystem::remove(folder.file("errors"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.file("")));
}

TEST(MakeModel, BenchRunsRandomWeights) {
  const TemporaryFolder folder;
  const std::string config = config_file(folder, small_config());
  const auto json =
      json_of("bench model --no-ceilings -p 8 -n 4 -r 1 --type q4_0 --random " + config);
  EXPECT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["meta"]["weights"], "Q4_0 15, F32 5");
  EXPECT_EQ(json["meta"]["model"], config);
  for (const char* arguments :
       {"bench model", "bench model --type f32 -m x", "bench model -m x --random y"})
    EXPECT_EQ(run_program(arguments).exit_code, 2) << arguments;
}

}  // namespace
