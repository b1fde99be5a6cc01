// First byte: which form of grammar (modulo 3: JSON Schema, regular expression, GBNF). The rest is
// a grammar, up to a byte 0; what follows chooses tokens.
#include <array>

#include "tests/fuzz/fuzz.h"
#include "tests/support/vocabulary.h"
#include "text/grammar/grammar.h"

using namespace headrace;
using testing::require;

namespace {

text::Grammar::Vocabulary vocabulary() {
  static const text::Tokenizer tokenizer = std::move(
      text::Tokenizer::make(
          testing::small_vocabulary({"a b", "{ \"", "\" :", "\" ,", "\" }"}).model_file("smollm"))
          .value());
  static const auto made = std::make_shared<const text::VocabularyTrie>(tokenizer);
  return made;
}

// Every token of a mask is accepted, and no other one.
void walk(const std::shared_ptr<text::Grammar>& grammar, std::string_view choices) {
  const text::TokenId vocab_size = vocabulary()->vocab_size();
  text::Matcher matcher(grammar);
  std::vector<std::uint64_t> mask;
  for (const char choice : choices.substr(0, 32)) {
    if (matcher.allowed(mask)) return;  // too ambiguous, or too deep
    const auto token = static_cast<text::TokenId>(static_cast<unsigned char>(choice)) % vocab_size;
    const bool is_allowed = (mask[static_cast<std::size_t>(token) / 64] >> token % 64 & 1) != 0;
    const bool is_text = !vocabulary()->bytes_of(token).empty();
    const Status bad = matcher.accept(token);
    require(!is_text || is_allowed == !bad || bad->message.find("more than") != std::string::npos,
            "the mask has the tokens that are accepted");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  std::string_view rest = testing::as_text(data + 1, size - 1);
  const std::string_view source = testing::take_until(rest, '\0');
  constexpr std::array kForms = {text::Grammar::from_json_schema, text::Grammar::from_regex,
                                 text::Grammar::from_gbnf};
  Result<std::shared_ptr<text::Grammar>> made =
      kForms[data[0] % kForms.size()](source, vocabulary());
  if (made.ok()) {
    walk(made.value(), rest);
  } else {
    const ErrorCode code = made.failure().code;
    require(code == ErrorCode::invalid_argument || code == ErrorCode::unsupported,
            "a grammar is refused as an argument");
    require(!made.failure().message.empty(), "with a reason");
  }
  return 0;
}
