// The tokenizer as a filter, for comparisons with other implementations (tokenizer.py). Each text
// on standard input is its length in bytes (uint32, little-endian) and its bytes; the output is a
// line of numbers per text.
//
//   tokens FILE [PRE]    ids; FILE: a .gguf, or a vocabulary of tests/golden/ (.json); PRE instead
//                        of its tokenizer.ggml.pre
//   pieces PRE           lengths in bytes of the pieces; texts are UTF-8
//   texts FILE           the bytes of the text of ids, which are decimal numbers
//   chat FILE TEMPLATE   ids of a conversation, [[role, content], ...] in JSON
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/support/vocabulary.h"
#include "text/chat_template.h"
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

Result<text::Tokenizer> read_tokenizer(const std::string& path, const char* pre = nullptr) {
  Result<ModelFile> file = read_file(path);
  if (!file.ok()) return std::move(file.failure());
  if (pre != nullptr) file.value().metadata["tokenizer.ggml.pre"] = std::string(pre);
  return text::Tokenizer::make(file.value());
}

Result<Numbers> numbers_of(Result<std::vector<text::TokenId>> ids) {
  if (!ids.ok()) return std::move(ids.failure());
  return Numbers(ids.value().begin(), ids.value().end());
}

int tokens(const std::string& path, const char* pre) {
  const Result<text::Tokenizer> tokenizer = read_tokenizer(path, pre);
  if (!tokenizer.ok()) return fail(tokenizer.failure().message);
  return filter([&](const std::string& text) {
    return numbers_of(tokenizer.value().encode(text, text::ParseSpecial::all));
  });
}

int texts(const std::string& path) {
  const Result<text::Tokenizer> tokenizer = read_tokenizer(path);
  if (!tokenizer.ok()) return fail(tokenizer.failure().message);
  return filter([&](const std::string& text) -> Result<Numbers> {
    std::istringstream in(text);
    std::vector<text::TokenId> ids;
    for (text::TokenId id; in >> id;) ids.push_back(id);
    Result<std::string> decoded = tokenizer.value().decode(ids);
    if (!decoded.ok()) return std::move(decoded.failure());
    Numbers bytes;
    for (const char byte : decoded.value()) bytes.push_back(static_cast<unsigned char>(byte));
    return bytes;
  });
}

int chat(const std::string& path, const std::string& name) {
  const Result<text::Tokenizer> tokenizer = read_tokenizer(path);
  if (!tokenizer.ok()) return fail(tokenizer.failure().message);
  const Result<text::ChatTemplate> chosen = text::ChatTemplate::by_name(name);
  if (!chosen.ok()) return fail(chosen.failure().message);
  return filter([&](const std::string& text) -> Result<Numbers> {
    std::vector<text::Message> messages;
    for (const auto& message : nlohmann::json::parse(text))
      messages.push_back({text::role_by_name(message.at(0).get<std::string>()).value(),
                          message.at(1).get<std::string>()});
    Result<text::Prompt> prompt = chosen.value().render(messages);
    if (!prompt.ok()) return std::move(prompt.failure());
    return numbers_of(tokenizer.value().encode(prompt.value().tokenizer_parts()));
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
  if (mode == "texts" && argc == 3) return texts(argv[2]);
  if (mode == "chat" && argc == 4) return chat(argv[2], argv[3]);
  return fail("expected tokens FILE [PRE], pieces PRE, texts FILE, or chat FILE TEMPLATE");
}
