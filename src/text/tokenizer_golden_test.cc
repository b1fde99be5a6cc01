// Token ids of 2000 texts for every pre-tokenizer, compared with Hugging Face's tokenizers
// (tests/peers/tokenizer.py --write-golden writes the files), and errors of invalid metadata.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/vocabulary.h"
#include "text/tokenizer.h"

namespace headrace::text {
namespace {

using testing::small_vocabulary;
using Tokens = std::vector<TokenId>;

const std::string kGolden = HEADRACE_GOLDEN_DIR;

TEST(TokenizerGolden, IdsMatchHuggingFaceTokenizers) {
  std::ifstream in(kGolden + "/tokenizer_cases.json");
  const nlohmann::json golden = nlohmann::json::parse(in);
  const auto columns = golden.at("columns").get<std::vector<std::string>>();
  const auto vocabulary = testing::read_vocabulary(kGolden + "/tokenizer_vocabulary.json");
  ASSERT_EQ(golden.at("rows").size(), 2000u);
  ASSERT_EQ(columns.size(), 6u);
  for (std::size_t kind = 1; kind < columns.size(); ++kind) {
    Result<Tokenizer> tokenizer = Tokenizer::make(vocabulary.model_file(columns[kind]));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.failure().message;
    for (const auto& row : golden.at("rows")) {
      const auto text = row.at(0).get<std::string>();
      const auto expected = row.at(row.at(kind).is_null() ? 1 : kind).get<Tokens>();
      auto tokens = tokenizer.value().encode(text, ParseSpecial::all);
      ASSERT_TRUE(tokens.ok()) << tokens.failure().message;
      ASSERT_EQ(tokens.value(), expected) << columns[kind] << ": " << row.at(0);
      std::string kept;
      for (const char byte : text)
        if (tokenizer.value().num_dropped_bytes({&byte, 1}) == 0) kept += byte;
      ASSERT_EQ(tokenizer.value().decode(tokens.value()).value(), kept);
    }
  }
}

struct Change {
  const char* rule;  // part of the message
  ErrorCode code;
  void (*apply)(ModelFile& file);
};

std::vector<std::string>& texts(ModelFile& file, const char* key) {
  return std::get<std::vector<std::string>>(file.metadata.at(key));
}
std::vector<std::int64_t>& types(ModelFile& file) {
  return std::get<std::vector<std::int64_t>>(file.metadata.at("tokenizer.ggml.token_type"));
}
constexpr auto kIo = ErrorCode::io_error, kUnsupported = ErrorCode::unsupported;

// Applied to small_vocabulary({"a b", "ab c"}): tokens 0 and 1 special, 2 to 257 bytes, ab, abc.
const Change kChanges[] = {
    {"'tokenizer.ggml.model' is missing", kIo,
     [](ModelFile& file) { file.metadata.erase("tokenizer.ggml.model"); }},
    {"tokenizer.ggml.model is 'bert', supported: gpt2", kUnsupported,
     [](ModelFile& file) { file.metadata["tokenizer.ggml.model"] = std::string("bert"); }},
    {"'tokenizer.ggml.model' is an integer, expected a string", kIo,
     [](ModelFile& file) { file.metadata["tokenizer.ggml.model"] = std::int64_t{2}; }},
    {"tokenizer.ggml.pre (the pre-tokenizer) is 'default', supported: gpt-2, smollm", kUnsupported,
     [](ModelFile& file) { file.metadata["tokenizer.ggml.pre"] = std::string("default"); }},
    {"tokenizer.ggml.pre (the pre-tokenizer) is ''", kUnsupported,
     [](ModelFile& file) { file.metadata.erase("tokenizer.ggml.pre"); }},
    {"add_space_prefix is true", kUnsupported,
     [](ModelFile& file) { file.metadata["tokenizer.ggml.add_space_prefix"] = true; }},
    {"'tokenizer.ggml.tokens' is missing", kIo,
     [](ModelFile& file) { file.metadata.erase("tokenizer.ggml.tokens"); }},
    {"'tokenizer.ggml.tokens' is an array of integers, expected an array of strings", kIo,
     [](ModelFile& file) {
       file.metadata["tokenizer.ggml.tokens"] = std::vector<std::int64_t>{1};
     }},
    {"has 0 tokens", kIo, [](ModelFile& file) { texts(file, "tokenizer.ggml.tokens").clear(); }},
    {"'tokenizer.ggml.merges' is missing", kIo,
     [](ModelFile& file) { file.metadata.erase("tokenizer.ggml.merges"); }},
    {"token_type has 259 elements, expected 260", kIo,
     [](ModelFile& file) { types(file).pop_back(); }},
    {"token_type[5] is 6, expected 1 to 5", kIo, [](ModelFile& file) { types(file)[5] = 6; }},
    {"token_type[5] is 0, expected 1 to 5", kIo, [](ModelFile& file) { types(file)[5] = 0; }},
    {"tokens[3] is empty", kIo,
     [](ModelFile& file) { texts(file, "tokenizer.ggml.tokens")[3] = ""; }},
    {"tokens[259] appears twice", kIo,
     [](ModelFile& file) { texts(file, "tokenizer.ggml.tokens")[259] = "ab"; }},
    {"tokens[1] appears twice", kIo,
     [](ModelFile& file) { texts(file, "tokenizer.ggml.tokens")[1] = "<|end|>"; }},
    {"tokens[0] appears twice", kIo,
     [](ModelFile& file) { texts(file, "tokenizer.ggml.tokens")[0] = "ab"; }},
    {"tokens[259] is a normal token with a character outside the byte-level alphabet", kIo,
     [](ModelFile& file) { texts(file, "tokenizer.ggml.tokens")[259] = "a b"; }},
    {"tokens[0] is a control or user-defined token of 1025 bytes", kIo,
     [](ModelFile& file) { texts(file, "tokenizer.ggml.tokens")[0] = std::string(1025, 'a'); }},
    {"merges[1] has no space between two tokens", kIo,
     [](ModelFile& file) { texts(file, "tokenizer.ggml.merges")[1] = "abc"; }},
    {"merges[1] has a character outside the byte-level alphabet", kIo,
     [](ModelFile& file) { texts(file, "tokenizer.ggml.merges")[1] = "a b c"; }},
    {"merges[1]: its left side is not a normal token", kIo,
     [](ModelFile& file) { texts(file, "tokenizer.ggml.merges")[1] = "<|end|> c"; }},
    {"merges[1]: its right side is not a normal token", kIo,
     [](ModelFile& file) { texts(file, "tokenizer.ggml.merges")[1] = "a bb"; }},
    {"merges[1]: its result is not a normal token", kIo,
     [](ModelFile& file) { texts(file, "tokenizer.ggml.merges")[1] = "a c"; }},
    {"merges[1]: its left side is not a normal token", kIo,
     [](ModelFile& file) { texts(file, "tokenizer.ggml.merges")[1] = " c"; }},
    {"merges[1] appears twice", kIo,
     [](ModelFile& file) { texts(file, "tokenizer.ggml.merges")[1] = "a b"; }},
    {"'tokenizer.ggml.eos_token_id' is 260, expected 0 to 259", kIo,
     [](ModelFile& file) { file.metadata["tokenizer.ggml.eos_token_id"] = std::int64_t{260}; }},
    {"'tokenizer.ggml.eot_token_id' is -1, expected 0 to 259", kIo,
     [](ModelFile& file) { file.metadata["tokenizer.ggml.eot_token_id"] = std::int64_t{-1}; }},
    {"'tokenizer.ggml.add_bos_token' is true, but 'tokenizer.ggml.bos_token_id' is missing", kIo,
     [](ModelFile& file) { file.metadata["tokenizer.ggml.add_bos_token"] = true; }},
    {"'tokenizer.ggml.add_eos_token' is a string, expected a boolean", kIo,
     [](ModelFile& file) { file.metadata["tokenizer.ggml.add_eos_token"] = std::string("yes"); }},
};

TEST(TokenizerMetadata, ErrorsNameTheBrokenRule) {
  const auto good = small_vocabulary({"a b", "ab c"}).model_file("gpt-2");
  ASSERT_TRUE(Tokenizer::make(good).ok());
  for (const Change& change : kChanges) {
    ModelFile file = good;
    change.apply(file);
    Result<Tokenizer> made = Tokenizer::make(file);
    ASSERT_FALSE(made.ok()) << change.rule;
    EXPECT_NE(made.failure().message.find(change.rule), std::string::npos)
        << "expected: " << change.rule << "\narrived: " << made.failure().message;
    EXPECT_EQ(made.failure().message.substr(0, 8), "m.gguf: ");
    EXPECT_EQ(made.failure().code, change.code) << change.rule;
    const char* remedy =
        change.code == kIo ? "; download or convert the file again" : "use another";
    EXPECT_NE(made.failure().message.find(remedy), std::string::npos) << made.failure().message;
  }
}

TEST(TokenizerMetadata, UnusedTokensMayBeEmptyOrAnything) {
  ModelFile file = small_vocabulary({}).model_file("gpt-2");
  for (const char* text : {"", "", "[PAD]", "a"}) {
    texts(file, "tokenizer.ggml.tokens").push_back(text);
    types(file).push_back(5);
  }
  Result<Tokenizer> made = Tokenizer::make(file);
  ASSERT_TRUE(made.ok()) << made.failure().message;
  EXPECT_EQ(made.value().decode(Tokens{258, 260}).value(), "[PAD]");
  EXPECT_EQ(made.value().encode("[PAD]", ParseSpecial::all).value().size(), 5u);
}

// Old files of byte-level tokenizers have no token_type: all tokens are normal ones.
TEST(TokenizerMetadata, WithoutTypesEveryTokenIsNormal) {
  for (const char* pre : {"gpt-2", "smollm"}) {
    ModelFile file = small_vocabulary({"a b", "ab c"}).model_file(pre);
    const Tokenizer typed = std::move(Tokenizer::make(file).value());
    file.metadata.erase("tokenizer.ggml.token_type");
    Result<Tokenizer> made = Tokenizer::make(file);
    ASSERT_TRUE(made.ok()) << made.failure().message;
    const Tokenizer& untyped = made.value();
    const auto num_tokens = static_cast<TokenId>(texts(file, "tokenizer.ggml.tokens").size());
    ASSERT_EQ(num_tokens, 260);
    for (TokenId id = 0; id < num_tokens; ++id)
      EXPECT_EQ(untyped.decode(Tokens{id}).value(), typed.decode(Tokens{id}).value()) << id;
    for (const ParseSpecial parse : {ParseSpecial::none, ParseSpecial::all})
      for (const std::string text : {"", "abc ab c", "x\ny", "<|end|>a<user>b"}) {
        const Tokens tokens = untyped.encode(text, parse).value();
        EXPECT_EQ(tokens, typed.encode(text, ParseSpecial::none).value()) << text;
        EXPECT_EQ(untyped.decode(tokens).value(), text);
      }
    EXPECT_EQ(typed.encode("<|end|>", ParseSpecial::all).value(), Tokens{0});
    EXPECT_EQ(untyped.encode("<|end|>", ParseSpecial::all).value().size(), 7u);
  }
}

}  // namespace
}  // namespace headrace::text
