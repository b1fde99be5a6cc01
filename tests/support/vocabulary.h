// Vocabularies for tokenizer tests, in the form of a model file's metadata.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "weights/model_file.h"

namespace headrace::testing {

// Ids in this order: specials, bytes, results of the merges, extra.
struct Vocabulary {
  std::vector<std::pair<std::string, std::int64_t>> specials;  // text, type
  std::vector<std::string> bytes;                              // in byte-level characters
  std::vector<std::string> merges;                             // "left right"
  std::vector<std::string> extra;                              // normal tokens without a merge

  ModelFile model_file(const std::string& pre) const;
  std::int64_t first_extra() const {
    return static_cast<std::int64_t>(specials.size() + bytes.size() + merges.size());
  }
};

// All 256 bytes, the given merges, control token <|end|> (0), user-defined token <user> (1).
Vocabulary small_vocabulary(std::vector<std::string> merges);

// tests/golden/tokenizer_vocabulary.json; throws if it cannot be read.
Vocabulary read_vocabulary(const std::string& path);

}  // namespace headrace::testing
