#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "text/bpe.h"
#include "text/sentencepiece.h"

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
  bool has_own_spaces = false;  // a space behind a special token is the space prefix
};

Tokenizer::Tokenizer(std::optional<PreTokenizer> pre_tokenizer, std::size_t num_tokens)
    : pre_tokenizer_(std::move(pre_tokenizer)), normal_(num_tokens), merges_(0) {
  byte_tokens_.fill(-1);
}

TokenId Tokenizer::token_of(std::string_view character) const {
  return normal_.find(character == kSpaceMark ? " " : character, text_of());
}

bool Tokenizer::is_hidden(TokenId token) const {
  return kind_of(token) == TokenKind::control || kind_of(token) == TokenKind::unknown;
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

void Tokenizer::encode_characters(std::string_view text, Scratch& scratch) const {
  std::vector<TokenId>& symbols = scratch.piece_tokens;
  symbols.clear();
  bool follows_space = true;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, std::max<std::size_t>(utf8_first_char(text), 1));
    text.remove_prefix(one.size());
    const bool is_space = one == " " || one == kSpaceMark;
    if (splits_at_spaces_ && is_space && !follows_space) {
      scratch.bpe.merge(symbols, scratch.tokens);
      symbols.clear();
    }
    follows_space = is_space;
    const TokenId token = token_of(one);
    if (token >= 0) {
      symbols.push_back(token);
    } else if (byte_tokens_[0] >= 0) {
      for (const char byte : one) symbols.push_back(byte_tokens_[static_cast<unsigned char>(byte)]);
    } else if (symbols.empty() || symbols.back() != unknown_) {
      symbols.push_back(unknown_);
    }
  }
  scratch.bpe.merge(symbols, scratch.tokens);
}

// Encodes text without special tokens, at the start or after a special token.
Status Tokenizer::encode_text(std::string_view text, Scratch& scratch) const {
  if (text.empty()) return std::nullopt;
  if (!pre_tokenizer_) {
    const bool adds_space =
        adds_space_prefix_ &&
        !(scratch.has_own_spaces && !scratch.tokens.empty() && text.starts_with(' '));
    encode_characters(adds_space ? ' ' + std::string(text) : text, scratch);
    return std::nullopt;
  }
  scratch.pieces.clear();
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (const std::size_t bytes = utf8_first_char(text.substr(end))) end += bytes;
    if (end != at)
      if (Status failed = pre_tokenizer_->split(text.substr(at, end - at), scratch.pieces))
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
  scratch.has_own_spaces = true;
  if (Status failed = encode_parts(text, parts, scratch)) return *std::move(failed);
  return std::move(scratch.tokens);
}

std::size_t Tokenizer::num_dropped_bytes(std::string_view text) const {
  std::size_t dropped = 0;
  while (!text.empty()) {
    std::size_t bytes = pre_tokenizer_ ? 1 : std::max<std::size_t>(utf8_first_char(text), 1);
    if (byte_tokens_[static_cast<unsigned char>(text.front())] < 0 &&
        (pre_tokenizer_ || token_of(text.substr(0, bytes)) < 0))
      dropped += bytes;
    text.remove_prefix(bytes);
  }
  return dropped;
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

void Tokenizer::prefetch(std::span<const TokenId> tokens) const {
  const auto is_known = [this](TokenId token) { return token >= 0 && token < vocab_size(); };
  for (const TokenId token : tokens) {
    if (!is_known(token)) continue;
    __builtin_prefetch(&kinds_[static_cast<std::size_t>(token)]);
    __builtin_prefetch(&ends_[static_cast<std::size_t>(token)]);
  }
  for (const TokenId token : tokens)
    if (is_known(token)) __builtin_prefetch(bytes_of(token).data());
}

std::optional<TokenId> Tokenizer::find(std::string_view text) const {
  TokenId token = all_special_.find(text);
  if (token < 0) token = normal_.find(text, text_of());
  return token < 0 ? std::nullopt : std::optional(token);
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> tokens, bool with_control) const {
  std::string text;
  bool has_prefix = adds_space_prefix_;  // of the next token
  for (const TokenId token : tokens) {
    if (Status failed = check(token)) return *std::move(failed);
    std::string_view bytes = bytes_of(token);
    const bool is_piece = kind_of(token) == TokenKind::normal || kind_of(token) == TokenKind::byte;
    if (has_prefix && is_piece && bytes.starts_with(' ')) bytes.remove_prefix(1);
    has_prefix = adds_space_prefix_ && !is_piece;
    if (with_control || !is_hidden(token)) text += bytes;
  }
  return text;
}

Result<std::string> StreamDecoder::push(TokenId token) {
  if (Status failed = tokenizer_.check(token)) return *std::move(failed);
  if (with_control_ || !tokenizer_.is_hidden(token)) pending_ += tokenizer_.bytes_of(token);
  const std::size_t ready = pending_.size() - utf8_unfinished_tail(pending_);
  std::string text = pending_.substr(0, ready);
  pending_.erase(0, ready);
  return text;
}

std::string StreamDecoder::flush() { return std::exchange(pending_, {}); }

}  // namespace headrace::text
