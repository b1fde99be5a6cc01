// The tokenizer of a model file (tokenizer.ggml.*), text to tokens and back: byte-level BPE
// ("gpt2") or SentencePiece's BPE ("llama").
//
// Any bytes can be encoded. Invalid UTF-8 bypasses the pre-tokenizer: each maximal run of bytes
// that belong to no character is one piece. So decode(encode(x)) == x for every x, with one
// exception: a byte without a token in the vocabulary is dropped, as the models' own tokenizers do
// (num_dropped_bytes() counts them; SmolLM2 has no token for 21 of the 256).
//
// Text is not normalised. Qwen2's own tokenizer composes characters (NFC) first; this one does not,
// so that decoding returns the input.
//
// SentencePiece merges characters, the pair with the highest score of the joined piece first. A
// character without a token becomes the tokens of its bytes; in a vocabulary without byte tokens a
// run of them becomes the unknown token. U+2581 is encoded as the space that it stands for in the
// vocabulary. If the file requests it (add_space_prefix, the default), text at the start and after
// a special token begins with one more space, as in llama.cpp; decode() removes that space.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/pre_tokenizer.h"
#include "text/special_tokens.h"
#include "text/token_index.h"
#include "weights/model_file.h"

namespace headrace::text {

// The values of tokenizer.ggml.token_type.
enum class TokenKind { normal = 1, unknown, control, user_defined, unused, byte };

// Which special tokens are parsed in a text. Untrusted text must not produce control tokens;
// user-defined tokens, such as runs of spaces, are part of ordinary text.
enum class ParseSpecial { none, user_defined, all };

struct TextPart {
  std::string_view text;
  ParseSpecial parse_special = ParseSpecial::user_defined;
};

class Tokenizer {
 public:
  // io_error: invalid metadata; unsupported: another kind of tokenizer.
  static Result<Tokenizer> make(const ModelFile& file);

  TokenId vocab_size() const { return static_cast<TokenId>(kinds_.size()); }
  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  // Whether the file requests these around text without a chat template.
  bool adds_bos() const { return adds_bos_; }
  bool adds_eos() const { return adds_eos_; }
  // Tokens that end generation: eos, the file's end of turn and end of message, and the control
  // tokens that models use for these (<|im_end|>, <|eot_id|>, ...), even if the file does not name
  // them. Ascending.
  const std::vector<TokenId>& end_tokens() const { return end_tokens_; }

  // `with_bos_eos`: add bos and eos if the file requests them.
  Result<std::vector<TokenId>> encode(std::string_view text,
                                      ParseSpecial parse_special = ParseSpecial::user_defined,
                                      bool with_bos_eos = false) const;
  // Encodes the concatenated parts. Pieces may cross from part to part, special tokens may not.
  // Chat templates write a space prefix themselves ("[INST] "): text after a special token gets
  // none if it begins with a space.
  Result<std::vector<TokenId>> encode(std::span<const TextPart> parts) const;
  // The number of bytes of the text that have no token and are dropped.
  std::size_t num_dropped_bytes(std::string_view text) const;

  // `with_control`: include the text of control tokens and of the unknown token.
  Result<std::string> decode(std::span<const TokenId> tokens, bool with_control = true) const;

  // invalid_argument: outside the vocabulary.
  Status check(TokenId token) const;
  // For tokens that passed check(): the bytes inside a text, where no space is removed. Empty for
  // an unused token without a text.
  std::string_view bytes_of(TokenId token) const;
  // Loads what bytes_of() and kind_of() of these tokens read: a vocabulary is larger than the
  // caches of a core, and several loads at once take little longer than one. Other tokens are
  // ignored.
  void prefetch(std::span<const TokenId> tokens) const;
  TokenKind kind_of(TokenId token) const { return kinds_[static_cast<std::size_t>(token)]; }
  // Control and unknown tokens, which are no text.
  bool is_hidden(TokenId token) const;
  // A control or user-defined token by its text, a normal token by its bytes.
  std::optional<TokenId> find(std::string_view text) const;

 private:
  friend class TokenizerReader;
  struct Scratch;
  Tokenizer(std::optional<PreTokenizer> pre_tokenizer, std::size_t num_tokens);
  void encode_piece(std::string_view piece, Scratch& scratch) const;
  void encode_characters(std::string_view text, Scratch& scratch) const;
  Status encode_text(std::string_view text, Scratch& scratch) const;
  Status encode_parts(std::string_view text, std::span<const TextPart> parts,
                      Scratch& scratch) const;
  TokenId token_of(std::string_view character) const;  // -1: none
  auto text_of() const {
    return [this](TokenId token) { return bytes_of(token); };
  }

  std::optional<PreTokenizer> pre_tokenizer_;  // empty: SentencePiece
  bool ignore_merges_ = false;                 // a piece that is a token is encoded as that token
  bool adds_space_prefix_ = false;
  // No token has a space behind another character, so that no merge crosses the start of a word.
  bool splits_at_spaces_ = false;
  // Bytes of token i: bytes_[ends_[i - 1]] to bytes_[ends_[i]].
  std::string bytes_;
  std::vector<std::size_t> ends_;
  std::vector<TokenKind> kinds_;
  TextIndex normal_;  // by bytes
  SpecialTokens user_defined_, all_special_;
  MergeIndex merges_;
  std::array<TokenId, 256> byte_tokens_;  // -1: none
  TokenId unknown_ = -1;
  std::optional<TokenId> bos_, eos_;
  bool adds_bos_ = false, adds_eos_ = false;
  std::vector<TokenId> end_tokens_;
};

// Incremental detokenizer that never splits a character: an incomplete character waits for the next
// token, invalid bytes pass through. The tokens continue a text: no space at their start is
// removed.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool with_control = false)
      : tokenizer_(tokenizer), with_control_(with_control) {}

  // The text that this token completes; may be empty.
  Result<std::string> push(TokenId token);
  // The incomplete character at the end; empty after valid UTF-8.
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  bool with_control_;
  std::string pending_;
};

}  // namespace headrace::text
