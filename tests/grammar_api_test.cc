// Grammars through the public API.
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "headrace/engine.hpp"

namespace {

using namespace headrace;

const std::string kFile = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/tiny_llama3_f16.gguf";
const std::vector<std::int32_t> kPrompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

class Grammars : public ::testing::Test {
 protected:
  // The text of each sample of a request.
  std::vector<std::string> texts(const Grammar& grammar, std::int64_t n) {
    Engine engine(model_);
    engine.add({.prompt = kPrompt, .sampling = {.temperature = 2}, .n = n, .grammar = grammar});
    std::vector<std::string> all(static_cast<std::size_t>(n));
    while (engine.step())
      while (const std::optional<Output> output = engine.poll()) {
        all[static_cast<std::size_t>(output->sample)] += output->text;
        EXPECT_NE(output->finish, HEADRACE_REQUEST_ERROR) << output->error;
      }
    return all;
  }

  Model model_ = Model(kFile);
};

TEST_F(Grammars, OfEachFormBindTheText) {
  for (const std::string& text : texts(Grammar::regex(model_, "(yes|no)[0-9]{3}"), 8))
    EXPECT_TRUE(std::regex_match(text, std::regex("(yes|no)[0-9]{3}"))) << text;
  for (const std::string& text : texts(Grammar::gbnf(model_, "root ::= [ab]{4} (\"-\" [c])?"), 8))
    EXPECT_TRUE(std::regex_match(text, std::regex("[ab]{4}(-c)?"))) << text;
  const Grammar schema = Grammar::json_schema(
      model_,
      R"({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]})");
  for (const std::string& text : texts(schema, 8))
    EXPECT_TRUE(std::regex_match(text, std::regex(R"(\{\s*"ok"\s*:\s*(true|false)\s*\})"))) << text;
}

TEST_F(Grammars, BindTheTextOfASession) {
  Session session(model_);
  session.append(kPrompt);
  std::string text;
  const Generation generation = session.generate({.grammar = Grammar::regex(model_, "[a-z]{3}!")},
                                                 [&](std::string_view piece) {
                                                   text += piece;
                                                   return true;
                                                 });
  EXPECT_TRUE(std::regex_match(text, std::regex("[a-z]{3}!"))) << text;
  EXPECT_EQ(generation.finish, HEADRACE_FINISH_END);
}

TEST_F(Grammars, OutliveTheirCreatorAndAreShared) {
  std::optional<Grammar> grammar = Grammar::regex(model_, "(ab){2}");
  Engine engine(model_);
  for (int i = 0; i < 3; ++i) engine.add({.prompt = kPrompt, .grammar = grammar});
  grammar.reset();
  while (engine.step()) {
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(engine.poll()->text, "abab");
}

TEST_F(Grammars, RefuseBadArguments) {
  headrace_grammar* grammar = nullptr;
  const auto error = [](headrace_status status) {
    return std::string(headrace_status_name(status)) + ": " + headrace_last_error();
  };
  EXPECT_EQ(
      error(headrace_grammar_create_regex(model_.get(), "(", 1, &grammar)),
      "invalid_argument: regex: line 1, column 2: a group does not end; add ')', or write \\( "
      "for the character");
  EXPECT_EQ(grammar, nullptr);
  EXPECT_EQ(
      error(headrace_grammar_create_regex(model_.get(), "\\b", 2, &grammar)).find("unsupported"),
      0u);
  EXPECT_EQ(headrace_grammar_create_regex(nullptr, "a", 1, &grammar), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_grammar_create_regex(model_.get(), nullptr, 1, &grammar),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_grammar_create_gbnf(model_.get(), "root ::= \"a\"", 12, nullptr),
            HEADRACE_INVALID_ARGUMENT);
  headrace_grammar_destroy(nullptr);
}

}  // namespace
