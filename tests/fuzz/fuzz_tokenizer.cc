// First byte: which tokenizer (bits 0, 1 and 5), what is recognised (bits 2, 3), mode (bit 4).
// Mode 0: the rest is a text for a small vocabulary.
// Mode 1: lines of a vocabulary, "m<merge>" or "<type digit><token>", up to an empty line; then a
//         text for it. SentencePiece has no merges: such a line is the score of the next token.
#include <cstdlib>
#include <iterator>

#include "tests/fuzz/fuzz.h"
#include "tests/support/vocabulary.h"
#include "text/sentencepiece.h"
#include "text/tokenizer.h"

using namespace headrace;
using testing::require;

namespace {

constexpr const char* kPre[] = {"gpt-2", "smollm", "llama-bpe", "qwen2", "tekken"};
constexpr std::size_t kSentencePiece = std::size(kPre);
constexpr text::ParseSpecial kParseSpecial[] = {text::ParseSpecial::none,
                                                text::ParseSpecial::user_defined,
                                                text::ParseSpecial::all, text::ParseSpecial::all};

void check_text(const text::Tokenizer& tokenizer, std::string_view text,
                text::ParseSpecial parse_special) {
  auto tokens = tokenizer.encode(text, parse_special);
  require(tokens.ok(), "any text is encoded");
  auto decoded = tokenizer.decode(tokens.value());
  require(decoded.ok(), "tokens of a text are in the vocabulary");
  const bool has_mark = text.find(text::kSpaceMark) != text.npos;  // a space for SentencePiece
  if (tokenizer.num_dropped_bytes(text) == 0 && !has_mark)
    require(decoded.value() == text, "decode(encode(x)) == x");
  text::StreamDecoder stream(tokenizer, true);
  std::string streamed, pieces;
  for (const text::TokenId token : tokens.value()) {
    streamed += stream.push(token).value();
    pieces += tokenizer.bytes_of(token);
  }
  require(streamed + stream.flush() == pieces, "the stream is the text of the tokens");
  const std::size_t half = text.size() / 2;
  const text::TextPart parts[] = {{text.substr(0, half), parse_special},
                                  {text.substr(half), parse_special}};
  auto in_parts = tokenizer.encode(parts);
  require(in_parts.ok(), "any text in parts is encoded");
  if (parse_special == text::ParseSpecial::none)
    require(in_parts.value() == tokens.value(), "where a text is cut into parts does not matter");
}

ModelFile read_pieces(std::string_view& input) {
  std::vector<testing::Piece> pieces;
  if (!input.starts_with('2')) pieces = testing::small_pieces({});  // without bytes: unknown first
  double score = 0;
  while (!input.empty()) {
    const std::string_view line = testing::take_until(input, '\n');
    if (line.empty()) break;
    if (line.front() == 'm')
      score = std::strtod(std::string(line.substr(1)).c_str(), nullptr);
    else
      pieces.push_back({std::string(line.substr(1)), score, line.front() - '0'});
  }
  return testing::sentencepiece_file(pieces);
}

ModelFile read_lines(std::string_view& input) {
  std::vector<std::string> tokens, merges;
  std::vector<std::int64_t> types;
  while (!input.empty()) {
    const std::string_view line = testing::take_until(input, '\n');
    if (line.empty()) break;
    if (line.front() == 'm') {
      merges.emplace_back(line.substr(1));
    } else {
      types.push_back(line.front() - '0');
      tokens.emplace_back(line.substr(1));
    }
  }
  static const ModelFile all_bytes = testing::small_vocabulary({}).model_file("gpt-2");
  ModelFile file = all_bytes;
  if (types.empty() || types.front() != 1) {  // beside all bytes, unless the first line is normal
    for (const std::string& token : tokens)
      std::get<std::vector<std::string>>(file.metadata["tokenizer.ggml.tokens"]).push_back(token);
    for (const std::int64_t type : types)
      std::get<std::vector<std::int64_t>>(file.metadata["tokenizer.ggml.token_type"])
          .push_back(type);
  } else {
    file.metadata["tokenizer.ggml.tokens"] = tokens;
    file.metadata["tokenizer.ggml.token_type"] = types;
  }
  file.metadata["tokenizer.ggml.merges"] = merges;
  return file;
}

const ModelFile& small_file() {
  static const ModelFile file =
      testing::small_vocabulary(
          {"a a", "aa aa", "Ġ a", "t h", "Ġ th", "Ġ Ġ", "Ã ©", "Ċ Ċ", "1 2", "' s", "ð Ł"})
          .model_file("gpt-2");
  return file;
}

const text::Tokenizer& small_tokenizer(std::size_t pre) {
  static const auto made = [] {
    std::vector<text::Tokenizer> all;
    for (const char* name : kPre) {
      ModelFile file = small_file();
      file.metadata["tokenizer.ggml.pre"] = std::string(name);
      all.push_back(std::move(text::Tokenizer::make(file).value()));
    }
    all.push_back(
        std::move(text::Tokenizer::make(testing::sentencepiece_file(testing::small_pieces(
                                            {"a", "aa", "t", "h", "th", "\u2581th", "\u2581\u2581",
                                             "\u00e9", "\n", "\n\n", "<", "<s", "0x"})))
                      .value()));
    return all;
  }();
  return made[pre];
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::string_view input = testing::as_text(data + 1, size - 1);
  const std::size_t pre =
      std::min<std::size_t>((data[0] & 3U) | (data[0] >> 5 & 1U) << 2, kSentencePiece);
  const text::ParseSpecial parse_special = kParseSpecial[data[0] >> 2 & 3U];
  if ((data[0] & 16U) == 0) {
    check_text(small_tokenizer(pre), input, parse_special);
    return 0;
  }
  ModelFile file = pre == kSentencePiece ? read_pieces(input) : read_lines(input);
  if (pre != kSentencePiece) file.metadata["tokenizer.ggml.pre"] = std::string(kPre[pre]);
  auto tokenizer = text::Tokenizer::make(file);
  if (tokenizer.ok())
    check_text(tokenizer.value(), input, parse_special);
  else
    require(tokenizer.failure().message.starts_with("m.gguf: "), "a failure names the file");
  return 0;
}
