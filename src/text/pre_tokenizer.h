// Splits text into the pieces (pre-tokens) that byte-level BPE encodes one by one. A model file
// names its pre-tokenizer (tokenizer.ggml.pre); each is the regular expression of the model's own
// tokenizer, matched by PCRE2.
//
// \s means Unicode's White_Space, as in the models' own tokenizers; PCRE2's \s also has U+180E.
// Letters and numbers follow PCRE2's Unicode version: a tokenizer with a newer version may split
// characters that were assigned since differently.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace headrace::text {

enum class PreTokenizerKind { gpt2, smollm, llama3, qwen2, tekken };

// By the name in a model file; empty: not supported.
std::optional<PreTokenizerKind> pre_tokenizer_kind(std::string_view name);
std::string pre_tokenizer_names();  // supported names, "a, b, c"

class PreTokenizer {
 public:
  // `with_jit`: let PCRE2 compile the expression to machine code, if the system allows it.
  static Result<PreTokenizer> make(PreTokenizerKind kind, bool with_jit = true);

  // Appends the pieces of `text`, which must be valid UTF-8; together they are the whole text. Time
  // and memory depend on the length alone: the expressions have no nested repetition, and the
  // length limits the steps of a match.
  Status split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Code;
  explicit PreTokenizer(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;  // immutable; the deleter is in the .cc file
};

}  // namespace headrace::text
