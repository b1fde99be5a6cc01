#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "text/bpe.h"

namespace headrace::text {
namespace {

// BPE has 32-bit positions.
constexpr std::size_t kMaxText = std::size_t{1} << 30;

}  // namespace

struct Tokenizer::Scratch {
  explicit Scratch(const MergeIndex& merges) : bpe(merges) {}
  Bpe bpe;
  std::vector<std::string_view> pieces;
  std::vector<TokenId> piece_tokens, tokens;
};

Tokenizer::Tokenizer(PreTokenizer pre_tokenizer, std::size_t num_tokens, std::size_t num_merges)
    : pre_tokenizer_(std::move(pre_tokenizer)), normal_(num_tokens), merges_(num_merges) {
  byte_tokens_.fill(-1);
}

void Tokenizer::encode_piece(std::string_view piece, Scratch& scratch) const {
  if (ignore_merges_) {
    const TokenId token = normal_.find(piece, text_of());
    if (token >= 0) {
      scratch.tokens.push_back(token);
      return;
    }
  }
  scratch.piece_tokens.clear();
  for (const char byte : piece) {
    const TokenId token = byte_tokens_[static_cast<unsigned char>(byte)];
    if (token >= 0) scratch.piece_tokens.push_back(token);
  }
  scratch.bpe.merge(scratch.piece_tokens, scratch.tokens);
}

// Encodes text without special tokens.
Status Tokenizer::encode_text(std::string_view text, Scratch& scratch) const {
  scratch.pieces.clear();
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (const std::size_t bytes = utf8_first_char(text.substr(end))) end += bytes;
    if (end != at)
      if (Status failed = pre_tokenizer_.split(text.substr(at, end - at), scratch.pieces))
        return failed;
    at = end;
    while (end < text.size() && utf8_first_char(text.substr(end)) == 0) ++end;
    if (end != at) scratch.pieces.push_back(text.substr(at, end - at));
    at = end;
  }
  for (const std::string_view piece : scratch.pieces) encode_piece(piece, scratch);
  return std::nullopt;
}

// `text` is the concatenation of the parts.
Status Tokenizer::encode_parts(std::string_view text, std::span<const TextPart> parts,
                               Scratch& scratch) const {
  std::size_t part_begin = 0, done = 0;
  for (const TextPart& part : parts) {
    const std::size_t part_end = part_begin + part.text.size();
    if (part.parse_special != ParseSpecial::none) {
      const SpecialTokens& tokens =
          part.parse_special == ParseSpecial::all ? all_special_ : user_defined_;
      const std::string_view until = text.substr(0, part_end);
      for (std::size_t at = tokens.next_start(until, part_begin); at < part_end;) {
        const SpecialTokens::Match match = tokens.match(until.substr(at));
        if (match.bytes != 0) {
          if (Status failed = encode_text(text.substr(done, at - done), scratch)) return failed;
          scratch.tokens.push_back(match.id);
          done = at + match.bytes;
        }
        at = tokens.next_start(until, at + std::max<std::size_t>(match.bytes, 1));
      }
    }
    part_begin = part_end;
  }
  return encode_text(text.substr(done), scratch);
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, ParseSpecial parse_special,
                                               bool with_bos_eos) const {
  if (text.size() > kMaxText)
    return invalid_argument("text: {} bytes; must be at most {}; encode it in parts", text.size(),
                            kMaxText);
  Scratch scratch(merges_);
  if (with_bos_eos && adds_bos_) scratch.tokens.push_back(*bos_);
  const TextPart part{text, parse_special};
  if (Status failed = encode_parts(text, {&part, 1}, scratch)) return *std::move(failed);
  if (with_bos_eos && adds_eos_) scratch.tokens.push_back(*eos_);
  return std::move(scratch.tokens);
}

Result<std::vector<TokenId>> Tokenizer::encode(std::span<const TextPart> parts) const {
  std::string text;
  for (const TextPart& part : parts) {
    if (part.text.size() > kMaxText - text.size())
      return invalid_argument(
          "text: more than {} bytes; must be at most that; encode fewer messages", kMaxText);
    text += part.text;
  }
  Scratch scratch(merges_);
  if (Status failed = encode_parts(text, parts, scratch)) return *std::move(failed);
  return std::move(scratch.tokens);
}

std::size_t Tokenizer::num_dropped_bytes(std::string_view text) const {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [this](char byte) {
    return byte_tokens_[static_cast<unsigned char>(byte)] < 0;
  }));
}

Status Tokenizer::check(TokenId token) const {
  if (token >= 0 && token < vocab_size()) return std::nullopt;
  return invalid_argument("token={}: must be 0 to {}; pass a token of this model's vocabulary",
                          token, vocab_size() - 1);
}

std::string_view Tokenizer::bytes_of(TokenId token) const {
  const auto i = static_cast<std::size_t>(token);
  const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
  return std::string_view(bytes_).substr(begin, ends_[i] - begin);
}

std::optional<TokenId> Tokenizer::find(std::string_view text) const {
  TokenId token = all_special_.find(text);
  if (token < 0) token = normal_.find(text, text_of());
  return token < 0 ? std::nullopt : std::optional(token);
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> tokens, bool with_control) const {
  std::string text;
  for (const TokenId token : tokens) {
    if (Status failed = check(token)) return *std::move(failed);
    if (with_control || kind_of(token) != TokenKind::control) text += bytes_of(token);
  }
  return text;
}

Result<std::string> StreamDecoder::push(TokenId token) {
  if (Status failed = tokenizer_.check(token)) return *std::move(failed);
  if (with_control_ || tokenizer_.kind_of(token) != TokenKind::control)
    pending_ += tokenizer_.bytes_of(token);
  const std::size_t ready = pending_.size() - utf8_unfinished_tail(pending_);
  std::string text = pending_.substr(0, ready);
  pending_.erase(0, ready);
  return text;
}

std::string StreamDecoder::flush() { return std::exchange(pending_, {}); }

}  // namespace headrace::text
