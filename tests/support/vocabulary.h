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

// A token of a SentencePiece vocabulary.
struct Piece {
  std::string text;
  double score;
  std::int64_t type = 1;
};

// bos 1, eos 2.
ModelFile sentencepiece_file(const std::vector<Piece>& pieces);

// <unk> (0), <s> (1), </s> (2), the user-defined token <user> (3), 256 bytes (from 4), the space
// (260), then `normal` with scores -1, -2, ...
std::vector<Piece> small_pieces(const std::vector<std::string>& normal);

}  // namespace headrace::testing
