// The tokenizer as a filter, for comparisons with other implementations (tokenizer.py): texts come
// on standard input, each as its length in bytes (uint32, little-endian) and the bytes; a line of
// token ids goes out for each.
//
//   headrace_tokenizer_pipe FILE [PRE]   FILE: a .gguf, or a vocabulary of tests/golden/ (.json)
//                                        PRE: takes the place of the file's tokenizer.ggml.pre
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>

#include "model/gguf.h"
#include "model/tokenizer.h"
#include "tests/support/vocabulary.h"

using namespace headrace;

namespace {

int fail(const std::string& text) {
  std::cerr << "headrace_tokenizer_pipe: " << text << '\n';
  return 1;
}

Result<model::ModelFile> read_file(const std::string& path) {
  if (path.ends_with(".json")) return testing::read_vocabulary(path).model_file("gpt-2");
  return model::read_gguf(path);
}

int run(const model::Tokenizer& tokenizer) {
  std::uint32_t bytes = 0;
  while (std::cin.read(reinterpret_cast<char*>(&bytes), sizeof bytes)) {
    std::string text(bytes, '\0');
    if (!std::cin.read(text.data(), bytes)) return fail("the input ends inside a text");
    auto tokens = tokenizer.encode(text, model::Recognise::control_too);
    if (!tokens.ok()) return fail(tokens.failure().message);
    std::string line;
    for (const model::TokenId token : tokens.value()) line += std::to_string(token) + ' ';
    if (!line.empty()) line.pop_back();
    std::cout << line << '\n';
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) return fail("expected FILE [PRE]");
  Result<model::ModelFile> file = read_file(argv[1]);
  if (!file.ok()) return fail(file.failure().message);
  if (argc == 3) file.value().metadata["tokenizer.ggml.pre"] = std::string(argv[2]);
  Result<model::Tokenizer> tokenizer = model::Tokenizer::make(file.value());
  if (!tokenizer.ok()) return fail(tokenizer.failure().message);
  std::ios::sync_with_stdio(false);
  return run(tokenizer.value());
}
