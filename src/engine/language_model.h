// A model that can be talked to: its vocabulary and, unless only that was asked for, its weights.
#pragma once

#include <optional>
#include <string>

#include "model/decoder.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace headrace::engine {

struct LanguageModel {
  std::string path;
  std::string architecture, name;
  // What the file's own template is; failed: there is none, or it is not known.
  Result<text::ChatTemplate> chat_template;
  std::string weight_types;  // "Q4_1 210, F32 61": tensors of each type, the most frequent first
  std::int64_t num_parameters = 0;
  text::Tokenizer tokenizer;
  std::optional<model::Decoder> decoder;
};

// io_error, unsupported: file, place and rule. The vocabulary has as many tokens as the embedding
// has rows.
Result<LanguageModel> load_language_model(const std::string& path,
                                          const model::LoadOptions& options, bool vocab_only);

}  // namespace headrace::engine
