// A model file of arbitrary bytes: header, tokenizer, chat template.
#include "tests/fuzz/fuzz.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "weights/gguf.h"

using namespace headrace;
using testing::require;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  auto parsed = parse_gguf(bytes, size, "f");
  require(!std::holds_alternative<NeedsMore>(parsed), "the whole file is enough");
  auto from_half = parse_gguf(bytes.first(size / 2), size, "f");
  if (const auto* failure = std::get_if<Failure>(&parsed)) {
    require(failure->message.starts_with("f: "), "a failure names the file");
    require(!std::holds_alternative<ModelFile>(from_half), "half a head of a broken file");
    return 0;
  }
  const auto& file = std::get<ModelFile>(parsed);
  require(!std::holds_alternative<Failure>(from_half), "half a head of a good file");
  for (const TensorInfo& weight : file.tensors)
    require(weight.offset <= size && weight.bytes <= size - weight.offset, "weights lie inside");
  auto tokenizer = text::Tokenizer::make(file);
  if (tokenizer.ok())
    require(tokenizer.value().encode("Hello, 1 world!").ok(), "texts are encoded");
  auto chat_template = text::ChatTemplate::from_file(file);
  if (chat_template.ok()) require(chat_template.value().name() != nullptr, "a known template");
  return 0;
}
