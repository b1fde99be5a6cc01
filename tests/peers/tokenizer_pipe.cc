// The tokenizer as a filter, for comparisons with other implementations (tokenizer.py). Each text
// on standard input is its length in bytes (uint32, little-endian) and its bytes; the output is a
// line of numbers per text.
//
//   headrace_tokenizer_pipe tokens FILE [PRE]   ids; FILE: a .gguf, or a vocabulary of
//   tests/golden/
//                                               (.json); PRE instead of its tokenizer.ggml.pre
//   headrace_tokenizer_pipe pieces PRE          lengths in bytes of the pieces; texts are UTF-8
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>

#include "tests/support/vocabulary.h"
#include "text/tokenizer.h"
#include "weights/gguf.h"

using namespace headrace;

namespace {

int fail(const std::string& text) {
  std::cerr << "headrace_tokenizer_pipe: " << text << '\n';
  return 1;
}

Result<ModelFile> read_file(const std::string& path) {
  if (path.ends_with(".json")) return testing::read_vocabulary(path).model_file("gpt-2");
  return read_gguf(path);
}

using Numbers = std::vector<std::size_t>;

// Writes numbers_of(text) for each text.
template <class NumbersOf>
int filter(const NumbersOf& numbers_of) {
  std::ios::sync_with_stdio(false);
  std::uint32_t bytes = 0;
  while (std::cin.read(reinterpret_cast<char*>(&bytes), sizeof bytes)) {
    std::string text(bytes, '\0');
    if (!std::cin.read(text.data(), bytes)) return fail("the input ends inside a text");
    Result<Numbers> numbers = numbers_of(text);
    if (!numbers.ok()) return fail(numbers.failure().message);
    std::string line;
    for (const std::size_t number : numbers.value()) line += std::to_string(number) + ' ';
    if (!line.empty()) line.pop_back();
    std::cout << line << '\n';
  }
  return 0;
}

int tokens(const std::string& path, const char* pre) {
  Result<ModelFile> file = read_file(path);
  if (!file.ok()) return fail(file.failure().message);
  if (pre != nullptr) file.value().metadata["tokenizer.ggml.pre"] = std::string(pre);
  Result<text::Tokenizer> tokenizer = text::Tokenizer::make(file.value());
  if (!tokenizer.ok()) return fail(tokenizer.failure().message);
  return filter([&](const std::string& text) -> Result<Numbers> {
    auto ids = tokenizer.value().encode(text, text::ParseSpecial::all);
    if (!ids.ok()) return std::move(ids.failure());
    return Numbers(ids.value().begin(), ids.value().end());
  });
}

int pieces(const std::string& pre) {
  const auto kind = text::pre_tokenizer_kind(pre);
  if (!kind) return fail(pre + " is none of " + text::pre_tokenizer_names());
  Result<text::PreTokenizer> pre_tokenizer = text::PreTokenizer::make(*kind);
  if (!pre_tokenizer.ok()) return fail(pre_tokenizer.failure().message);
  return filter([&](const std::string& text) -> Result<Numbers> {
    std::vector<std::string_view> cut;
    if (Status failed = pre_tokenizer.value().split(text, cut)) return *std::move(failed);
    Numbers lengths;
    for (const std::string_view piece : cut) lengths.push_back(piece.size());
    return lengths;
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "tokens" && (argc == 3 || argc == 4)) return tokens(argv[2], argv[3]);
  if (mode == "pieces" && argc == 3) return pieces(argv[2]);
  return fail("expected tokens FILE [PRE], or pieces PRE");
}
