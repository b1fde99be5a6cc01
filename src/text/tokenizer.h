// Text to tokens and back: byte-level BPE as a model file describes it (tokenizer.ggml.*).
//
// Any bytes can be encoded. What is not well-formed UTF-8 is no text to a pre-tokenizer: each
// longest run of bytes that belong to no character is a piece of its own, and its bytes are taken
// as they are. So decode(encode(x)) == x for every x, with one exception that lies in the
// vocabulary: a byte that no token stands for is left out, as the models' own tokenizers do
// (num_dropped_bytes() counts them; SmolLM2 has no token for 21 of the 256).
//
// Texts are not normalised: Qwen2's own tokenizer composes characters (NFC) first, this one does
// not, so that what comes out is what went in.
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

// As tokenizer.ggml.token_type counts them.
enum class TokenKind { normal = 1, unknown, control, user_defined, unused };

// Which tokens are found where the text has them as they are written. Text from outside must not
// bring control tokens; user-defined ones (runs of spaces, say) are part of ordinary text.
enum class ParseSpecial { none, user_defined, all };

struct TextPart {
  std::string_view text;
  ParseSpecial parse_special = ParseSpecial::user_defined;
};

class Tokenizer {
 public:
  // io_error: the metadata breaks a rule; unsupported: another kind of tokenizer.
  static Result<Tokenizer> make(const ModelFile& file);

  TokenId vocab_size() const { return static_cast<TokenId>(kinds_.size()); }
  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  // Whether the file asks for these around a text that no chat template has made.
  bool adds_bos() const { return adds_bos_; }
  bool adds_eos() const { return adds_eos_; }
  // Ends an answer: eos, the file's end of turn and end of message, and the control tokens that
  // models use for these whatever the file says (<|im_end|>, <|eot_id|>, ...). Ascending.
  const std::vector<TokenId>& end_tokens() const { return end_tokens_; }

  // bos and eos are put around it where the file asks for them and `with_bos_eos` allows it.
  Result<std::vector<TokenId>> encode(std::string_view text,
                                      ParseSpecial parse_special = ParseSpecial::user_defined,
                                      bool with_bos_eos = false) const;
  // One text in parts. Pieces may cross from part to part; tokens that are recognised do not.
  Result<std::vector<TokenId>> encode(std::span<const TextPart> parts) const;
  // How many bytes of the text have no token and are left out.
  std::size_t num_dropped_bytes(std::string_view text) const;

  // Control tokens come out as they are written, unless `with_control` is false.
  Result<std::string> decode(std::span<const TokenId> tokens, bool with_control = true) const;

  // invalid_argument: no token of this vocabulary.
  Status check(TokenId token) const;
  // For tokens that passed check(). The bytes are empty for an unused token without a text.
  std::string_view bytes_of(TokenId token) const;
  TokenKind kind_of(TokenId token) const { return kinds_[static_cast<std::size_t>(token)]; }
  // A control or user-defined token by its text, any other by its bytes.
  std::optional<TokenId> find(std::string_view text) const;

 private:
  friend class TokenizerReader;
  struct Scratch;
  Tokenizer(PreTokenizer pre_tokenizer, std::size_t num_tokens, std::size_t num_merges);
  void encode_piece(std::string_view piece, Scratch& scratch) const;
  Status encode_text(std::string_view text, Scratch& scratch) const;
  Status encode_parts(std::string_view text, std::span<const TextPart> parts,
                      Scratch& scratch) const;
  auto text_of() const {
    return [this](TokenId token) { return bytes_of(token); };
  }

  PreTokenizer pre_tokenizer_;
  bool ignore_merges_ = false;  // a piece that is a token is that token, whatever the merges say
  // Bytes of token i: bytes_[ends_[i - 1]] to bytes_[ends_[i]].
  std::string bytes_;
  std::vector<std::size_t> ends_;
  std::vector<TokenKind> kinds_;
  TextIndex normal_;  // by bytes
  SpecialTokens user_defined_, all_special_;
  MergeIndex merges_;
  std::array<TokenId, 256> byte_tokens_;  // -1: none
  std::optional<TokenId> bos_, eos_;
  bool adds_bos_ = false, adds_eos_ = false;
  std::vector<TokenId> end_tokens_;
};

// Turns tokens into text as they come and never cuts a character: bytes that may still become one
// wait for the next token. Bytes that cannot are passed on as they are.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool with_control = false)
      : tokenizer_(tokenizer), with_control_(with_control) {}

  // The text that this token completes, often all of it, perhaps nothing.
  Result<std::string> push(TokenId token);
  // What still waits, an unfinished character; empty after a well-formed text.
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  bool with_control_;
  std::string pending_;
};

}  // namespace headrace::text
