#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <ctime>
#include <random>

#include "base/utf8.h"
#include "tests/support/vocabulary.h"

namespace headrace::text {
namespace {

using testing::small_vocabulary;
using testing::Vocabulary;
using Tokens = std::vector<TokenId>;

constexpr TokenId kFirstByte = 2;  // of small_vocabulary: <|end|> 0, <user> 1, bytes from 2

TokenId byte(unsigned char value) { return kFirstByte + value; }

Tokenizer make(const ModelFile& file) {
  Result<Tokenizer> made = Tokenizer::make(file);
  if (!made.ok()) throw std::runtime_error(made.failure().message);
  return std::move(made.value());
}
Tokenizer make(const Vocabulary& vocabulary, const char* pre = "gpt-2") {
  return make(vocabulary.model_file(pre));
}

TEST(Tokenizer, LowestRankMergesFirstAndTheLeftmostAmongEquals) {
  const Tokenizer tokenizer = make(small_vocabulary({"a a", "b c", "a b", "aa b"}));
  const TokenId aa = kFirstByte + 256, bc = aa + 1, ab = aa + 2;
  EXPECT_EQ(tokenizer.encode("aaa").value(), (Tokens{aa, byte('a')}));
  EXPECT_EQ(tokenizer.encode("abc").value(), (Tokens{byte('a'), bc}));
  EXPECT_EQ(tokenizer.encode("abb").value(), (Tokens{ab, byte('b')}));
  EXPECT_EQ(tokenizer.encode("aaab").value(), (Tokens{aa, ab}));
  EXPECT_EQ(tokenizer.encode("").value(), Tokens{});
}

TEST(Tokenizer, SpecialTokensAreParsedAsTheCallerAllows) {
  const Tokenizer tokenizer = make(small_vocabulary({}));
  const auto count = [&](ParseSpecial parse_special) {
    return tokenizer.encode("<user><|end|>", parse_special).value().size();
  };
  EXPECT_EQ(count(ParseSpecial::none), 13u);
  EXPECT_EQ(count(ParseSpecial::user_defined), 1u + 7u);
  EXPECT_EQ(count(ParseSpecial::all), 2u);
  EXPECT_EQ(tokenizer.encode("a<|end|>").value().size(), 8u) << "the default: no control tokens";
}

TEST(Tokenizer, TheLongestSpecialTokenWins) {
  Vocabulary vocabulary = small_vocabulary({});
  vocabulary.specials = {{"<a", 3}, {"<a>b", 3}, {"<a>", 3}};
  const Tokenizer tokenizer = make(vocabulary);
  const auto encode = [&](std::string_view text) {
    return tokenizer.encode(text, ParseSpecial::all).value();
  };
  EXPECT_EQ(encode("<a>b"), Tokens{1});
  EXPECT_EQ(encode("<a><a<a>b"), (Tokens{2, 0, 1}));
  EXPECT_EQ(encode("<<a"), (Tokens{3 + '<', 0}));
  EXPECT_EQ(encode("<a>c<"), (Tokens{2, 3 + 'c', 3 + '<'}));
}

TEST(Tokenizer, SpecialTokensStayInAPartAndPiecesCrossParts) {
  const Tokenizer tokenizer = make(small_vocabulary({"a b", "Ċ Ċ"}));
  const TokenId ab = kFirstByte + 256, two_lines = ab + 1, end = 0;
  const TextPart parts[] = {{"<|end|>a", ParseSpecial::all},
                            {"b<|end|>\n", ParseSpecial::user_defined},
                            {"\n", ParseSpecial::all}};
  Tokens expected = {end, ab};
  for (const char c : std::string("<|end|>"))
    expected.push_back(byte(static_cast<unsigned char>(c)));
  expected.push_back(two_lines);
  EXPECT_EQ(tokenizer.encode(parts).value(), expected);
  const TextPart halves[] = {{"<|en", ParseSpecial::all}, {"d|>", ParseSpecial::all}};
  EXPECT_EQ(tokenizer.encode(halves).value().size(), 7u);
}

TEST(Tokenizer, AnyBytesRoundTrip) {
  std::mt19937 random(7);
  const Tokenizer tokenizer = make(small_vocabulary({"a a", "aa aa", "Ã ©", "Ġ a"}));
  const char* const bits[] = {"a",        "aa",
                              " ",        "\n",
                              "\xC3\xA9", "\xC3",
                              "\x80",     "\xF0\x9F\x98\x80",
                              "\xF0\x9F", "\xED\xA0\x80",
                              "\xFF",     "\xC0\x80",
                              "<|end|>",  "12"};
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (std::size_t n = random() % 9; n > 0; --n)
      text += random() % 4 == 0 ? std::string(1, static_cast<char>(random()))
                                : bits[random() % std::size(bits)];
    for (const ParseSpecial parse_special : {ParseSpecial::none, ParseSpecial::all}) {
      const Tokens tokens = tokenizer.encode(text, parse_special).value();
      ASSERT_EQ(tokenizer.decode(tokens).value(), text);
    }
  }
}

TEST(Tokenizer, BytesWithoutATokenAreDroppedAndCounted) {
  Vocabulary vocabulary = small_vocabulary({"a b"});
  std::erase(vocabulary.bytes, "x");
  const Tokenizer tokenizer = make(vocabulary);
  const Tokens tokens = tokenizer.encode("axbx").value();
  EXPECT_EQ(tokenizer.decode(tokens).value(), "ab");
  EXPECT_EQ(tokens.size(), 1u) << "the neighbours of a byte that is left out merge";
  EXPECT_EQ(tokenizer.num_dropped_bytes("axbx"), 2u);
  EXPECT_EQ(tokenizer.num_dropped_bytes("ab"), 0u);
}

TEST(Tokenizer, SomeModelsIgnoreMergesForPiecesOfTheVocabulary) {
  Vocabulary vocabulary = small_vocabulary({"a b"});
  vocabulary.extra = {"Ġabc"};
  const auto token = static_cast<TokenId>(vocabulary.first_extra());
  EXPECT_EQ(make(vocabulary, "llama-bpe").encode(" abc").value(), Tokens{token});
  EXPECT_EQ(make(vocabulary, "tekken").encode(" abc").value(), Tokens{token});
  EXPECT_EQ(make(vocabulary, "gpt-2").encode(" abc").value().size(), 3u);
}

TEST(Tokenizer, BosAndEosAreAddedIfTheFileRequestsThem) {
  ModelFile file = small_vocabulary({}).model_file("gpt-2");
  file.metadata["tokenizer.ggml.bos_token_id"] = std::int64_t{1};
  file.metadata["tokenizer.ggml.eos_token_id"] = std::int64_t{0};
  const auto encode = [&](bool with) {
    return make(file).encode("a", ParseSpecial::user_defined, with).value();
  };
  EXPECT_EQ(encode(true), Tokens{byte('a')});
  file.metadata["tokenizer.ggml.add_bos_token"] = true;
  file.metadata["tokenizer.ggml.add_eos_token"] = true;
  EXPECT_EQ(encode(true), (Tokens{1, byte('a'), 0}));
  EXPECT_EQ(encode(false), Tokens{byte('a')});
  EXPECT_EQ(make(file).end_tokens(), Tokens{0});
  file.metadata.erase("tokenizer.ggml.add_bos_token");
  EXPECT_FALSE(make(file).adds_bos());
  file.metadata["tokenizer.ggml.pre"] = std::string("llama-bpe");
  EXPECT_TRUE(make(file).adds_bos());
}

TEST(Tokenizer, TokensOutsideTheVocabularyAreRefused) {
  const Tokenizer tokenizer = make(small_vocabulary({}));
  for (const TokenId token : {-1, 258, 1 << 30}) {
    Result<std::string> decoded = tokenizer.decode(Tokens{token});
    ASSERT_FALSE(decoded.ok());
    EXPECT_EQ(decoded.failure().code, ErrorCode::invalid_argument);
    EXPECT_EQ(decoded.failure().message,
              "token=" + std::to_string(token) +
                  ": must be 0 to 257; pass a token of this model's vocabulary");
    StreamDecoder stream(tokenizer);
    EXPECT_FALSE(stream.push(token).ok());
  }
}

// It has no effect that a test could see, but for a sanitizer.
TEST(Tokenizer, PrefetchesKnownTokensAlone) {
  const Tokenizer tokenizer = make(small_vocabulary({}));
  tokenizer.prefetch({});
  tokenizer.prefetch(Tokens{0, 257, -1, 258, INT32_MIN, INT32_MAX, 3});
  EXPECT_EQ(tokenizer.decode(Tokens{0}).value(), "<|end|>");
}

TEST(Tokenizer, TokensAreFoundByTextOrBytes) {
  const Tokenizer tokenizer = make(small_vocabulary({"Ġ a"}));
  EXPECT_EQ(tokenizer.find("<|end|>"), 0);
  EXPECT_EQ(tokenizer.find(" a"), kFirstByte + 256);
  EXPECT_EQ(tokenizer.find("Ġa"), std::nullopt);
  EXPECT_EQ(tokenizer.find("nothing"), std::nullopt);
}

TEST(StreamDecoder, NeverSplitsACharacterAndLosesNoByte) {
  std::mt19937 random(11);
  const Tokenizer tokenizer = make(small_vocabulary({}));
  const char* const bits[] = {"a", "\xC3\xA9", "\xF0\x9F\x98\x80", "\xE2\x82\xAC"};
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    const bool broken = i % 2 != 0;
    for (std::size_t n = random() % 9; n > 0; --n)
      text += broken && random() % 2 ? std::string(1, static_cast<char>(random()))
                                     : bits[random() % std::size(bits)];
    StreamDecoder stream(tokenizer);
    std::string all;
    const Tokens tokens = tokenizer.encode(text).value();
    for (const TokenId token : tokens) {
      std::string part = stream.push(token).value();
      all += part;
      if (broken) continue;
      std::string_view rest = part;
      while (const std::size_t bytes = utf8_first_char(rest)) rest.remove_prefix(bytes);
      ASSERT_TRUE(rest.empty()) << "a part of well-formed text is well-formed";
    }
    const std::string last = stream.flush();
    if (!broken) {
      ASSERT_EQ(last, "");
    }
    ASSERT_EQ(all + last, text);
    ASSERT_EQ(stream.flush(), "");
  }
}

TEST(StreamDecoder, ControlTokensAreEmittedOnRequest) {
  const Tokenizer tokenizer = make(small_vocabulary({}));
  StreamDecoder quiet(tokenizer), loud(tokenizer, true);
  EXPECT_EQ(quiet.push(0).value(), "");
  EXPECT_EQ(loud.push(0).value(), "<|end|>");
  EXPECT_EQ(quiet.push(1).value(), "<user>");
  EXPECT_EQ(tokenizer.decode(Tokens{0, 1}, false).value(), "<user>");
}

TEST(Tokenizer, HostileTextTakesLinearTime) {
  Vocabulary vocabulary = small_vocabulary({"a a", "aa aa", "aaaa aaaa", "Ġ Ġ"});
  const std::string hostile[] = {
      std::string(1 << 20, 'a'), std::string(1 << 18, ' ') + 'x', std::string(1 << 18, '\x80'),
      std::string(1 << 18, '<'), std::string(1 << 18, '1'),       std::string(1 << 18, '\n') + ' ',
      std::string(1 << 18, 'A'),
  };
  for (const char* pre : {"gpt-2", "smollm", "llama-bpe", "qwen2", "tekken"}) {
    const Tokenizer tokenizer = make(vocabulary, pre);
    for (const std::string& text : hostile) {
      const std::clock_t start = std::clock();
      const Tokens tokens = tokenizer.encode(text, ParseSpecial::all).value();
      const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
      EXPECT_EQ(tokenizer.decode(tokens).value(), text);
      // Below one on the machines at hand; a quadratic step would take minutes. The rest is for
      // slow machines and sanitizers.
      EXPECT_LT(seconds, 20) << pre << ' ' << text.substr(0, 1);
    }
  }
}

}  // namespace
}  // namespace headrace::text
