#include "tests/support/vocabulary.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "text/byte_level.h"

namespace headrace::testing {

ModelFile Vocabulary::model_file(const std::string& pre) const {
  std::vector<std::string> tokens;
  std::vector<std::int64_t> types;
  const auto add = [&](const std::string& text, std::int64_t type) {
    tokens.push_back(text);
    types.push_back(type);
  };
  for (const auto& [text, type] : specials) add(text, type);
  for (const std::string& byte : bytes) add(byte, 1);
  for (const std::string& merge : merges) {
    const std::size_t space = merge.find(' ');
    add(merge.substr(0, space) + merge.substr(space + 1), 1);
  }
  for (const std::string& token : extra) add(token, 1);
  ModelFile file;
  file.path = "m.gguf";
  file.format = "GGUF";
  file.metadata["tokenizer.ggml.model"] = std::string("gpt2");
  file.metadata["tokenizer.ggml.pre"] = pre;
  file.metadata["tokenizer.ggml.tokens"] = tokens;
  file.metadata["tokenizer.ggml.token_type"] = types;
  file.metadata["tokenizer.ggml.merges"] = merges;
  return file;
}

Vocabulary small_vocabulary(std::vector<std::string> merges) {
  Vocabulary vocabulary;
  vocabulary.specials = {{"<|end|>", 3}, {"<user>", 4}};
  for (int byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    vocabulary.bytes.push_back(text::byte_level_from_bytes({&text, 1}));
  }
  vocabulary.merges = std::move(merges);
  return vocabulary;
}

Vocabulary read_vocabulary(const std::string& path) {
  std::ifstream in(path);
  const nlohmann::json json = nlohmann::json::parse(in);
  Vocabulary vocabulary;
  for (const auto& special : json.at("specials"))
    vocabulary.specials.emplace_back(special.at(0), special.at(1));
  vocabulary.bytes = json.at("bytes").get<std::vector<std::string>>();
  vocabulary.merges = json.at("merges").get<std::vector<std::string>>();
  vocabulary.extra = json.at("extra").get<std::vector<std::string>>();
  return vocabulary;
}

ModelFile sentencepiece_file(const std::vector<Piece>& pieces) {
  std::vector<std::string> tokens;
  std::vector<double> scores;
  std::vector<std::int64_t> types;
  for (const Piece& piece : pieces) {
    tokens.push_back(piece.text);
    scores.push_back(piece.score);
    types.push_back(piece.type);
  }
  ModelFile file;
  file.path = "m.gguf";
  file.format = "GGUF";
  file.metadata["tokenizer.ggml.model"] = std::string("llama");
  file.metadata["tokenizer.ggml.tokens"] = tokens;
  file.metadata["tokenizer.ggml.scores"] = scores;
  file.metadata["tokenizer.ggml.token_type"] = types;
  file.metadata["tokenizer.ggml.bos_token_id"] = std::int64_t{1};
  file.metadata["tokenizer.ggml.eos_token_id"] = std::int64_t{2};
  return file;
}

std::vector<Piece> small_pieces(const std::vector<std::string>& normal) {
  std::vector<Piece> pieces = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}, {"<user>", 0, 4}};
  constexpr const char* kHex = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte)
    pieces.push_back({std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + '>', 0, 6});
  pieces.push_back({"\u2581", 0});
  for (const std::string& text : normal)
    pieces.push_back({text, static_cast<double>(pieces.size()) * -1 + 260});
  return pieces;
}

}  // namespace headrace::testing
