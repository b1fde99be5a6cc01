// What inspect and bench model report, on tiny files with random weights.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "headrace/model.hpp"
#include "tests/support/program_json.h"

namespace {

using headrace::testing::content_of;
using headrace::testing::json_of;
using headrace::testing::run_program;
using headrace::testing::TemporaryFolder;

const std::string kModel = HEADRACE_GOLDEN_DIR "/tiny/tiny_llama3_f16.gguf";

TEST(ModelReports, InspectShowsTheFile) {
  const auto json = json_of("inspect " + kModel);
  EXPECT_EQ(json["meta"]["format"], "GGUF");
  EXPECT_EQ(json["tensors"].size(), json["meta"]["tensors"].get<std::size_t>());
  std::map<std::string, std::string> types;
  for (const auto& row : json["metadata"]) types[row["key"]] = row["type"];
  EXPECT_EQ(types["general.architecture"], "string");
  EXPECT_EQ(types["llama.block_count"], "u32");
  EXPECT_EQ(types["tokenizer.ggml.tokens"], "array[string]");
}

// Models of other architectures may have a list there, with one number per layer.
TEST(ModelReports, InspectLeavesOutASizeThatIsNoWholeNumber) {
  const TemporaryFolder folder;
  const std::string whole = content_of(kModel), u32("\4\0\0\0", 4);
  const auto before = json_of("inspect " + kModel)["summary"][0];
  for (const auto& [key, name] :
       {std::pair{"block_count", "num_layers"}, std::pair{"context_length", "context_length"},
        std::pair{"embedding_length", "hidden_size"},
        std::pair{"attention.head_count", "num_heads"},
        std::pair{"attention.head_count_kv", "num_kv_heads"}}) {
    std::string bytes = whole;
    const std::string entry = std::string("llama.") + key;
    const std::size_t at = bytes.find(entry + u32);
    ASSERT_NE(at, std::string::npos) << key;
    bytes[at + entry.size()] = 6;  // f32
    const auto summary = json_of("inspect " + folder.file("other.gguf", bytes))["summary"][0];
    EXPECT_FALSE(before[name].is_null()) << name;
    EXPECT_TRUE(summary[name].is_null()) << summary;
    EXPECT_EQ(summary["kv_cache_bytes_per_token"].is_null(), name != std::string("context_length"))
        << summary;
  }
}

// Compared with the loaded model's info.
TEST(ModelReports, InspectSumsUpWhatTheLoadedModelIs) {
  for (const char* name :
       {"tiny_llama3_f16", "tiny_llama_headdim32_q8_0", "tiny_mistral_q4_1", "tiny_qwen2_q5_0"}) {
    const std::string path = std::string(HEADRACE_GOLDEN_DIR "/tiny/") + name + ".gguf";
    const auto json = json_of("inspect " + path);
    ASSERT_EQ(json["summary"].size(), 1u);
    const auto& summary = json["summary"][0];
    const headrace::Model model(path);
    const headrace_model_info info = model.info();
    EXPECT_EQ(summary["name"], info.name);
    EXPECT_EQ(summary["architecture"], info.architecture);
    EXPECT_EQ(summary["num_layers"], info.num_layers);
    EXPECT_EQ(summary["context_length"], info.context_length);
    EXPECT_EQ(summary["hidden_size"], info.hidden_size);
    EXPECT_EQ(summary["num_heads"], info.num_heads);
    EXPECT_EQ(summary["num_kv_heads"], info.num_kv_heads);
    EXPECT_EQ(summary["head_dim"], info.head_dim);
    EXPECT_EQ(summary["num_parameters"], info.num_parameters);
    EXPECT_EQ(summary["kv_cache_bytes_per_token"],
              2 * info.num_layers * info.num_kv_heads * (info.head_dim + info.head_dim_v));
    std::int64_t bytes = 0;
    for (const auto& tensor : json["tensors"]) bytes += tensor["bytes"].get<std::int64_t>();
    EXPECT_EQ(summary["weight_bytes"], bytes);
  }
}

// A u32 in the file's metadata, replaced.
std::string with_number(std::string bytes, const std::string& key, unsigned char number) {
  const std::size_t at = bytes.find(key + std::string("\4\0\0\0", 4));
  EXPECT_NE(at, std::string::npos) << key;
  if (at != std::string::npos)
    bytes.replace(at + key.size() + 4, 4, {static_cast<char>(number), '\0', '\0', '\0'});
  return bytes;
}

// A distinct number for each, so that a size that is read for another is found.
TEST(ModelReports, InspectShowsEachSizeAndWhatFollowsFromIt) {
  const TemporaryFolder folder;
  std::string bytes = content_of(HEADRACE_GOLDEN_DIR "/tiny/tiny_llama_headdim32_q8_0.gguf");
  const std::tuple<const char*, const char*, unsigned char> sizes[] = {
      {"block_count", "num_layers", 2},
      {"context_length", "context_length", 13},
      {"embedding_length", "hidden_size", 17},
      {"attention.head_count", "num_heads", 19},
      {"attention.head_count_kv", "num_kv_heads", 3},
      {"attention.key_length", "head_dim", 5},
      {"attention.value_length", nullptr, 7}};
  for (const auto& [key, name, number] : sizes)
    bytes = with_number(bytes, std::string("llama.") + key, number);
  const auto summary = json_of("inspect " + folder.file("other.gguf", bytes))["summary"][0];
  for (const auto& [key, name, number] : sizes) {
    if (name != nullptr) {
      EXPECT_EQ(summary[name], number) << summary;
    }
  }
  EXPECT_EQ(summary["kv_cache_bytes_per_token"], 2 * 2 * 3 * (5 + 7)) << "f16 of K and of V";
}

// The sizes that a file may leave out, each of another number than what stands for it: 10 heads of
// 40 / 10 numbers.
TEST(ModelReports, InspectShowsWhatStandsForAMissingSize) {
  const TemporaryFolder folder;
  std::string whole = content_of(HEADRACE_GOLDEN_DIR "/tiny/tiny_llama_headdim32_q8_0.gguf");
  const std::pair<const char*, unsigned char> sizes[] = {
      {"block_count", 2},           {"embedding_length", 40},
      {"attention.head_count", 10}, {"attention.head_count_kv", 3},
      {"attention.key_length", 5},  {"attention.value_length", 7}};
  for (const auto& [key, number] : sizes)
    whole = with_number(whole, std::string("llama.") + key, number);
  const auto summary_without = [&](const std::string& key) {
    std::string bytes = whole;
    if (!key.empty()) {
      const std::size_t at = bytes.find("llama." + key + std::string("\4\0\0\0", 4));
      EXPECT_NE(at, std::string::npos) << key;
      bytes[at] = 'x';  // a key of no architecture
    }
    return json_of("inspect " + folder.file("other.gguf", bytes))["summary"][0];
  };
  const std::tuple<const char*, int, int, int> cases[] = {{"", 3, 5, 5 + 7},
                                                          {"attention.head_count_kv", 10, 5, 5 + 7},
                                                          {"attention.key_length", 3, 4, 4 + 7},
                                                          {"attention.value_length", 3, 5, 5 + 4}};
  for (const auto& [key, num_kv_heads, head_dim, dims] : cases) {
    const auto summary = summary_without(key);
    EXPECT_EQ(summary["num_kv_heads"], num_kv_heads) << key;
    EXPECT_EQ(summary["head_dim"], head_dim) << key;
    EXPECT_EQ(summary["kv_cache_bytes_per_token"], 2 * 2 * num_kv_heads * dims) << key;
  }
}

TEST(ModelReports, BenchModelHasARowForEachTest) {
  const auto json = json_of("bench model -m " + kModel + " -p 8,16 -n 4 -t 1,2 -r 2 --no-ceilings");
  ASSERT_EQ(json["rows"].size(), 6u);
  EXPECT_EQ(json["rows"][0]["test"], "pp8");
  EXPECT_EQ(json["rows"][2]["test"], "tg4");
  for (const auto& row : json["rows"]) EXPECT_GT(row["tokens_per_s_mean"], 0);
}

// The tests that ran, such as "pp8 tg4".
std::string tests_of(const std::string& options) {
  std::string tests;
  const auto json = json_of("bench model -t 1 -r 1 --no-ceilings -m " + kModel + ' ' + options);
  for (const auto& row : json["rows"])
    tests += (tests.empty() ? "" : " ") + row["test"].get<std::string>();
  return tests;
}

TEST(ModelReports, ALengthOf0IsNoBenchOfAModel) {
  EXPECT_EQ(tests_of("-p 8 -n 4"), "pp8 tg4");
  EXPECT_EQ(tests_of("-p 0 -n 4"), "tg4");
  EXPECT_EQ(tests_of("-p 8 -n 0"), "pp8");
  EXPECT_EQ(tests_of("-p 0,8 -n 4,0"), "pp8 tg4");
  EXPECT_EQ(tests_of("-p 0 -n 0"), "");
}

TEST(ModelReports, BenchModelReportsTheOptionsItRanWith) {
  const std::string command = "bench model --no-ceilings -m " + kModel + " -p 8 -n 4 ";
  const auto of = [&](const std::string& options) { return json_of(command + options); };
  const auto plain = of("-t 1 -r 2");
  for (const auto& row : plain["rows"]) {
    EXPECT_EQ(row["threads"], 1);
    EXPECT_EQ(row["depth"], 0);
    EXPECT_EQ(row["reps"], 2);
    EXPECT_TRUE(row["read_gbytes_per_s"].is_null());
  }
  EXPECT_EQ(plain["meta"]["exact"], false);
  const auto deep = of("-t 2 -r 3 -d 16");
  ASSERT_EQ(deep["rows"].size(), 2u);
  for (const auto& row : deep["rows"]) {
    EXPECT_EQ(row["threads"], 2);
    EXPECT_EQ(row["depth"], 16);
    EXPECT_EQ(row["reps"], 3);
  }
  EXPECT_EQ(of("-t 1 -r 1 --exact")["meta"]["exact"], true);
  EXPECT_EQ(run_program(command + "-c 7").exit_code, 2) << "8 tokens do not fit";
}

// Beside the loaded model.
TEST(ModelReports, BenchModelNamesTheModel) {
  for (const std::string exact : {"", " --exact"}) {
    const auto meta =
        json_of("bench model --no-ceilings -p 2 -n 0 -t 1 -r 1 -m " + kModel + exact)["meta"];
    const headrace::Model model(kModel, {.num_threads = 1, .exact = !exact.empty()});
    const headrace_model_info info = model.info();
    EXPECT_EQ(meta["model"], info.name);
    EXPECT_EQ(meta["architecture"], info.architecture);
    EXPECT_EQ(meta["weights"], info.weight_types);
    EXPECT_EQ(meta["parameters"], info.num_parameters);
    EXPECT_EQ(meta["weight_bytes"], info.weight_bytes);
    EXPECT_EQ(meta["bytes_per_token"], info.token_weight_bytes);
    EXPECT_EQ(meta["exact"], info.exact != 0);
    EXPECT_EQ(meta["device"], "cpu");
  }
}

// The weights are read for each token of an answer; a prompt reads them once for many.
TEST(ModelReports, BenchModelReadsTheWeightsForEachTokenOfAnAnswer) {
  const auto json = json_of("bench model -p 8 -n 4 -t 1 -r 3 --no-ceilings -m " + kModel);
  const double bytes = json["meta"]["bytes_per_token"];
  for (const auto& row : json["rows"]) {
    const double mean = row["tokens_per_s_mean"], best = row["tokens_per_s_best"];
    const double deviation = row["tokens_per_s_stddev"];
    EXPECT_GE(best, mean);
    EXPECT_GE(deviation, 0);
    // Of three values no other one is further from the mean than sqrt(4 / 3) deviations.
    EXPECT_LE(best - mean, 1.1548 * deviation + 1e-9 * mean);
    if (row["test"] == "pp8") {
      EXPECT_TRUE(row["weight_gbytes_per_s"].is_null());
      continue;
    }
    EXPECT_EQ(row["test"], "tg4");
    EXPECT_NEAR(row["weight_gbytes_per_s"].get<double>(), mean * bytes * 1e-9,
                1e-6 * mean * bytes * 1e-9);
  }
  const auto once = json_of("bench model -p 8 -n 4 -t 1 -r 1 --no-ceilings -m " + kModel);
  for (const auto& row : once["rows"]) {
    EXPECT_EQ(row["tokens_per_s_stddev"], 0);
    EXPECT_EQ(row["tokens_per_s_best"], row["tokens_per_s_mean"]);
  }
}

}  // namespace
