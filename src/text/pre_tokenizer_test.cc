#include "text/pre_tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace headrace::text {
namespace {

using Pieces = std::vector<std::string_view>;

Pieces split(PreTokenizerKind kind, std::string_view text, bool with_jit = true) {
  Result<PreTokenizer> made = PreTokenizer::make(kind, with_jit);
  if (!made.ok()) throw std::runtime_error(made.failure().message);
  Pieces pieces;
  if (Status failed = made.value().split(text, pieces)) throw std::runtime_error(failed->message);
  return pieces;
}

constexpr PreTokenizerKind kKinds[] = {PreTokenizerKind::gpt2, PreTokenizerKind::smollm,
                                       PreTokenizerKind::llama3, PreTokenizerKind::qwen2,
                                       PreTokenizerKind::tekken};

TEST(PreTokenizer, KindsDifferInDigitsContractionsAndLineBreaks) {
  const std::string_view text = "It'S 1234 x\n\ny";
  EXPECT_EQ(split(PreTokenizerKind::gpt2, text),
            (Pieces{"It", "'", "S", " 1234", " x", "\n", "\n", "y"}));
  EXPECT_EQ(split(PreTokenizerKind::smollm, text),
            (Pieces{"It", "'", "S", " ", "1", "2", "3", "4", " x", "\n", "\n", "y"}));
  EXPECT_EQ(split(PreTokenizerKind::llama3, text),
            (Pieces{"It", "'S", " ", "123", "4", " x", "\n\n", "y"}));
  EXPECT_EQ(split(PreTokenizerKind::qwen2, text),
            (Pieces{"It", "'S", " ", "1", "2", "3", "4", " x", "\n\n", "y"}));
}

TEST(PreTokenizer, SmollmTreatsADigitAsTheEndOfText) {
  EXPECT_EQ(split(PreTokenizerKind::smollm, "a  1"), (Pieces{"a", "  ", "1"}));
  EXPECT_EQ(split(PreTokenizerKind::gpt2, "a  1"), (Pieces{"a", " ", " 1"}));
}

TEST(PreTokenizer, TekkenSplitsBeforeUpperCase) {
  const std::string_view text = "HelloWORLD aB don't \u4e2dA\u4e2da //\n/x";
  EXPECT_EQ(split(PreTokenizerKind::tekken, text),
            (Pieces{"Hello", "WORLD", " a", "B", " don", "'t", " \u4e2dA\u4e2da", " //\n/", "x"}));
  EXPECT_EQ(split(PreTokenizerKind::qwen2, text),
            (Pieces{"HelloWORLD", " aB", " don", "'t", " \u4e2dA\u4e2da", " //\n", "/x"}));
}

TEST(PreTokenizer, WhitespaceFollowsUnicode) {
  // U+180E is in PCRE2's \s and not in White_Space; U+0085 is in both.
  for (const PreTokenizerKind kind : kKinds) {
    EXPECT_EQ(split(kind, "!\xE1\xA0\x8E!").size(), 1u);
    EXPECT_EQ(split(kind, "!\xC2\x85!").size(), 3u);
  }
}

TEST(PreTokenizer, InterpreterAndJitSplitEqually) {
  std::vector<std::string> texts = {std::string(1 << 18, ' ') + "x",   std::string(1 << 18, 'a'),
                                    std::string(1 << 18, '\n') + " x", std::string(1 << 18, '!'),
                                    std::string(1 << 18, '1'),         ""};
  std::ifstream in(std::string(HEADRACE_GOLDEN_DIR) + "/tokenizer_cases.json");
  const auto golden = nlohmann::json::parse(in);
  for (const auto& row : golden.at("rows")) texts.push_back(row.at(0));
  ASSERT_FALSE(texts.empty());
  for (const PreTokenizerKind kind : kKinds)
    for (std::size_t i = 0; i < texts.size(); i += i < 6 ? 1 : 10)
      EXPECT_EQ(split(kind, texts[i], false), split(kind, texts[i], true)) << i;
}

TEST(PreTokenizer, UnknownNamesAreRejected) {
  EXPECT_EQ(pre_tokenizer_kind("smollm"), PreTokenizerKind::smollm);
  EXPECT_EQ(pre_tokenizer_kind("default"), std::nullopt);
  EXPECT_EQ(pre_tokenizer_kind(""), std::nullopt);
}

}  // namespace
}  // namespace headrace::text
