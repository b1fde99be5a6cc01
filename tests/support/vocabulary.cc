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

}  // namespace headrace::testing
