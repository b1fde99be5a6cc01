// What the public API says of a model, field by field, and null arguments of the model functions.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "headrace/model.hpp"

namespace {

using headrace::Model;
using headrace::ModelFile;

const std::string kFolder = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/";

struct FileFacts {
  std::map<std::string, std::string> metadata;
  std::map<std::string, std::vector<std::int64_t>> shapes;
  std::map<std::string, int> num_of_type;
  std::int64_t num_parameters = 0;

  explicit FileFacts(const ModelFile& file) {
    for (std::int64_t i = 0; i < file.num_keys(); ++i)
      metadata.emplace(file.entry(i).key, file.entry(i).value);
    for (std::int64_t i = 0; i < file.num_weights(); ++i) {
      const auto weight = file.weight(i);
      std::int64_t count = 1;
      for (const std::int64_t size : weight.shape) count *= size;
      num_parameters += count;
      shapes[std::string(weight.name)].assign(weight.shape.begin(), weight.shape.end());
      ++num_of_type[std::string(weight.type)];
    }
  }
  // The number under ARCHITECTURE.key.
  std::int64_t number(const std::string& key, std::int64_t otherwise) const {
    const auto found = metadata.find(metadata.at("general.architecture") + "." + key);
    return found == metadata.end() ? otherwise : std::stoll(found->second);
  }
};

class ModelInfo : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Files, ModelInfo,
                         testing::Values("tiny_llama2_q4_0", "tiny_llama3_f16",
                                         "tiny_llama_headdim32_q8_0", "tiny_mistral_q4_1",
                                         "tiny_qwen2_f32", "tiny_qwen2_q5_0"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(ModelInfo, EveryFieldIsThatOfTheFile) {
  const std::string path = kFolder + GetParam() + ".gguf";
  const FileFacts file{ModelFile(path)};
  for (const bool exact : {false, true}) {
    const Model model(path, {.num_threads = 3, .exact = exact});
    const headrace_model_info info = model.info();
    EXPECT_EQ(info.architecture, file.metadata.at("general.architecture"));
    EXPECT_EQ(info.name, file.metadata.at("general.name"));
    EXPECT_EQ(info.num_layers, file.number("block_count", -1));
    EXPECT_EQ(info.hidden_size, file.number("embedding_length", -1));
    EXPECT_EQ(info.ffn_size, file.number("feed_forward_length", -1));
    EXPECT_EQ(info.context_length, file.number("context_length", -1));
    EXPECT_EQ(info.num_heads, file.number("attention.head_count", -1));
    EXPECT_EQ(info.num_kv_heads, file.number("attention.head_count_kv", info.num_heads));
    const std::int64_t dim = info.hidden_size / info.num_heads;
    EXPECT_EQ(info.head_dim, file.number("attention.key_length", dim));
    EXPECT_EQ(info.head_dim_v, file.number("attention.value_length", dim));
    EXPECT_EQ(info.vocab_size, file.shapes.at("token_embd.weight").at(0));
    EXPECT_EQ(info.num_parameters, file.num_parameters);
    EXPECT_EQ(info.bos_token, std::stoi(file.metadata.at("tokenizer.ggml.bos_token_id")));
    EXPECT_EQ(info.eos_token, std::stoi(file.metadata.at("tokenizer.ggml.eos_token_id")));
    for (const auto& [type, count] : file.num_of_type)
      EXPECT_NE((", " + std::string(info.weight_types) + ",")
                    .find(", " + type + " " + std::to_string(count) + ","),
                std::string::npos)
          << info.weight_types;
    // The rows of a separate embedding are not read per token; a shared one is the output too.
    EXPECT_GT(info.token_weight_bytes, 0);
    EXPECT_EQ(info.token_weight_bytes < info.weight_bytes, file.shapes.contains("output.weight"));
    EXPECT_EQ(info.num_threads, 3);
    EXPECT_EQ(info.exact, exact ? 1 : 0);
    EXPECT_EQ(info.fast, 0);
  }
}

// Each pointer that a function needs, null alone: the error names it.
TEST(ModelArguments, EachNullPointerIsNamed) {
  const Model model(kFolder + "tiny_llama3_f16.gguf", {});
  headrace::Session session(model);
  std::size_t count = 0;
  std::int32_t tokens[64];
  const headrace_message message = {"user", "hello"};
  headrace_token_logprob token{}, top[1] = {};
  headrace_completions* completions = nullptr;
  headrace_generation generation{};
  generation.struct_size = sizeof generation;
  headrace_completion completion{};
  completion.struct_size = sizeof completion;
  const auto expect = [](headrace_status status, const std::string& argument) {
    EXPECT_EQ(status, HEADRACE_INVALID_ARGUMENT) << argument;
    EXPECT_EQ(std::string(headrace_last_error()).find(argument + "=NULL: "), 0u)
        << argument << ": " << headrace_last_error();
  };
  headrace_session* own = session.get();
  expect(headrace_chat_tokens(nullptr, nullptr, &message, 1, 1, tokens, 64, &count), "model");
  expect(headrace_chat_tokens(model.get(), nullptr, nullptr, 1, 1, tokens, 64, &count), "messages");
  expect(headrace_session_truncate(nullptr, 0), "session");
  expect(headrace_session_append(nullptr, tokens, 0, nullptr), "session");
  expect(headrace_session_sample(nullptr, nullptr, 0, &token, top, 1), "session");
  expect(headrace_session_sample(own, nullptr, 0, nullptr, top, 1), "token");
  expect(headrace_session_sample(own, nullptr, 0, &token, nullptr, 1), "top");
  expect(headrace_session_generate(nullptr, nullptr, &generation), "session");
  expect(headrace_session_beam_search(nullptr, nullptr, &completions), "session");
  expect(headrace_session_beam_search(own, nullptr, nullptr), "completions");
  expect(headrace_completions_get(nullptr, 0, &completion), "completions");
}

TEST(ModelArguments, MessagesNeedBothOfTheirTexts) {
  const Model model(kFolder + "tiny_llama3_f16.gguf", {});
  std::size_t count = 0;
  std::int32_t tokens[256];
  for (const headrace_message& bad :
       {headrace_message{nullptr, "hello"}, headrace_message{"user", nullptr}}) {
    const headrace_message messages[] = {{"user", "hello"}, bad};
    EXPECT_EQ(headrace_chat_tokens(model.get(), "chatml", messages, 2, 1, tokens, 256, &count),
              HEADRACE_INVALID_ARGUMENT);
    EXPECT_STREQ(headrace_last_error(),
                 "messages[1]: role and content must not be NULL; pass strings");
  }
}

TEST(SessionOptions, EachBadValueIsNamed) {
  const Model model(kFolder + "tiny_llama3_f16.gguf", {});
  const struct {
    const char* name;
    void (*spoil)(headrace_session_options&);
  } bad[] = {{"max_tokens=-1", [](headrace_session_options& o) { o.max_tokens = -1; }},
             {"batch_tokens=-1", [](headrace_session_options& o) { o.batch_tokens = -1; }},
             {"batch_tokens=65537", [](headrace_session_options& o) { o.batch_tokens = 65537; }},
             {"cache_dtype=-1", [](headrace_session_options& o) { o.cache_dtype = -1; }},
             {"cache_dtype=4", [](headrace_session_options& o) { o.cache_dtype = HEADRACE_I32; }},
             {"cache_dtype=99", [](headrace_session_options& o) { o.cache_dtype = 99; }},
             {"page_size=0", [](headrace_session_options& o) { o.page_size = 0; }},
             {"num_pages=-1", [](headrace_session_options& o) { o.num_pages = -1; }},
             {"num_pages=1", [](headrace_session_options& o) { o.num_pages = 1; }},
             {"sparq_components=0", [](headrace_session_options& o) { o.sparq_keys = 8; }},
             {"sparq_keys=0", [](headrace_session_options& o) { o.sparq_components = 8; }}};
  for (const auto& [name, spoil] : bad) {
    headrace_session_options options;
    ASSERT_EQ(headrace_session_options_init(&options), HEADRACE_OK);
    spoil(options);
    headrace_session* session = nullptr;
    EXPECT_EQ(headrace_session_create(model.get(), &options, &session), HEADRACE_INVALID_ARGUMENT)
        << name;
    EXPECT_EQ(session, nullptr) << name;
    EXPECT_EQ(std::string(headrace_last_error()).find(std::string(name) + ": "), 0u)
        << name << ": " << headrace_last_error();
  }
}

TEST(SessionOptions, EachLimitIsAccepted) {
  const Model model(kFolder + "tiny_llama3_f16.gguf", {});
  const std::int64_t longest = model.info().context_length;
  for (const headrace::SessionOptions& options :
       {headrace::SessionOptions{.max_tokens = 1}, headrace::SessionOptions{.max_tokens = longest},
        headrace::SessionOptions{.batch_tokens = 1},
        headrace::SessionOptions{.batch_tokens = 65536},
        headrace::SessionOptions{.cache_dtype = headrace::DType::f32},
        headrace::SessionOptions{.cache_dtype = headrace::DType::f16},
        headrace::SessionOptions{.cache_dtype = headrace::DType::bf16},
        headrace::SessionOptions{.max_tokens = 8, .page_size = 4, .num_pages = 2},
        headrace::SessionOptions{.sparq_components = model.info().head_dim,
        .sparq_keys = INT64_MAX}})
    EXPECT_NO_THROW(headrace::Session(model, options));
}

}  // namespace
