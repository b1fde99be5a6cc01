// Tokens of texts compared with SentencePiece's (tests/peers/sentencepiece_peer.py --write-golden
// writes the file), the rules of its BPE, and errors of invalid metadata.
#include "text/sentencepiece.h"

#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/support/vocabulary.h"
#include "text/vocabulary_trie.h"

namespace headrace::text {
namespace {

using testing::Piece;
using testing::sentencepiece_file;
using testing::small_pieces;
using Tokens = std::vector<TokenId>;

constexpr TokenId kUser = 3, kFirstByte = 4, kSpace = 260;  // of small_pieces

Tokenizer make(const ModelFile& file) {
  Result<Tokenizer> made = Tokenizer::make(file);
  if (!made.ok()) throw std::runtime_error(made.failure().message);
  return std::move(made.value());
}
Tokenizer make_small(const std::vector<std::string>& normal) {
  return make(sentencepiece_file(small_pieces(normal)));
}
ModelFile without_prefix(const std::vector<std::string>& normal) {
  ModelFile file = sentencepiece_file(small_pieces(normal));
  file.metadata["tokenizer.ggml.add_space_prefix"] = false;
  return file;
}
TokenId byte(unsigned char value) { return kFirstByte + value; }

TEST(SentencePiece, TokensAndTextsMatchTheOriginal) {
  std::ifstream in(std::string(HEADRACE_GOLDEN_DIR) + "/sentencepiece.json");
  const auto golden = nlohmann::json::parse(in);
  std::vector<Piece> pieces;
  for (const auto& piece : golden.at("pieces"))
    pieces.push_back({piece.at(0), piece.at(1), piece.at(2)});
  const Tokenizer tokenizer = make(sentencepiece_file(pieces));
  ASSERT_GE(golden.at("rows").size(), 400u);
  for (const auto& row : golden.at("rows")) {
    const auto text = row.at(0).get<std::string>();
    const Tokens tokens = tokenizer.encode(text, ParseSpecial::all).value();
    ASSERT_EQ(tokens, row.at(1).get<Tokens>()) << row.at(0);
    if (text.find(kSpaceMark) != text.npos) continue;
    ASSERT_EQ(tokenizer.decode(tokens).value(), text);
  }
}

TEST(SentencePiece, HighestScoreMergesFirstAndTheLeftmostAmongEquals) {
  const Tokenizer tokenizer = make(without_prefix({"a", "b", "c", "bc", "ab", "aa", "abc"}));
  const TokenId a = kSpace + 1, b = a + 1, bc = a + 3, aa = a + 5, abc = a + 6;
  EXPECT_EQ(tokenizer.encode("abc").value(), Tokens{abc}) << "a, bc";
  EXPECT_EQ(tokenizer.encode("aaa").value(), (Tokens{aa, a}));
  EXPECT_EQ(tokenizer.encode("bbc").value(), (Tokens{b, bc}));
  std::vector<Piece> pieces = small_pieces({"a", "b", "c", "bc", "ab"});
  pieces[kSpace + 4].score = pieces[kSpace + 5].score = -7;
  EXPECT_EQ(make(sentencepiece_file(pieces)).encode("abc").value(),
            (Tokens{kSpace, kSpace + 5, kSpace + 3}));
}

TEST(SentencePiece, CharactersWithoutATokenAreBytes) {
  const Tokenizer tokenizer = make(without_prefix({"a"}));
  EXPECT_EQ(tokenizer.encode("a\xC3\xA9\xFF").value(),
            (Tokens{kSpace + 1, byte(0xC3), byte(0xA9), byte(0xFF)}));
  EXPECT_EQ(tokenizer.bytes_of(byte(0xC3)), "\xC3");
  EXPECT_EQ(tokenizer.num_dropped_bytes("a\xC3\xA9"), 0u);
  EXPECT_EQ(tokenizer.find("<0xC3>"), std::nullopt);
}

TEST(SentencePiece, WithoutByteTokensARunOfCharactersIsUnknown) {
  const std::vector<Piece> pieces = {{"<unk>", 0, 2}, {"<s>", 0, 3},   {"</s>", 0, 3},
                                     {"\u2581", -1},  {"\u2581a", -2}, {"a", -3}};
  const Tokenizer tokenizer = make(sentencepiece_file(pieces));
  EXPECT_EQ(tokenizer.encode("a\u00e9x a").value(), (Tokens{4, 0, 4}));
  EXPECT_EQ(tokenizer.num_dropped_bytes("a\u00e9x a"), 3u);
  EXPECT_EQ(tokenizer.decode(Tokens{4, 0, 4}, false).value(), "aa")
      << "an unknown token is no text";
}

TEST(SentencePiece, SpacePrefixFollowsTheStartAndSpecialTokens) {
  const Tokenizer tokenizer = make_small({"a", "\u2581a"});
  const TokenId a = kSpace + 1, space_a = a + 1;
  const auto encode = [&](std::string_view text) {
    return tokenizer.encode(text, ParseSpecial::all).value();
  };
  EXPECT_EQ(encode(""), Tokens{});
  EXPECT_EQ(encode("a a"), (Tokens{space_a, space_a}));
  EXPECT_EQ(encode(" a"), (Tokens{kSpace, space_a}));
  EXPECT_EQ(encode("<s>a<user>a</s>"), (Tokens{1, space_a, kUser, space_a, 2}));
  EXPECT_EQ(encode("<s> a"), (Tokens{1, kSpace, space_a}));
  EXPECT_EQ(encode("\u2581"), (Tokens{kSpace, kSpace})) << "U+2581 is a space";
  EXPECT_EQ(make(without_prefix({"a"})).encode("a").value(), Tokens{a});
  EXPECT_EQ(tokenizer.encode("a", ParseSpecial::user_defined, true).value(), (Tokens{1, space_a}))
      << "bos is added by default";
}

TEST(SentencePiece, TemplatesWriteTheSpacePrefixThemselves) {
  const Tokenizer tokenizer = make_small({"a", "\u2581a"});
  const TokenId space_a = kSpace + 2;
  const auto encode = [&](std::string_view first, std::string_view second) {
    const TextPart parts[] = {{first, ParseSpecial::all}, {second, ParseSpecial::none}};
    return tokenizer.encode(parts).value();
  };
  EXPECT_EQ(encode("<s> ", "a"), (Tokens{1, space_a}));
  EXPECT_EQ(encode("<s>", "a"), (Tokens{1, space_a}));
  EXPECT_EQ(encode("<s> ", " a"), (Tokens{1, kSpace, space_a}));
  EXPECT_EQ(encode(" ", "a"), (Tokens{kSpace, space_a})) << "at the start as everywhere";
}

TEST(SentencePiece, DecodingRemovesTheSpacePrefixAndStreamsKeepIt) {
  const Tokenizer tokenizer = make_small({"a", "\u2581a"});
  const TokenId a = kSpace + 1, space_a = a + 1;
  EXPECT_EQ(tokenizer.decode(Tokens{space_a, space_a}).value(), "a a");
  EXPECT_EQ(tokenizer.decode(Tokens{1, space_a, 2, kSpace, a}).value(), "<s>a</s>a");
  EXPECT_EQ(tokenizer.decode(Tokens{1, space_a, 2, space_a}, false).value(), "aa");
  EXPECT_EQ(make(without_prefix({"\u2581a"})).decode(Tokens{a}).value(), " a");
  EXPECT_EQ(tokenizer.bytes_of(space_a), " a");
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.push(space_a).value(), " a");
  EXPECT_EQ(stream.push(0).value(), "");
  EXPECT_EQ(stream.push(byte(0xC3)).value(), "");
  EXPECT_EQ(stream.push(byte(0xA9)).value(), "\xC3\xA9");
  EXPECT_EQ(stream.push(byte(0xE2)).value(), "");
  EXPECT_EQ(stream.flush(), "\xE2");
}

TEST(SentencePiece, AnyBytesRoundTrip) {
  std::mt19937 random(7);
  const Tokenizer tokenizer =
      make_small({"a", "aa", "\u2581a", "\u00e9", "\u2581\u2581", "<", "s", ">", "<s", "0x"});
  const char* const bits[] = {"a",        "aa",  " ",    "\n",     "\xC3\xA9", "\xC3",
                              "\xE2\x96", "<s>", "</s>", "<user>", "<0x41>"};
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (std::size_t n = random() % 9; n > 0; --n)
      text += random() % 4 == 0 ? std::string(1, static_cast<char>(random()))
                                : bits[random() % std::size(bits)];
    if (text.find(kSpaceMark) != text.npos) continue;
    for (const ParseSpecial parse_special : {ParseSpecial::none, ParseSpecial::all})
      ASSERT_EQ(tokenizer.decode(tokenizer.encode(text, parse_special).value()).value(), text);
  }
}

TEST(SentencePiece, WordsAreEncodedAsTheWholeText) {
  std::mt19937 random(11);
  std::vector<std::string> normal = {"a", "b", "ab", "\u2581a", "\u2581\u2581", "\u2581\u2581a",
                                     "ba"};
  const Tokenizer words = make_small(normal);
  normal.push_back("b\u2581a");  // a merge may cross words: not split
  std::vector<Piece> pieces = small_pieces(normal);
  const Tokenizer crossing = make(sentencepiece_file(pieces));
  EXPECT_EQ(crossing.encode("b a").value(), (Tokens{kSpace, kSpace + 8}));
  pieces.back() = {"b\u2581c", -99};  // neither does one of a character that is no token
  const Tokenizer whole = make(sentencepiece_file(pieces));
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (std::size_t n = random() % 12; n > 0; --n) text += "ab  "[random() % 4];
    ASSERT_EQ(words.encode(text).value(), whole.encode(text).value()) << text;
  }
}

TEST(SentencePiece, GrammarsSeeSpacesAndBytes) {
  const VocabularyTrie trie(make_small({"a", "\u2581a"}));
  EXPECT_EQ(trie.bytes_of(kSpace + 2), " a");
  EXPECT_EQ(trie.bytes_of(byte('{')), "{");
  EXPECT_EQ(trie.bytes_of(0), "") << "unknown";
  EXPECT_EQ(trie.bytes_of(1), "") << "control";
  EXPECT_EQ(trie.bytes_of(kUser), "<user>");
  EXPECT_TRUE(trie.alphabet().all());
}

TEST(SentencePiece, HostileTextTakesLinearTime) {
  const Tokenizer tokenizer =
      make_small({"a", "aa", "aaaa", "aaaaaaaa", "\u2581\u2581", "\u2581\u2581\u2581\u2581", "<"});
  for (const char* bit : {"a", " ", "\x80", "<", "\u4e2d", " a"}) {
    std::string text;
    while (text.size() < std::size_t{1} << 19) text += bit;
    const std::clock_t start = std::clock();
    const Tokens tokens = tokenizer.encode(text, ParseSpecial::all).value();
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    EXPECT_EQ(tokenizer.decode(tokens).value(), text);
    EXPECT_LT(seconds, 20) << bit;
  }
}

struct Change {
  const char* rule;  // part of the message
  void (*apply)(ModelFile& file);
  ErrorCode code = ErrorCode::io_error;
};

template <class T>
std::vector<T>& list(ModelFile& file, const char* key) {
  return std::get<std::vector<T>>(file.metadata.at(std::string("tokenizer.ggml.") + key));
}
std::string& text_of(ModelFile& file, std::size_t i) {
  return list<std::string>(file, "tokens")[i];
}

// Applied to small_pieces({"a", "b", "ab"}).
const Change kChanges[] = {
    {"'tokenizer.ggml.scores' is missing",
     [](ModelFile& file) { file.metadata.erase("tokenizer.ggml.scores"); }},
    {"'tokenizer.ggml.scores' is an array of integers, expected an array of numbers",
     [](ModelFile& file) {
       file.metadata["tokenizer.ggml.scores"] = std::vector<std::int64_t>{1};
     }},
    {"scores has 263 elements, expected 264, one per token",
     [](ModelFile& file) { list<double>(file, "scores").pop_back(); }},
    {"scores[5] is nan, expected a number",
     [](ModelFile& file) {
       list<double>(file, "scores")[5] = std::numeric_limits<double>::quiet_NaN();
     }},
    {"'tokenizer.ggml.token_type' is missing",
     [](ModelFile& file) { file.metadata.erase("tokenizer.ggml.token_type"); }},
    {"token_type has 263 elements, expected 264",
     [](ModelFile& file) { list<std::int64_t>(file, "token_type").pop_back(); }},
    {"token_type[5] is 7, expected 1 to 6",
     [](ModelFile& file) { list<std::int64_t>(file, "token_type")[5] = 7; }},
    {"tokens[5] is a byte token, expected <0x00> to <0xFF>",
     [](ModelFile& file) { text_of(file, 5) = "<0xG1>"; }},
    {"tokens[5] is a byte token, expected <0x00> to <0xFF>",
     [](ModelFile& file) { text_of(file, 5) = "<0x1>"; }},
    {"tokens[6] appears twice", [](ModelFile& file) { text_of(file, 6) = "<0x01>"; }},
    {"tokens has 255 byte tokens, expected 256 or none",
     [](ModelFile& file) { list<std::int64_t>(file, "token_type")[5] = 3; }},
    {"tokens has neither byte tokens nor a space (U+2581), expected one of them",
     [](ModelFile& file) {
       for (std::size_t i = 4; i < 261; ++i) list<std::int64_t>(file, "token_type")[i] = 3;
     }},
    {"tokens has neither byte tokens nor an unknown token",
     [](ModelFile& file) {
       for (std::size_t i = 0; i < 260; ++i) list<std::int64_t>(file, "token_type")[i] = 3;
     }},
    {"tokens[262] appears twice", [](ModelFile& file) { text_of(file, 262) = "a"; }},
    {"tokens[261] appears twice", [](ModelFile& file) { text_of(file, 261) = " "; }},
    {"tokens[1] appears twice", [](ModelFile& file) { text_of(file, 1) = "ab"; }},
    {"tokens[261] is empty", [](ModelFile& file) { text_of(file, 261) = ""; }},
    {"tokens[261] is a normal token with invalid UTF-8",
     [](ModelFile& file) { text_of(file, 261) = "a\xC3"; }},
    {"tokens[261] is a piece of 1025 bytes, expected at most 1024",
     [](ModelFile& file) { text_of(file, 261) = std::string(1025, 'a'); }},
    {"'tokenizer.ggml.unknown_token_id' is 264, expected 0 to 263",
     [](ModelFile& file) { file.metadata["tokenizer.ggml.unknown_token_id"] = std::int64_t{264}; }},
    {"remove_extra_whitespaces is true, supported: false",
     [](ModelFile& file) { file.metadata["tokenizer.ggml.remove_extra_whitespaces"] = true; },
     ErrorCode::unsupported},
};

TEST(SentencePiece, ErrorsNameTheBrokenRule) {
  const ModelFile good = sentencepiece_file(small_pieces({"a", "b", "ab"}));
  ASSERT_TRUE(Tokenizer::make(good).ok());
  for (const Change& change : kChanges) {
    ModelFile file = good;
    change.apply(file);
    Result<Tokenizer> made = Tokenizer::make(file);
    ASSERT_FALSE(made.ok()) << change.rule;
    EXPECT_NE(made.failure().message.find(change.rule), std::string::npos)
        << "expected: " << change.rule << "\narrived: " << made.failure().message;
    EXPECT_EQ(made.failure().code, change.code) << change.rule;
  }
}

TEST(SentencePiece, SpecialTokensMayResembleAPieceWithSpaces) {
  std::vector<Piece> pieces = small_pieces({"\u2581\u2581"});
  pieces.push_back({"  ", 0, 4});
  EXPECT_EQ(make(sentencepiece_file(pieces)).encode("  ").value(), Tokens{kSpace + 2});
}

}  // namespace
}  // namespace headrace::text
