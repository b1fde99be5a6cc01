// Cuts text into the pieces that byte-level BPE encodes one by one. A model's file names its way
// (tokenizer.ggml.pre); each is a regular expression of the model's own tokenizer, matched by
// PCRE2.
//
// \s is Unicode's White_Space here, as in the models' own tokenizers; PCRE2's \s has U+180E too.
// Letters and numbers are those of PCRE2's Unicode version: characters assigned later may be cut
// differently by a tokenizer with a newer one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace headrace::text {

enum class PreTokenizerKind { gpt2, smollm, llama3, qwen2 };

// By the name that a file gives, nothing for another.
std::optional<PreTokenizerKind> pre_tokenizer_kind(std::string_view name);
std::string pre_tokenizer_names();  // the known ones, "a, b, c"

class PreTokenizer {
 public:
  // PCRE2 compiles the expression to machine code where the system lets it; `with_jit` false:
  // never.
  static Result<PreTokenizer> make(PreTokenizerKind kind, bool with_jit = true);

  // Appends the pieces of `text`, which must be well-formed UTF-8: all of it, in order. Time and
  // memory grow with its length alone: the expressions have no nested repetition and the number of
  // steps of one match is limited by the length.
  Status split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Code;
  explicit PreTokenizer(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;  // immutable, and its deleter is known only to the .cc
};

}  // namespace headrace::text
